"""The folder of a shared table: common facts, present processes, and the rows that a killed process was writing.

Rows and their state are mapped files of partitions. Beside them are, for each process that writes, a file that it locks as long as it has the
table, and a note of the rows that it is writing. The operating system lets go of the lock when the process ends, however it ends, and keeps
what was written. So the note of a process that is gone names the rows whose update may have been cut in two.

Knows rows by their numbers; what is in them is the partitions' affair.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.errors import TableError
from ampjax.sparse.table.table_sharing import TableSharing

_FACTS = "table.json"
_GATE = "table.lock"
_OF_EACH_PROCESS = {"rounding_seed"}
"""Facts in which processes may differ: each one rounds by random numbers of its own."""
_COUNT = np.dtype(np.int64)
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)


class SharedFolder:
    """One process's place in the folder of a shared table, made by `opening`.

    Args:
      path: The folder.
      sharing: How the table is shared.
      n_partitions: The table's number of partitions.
      is_new: Whether this process is the first one, which writes all rows.

    Raises:
      TableError: If a process that runs has this one's number.
    """

    def __init__(
        self,
        path: Path,
        sharing: TableSharing,
        n_partitions: int,
        is_new: bool,
    ):
        self.path = path
        self.is_new = is_new
        self._sharing = sharing
        self._n_partitions = n_partitions
        self._files: list[int] = []
        self.close = weakref.finalize(self, _close_all, self._files, os.getpid())
        self._note: int | None = None
        self._state: int | None = None
        if sharing.process is not None:
            self._take_place(sharing.process)
        owner = sharing.process if sharing.is_partitioned else "all"
        if owner is not None:
            self._state = self._open(f"{owner}.state")

    @property
    def successor(self) -> TableSharing:
        """The sharing for another `Table` of this process that takes this place over, with rows of its own."""
        sharing = self._sharing
        return PlaceTaken(sharing.writers, sharing.process, sharing.n_processes, self)

    # ---- who may write what ------------------------------------------------------------------------------------------

    def require_own(self, ids: np.ndarray, call: str) -> None:
        """Returns if this process may write some rows.

        Args:
          ids: `[n]`, the rows.
          call: The call's name, for messages.

        Raises:
          TableError: If it may not.
        """
        sharing = self._sharing
        self._require_writer(call)
        if not sharing.is_partitioned:
            return
        partitions = ids % self._n_partitions
        others = np.flatnonzero(partitions % sharing.n_processes != sharing.process)
        if not len(others):
            return
        row = int(ids[others[0]])
        partition = int(partitions[others[0]])
        owner = partition % sharing.n_processes
        state = "runs" if self._is_running(owner) else "is not there"
        raise TableError(
            f"{call}, row ids",
            f"rows of the partitions of process {sharing.process}, {sharing.owned(self._n_partitions)}",
            f"row {row} of partition {partition}, which belongs to process {owner}, which {state}",
            'Push there. With `writers="lock_free"` every process may write any row.',
        )

    def writable(self, call: str) -> list[int]:
        """The partitions of which this process may write all rows.

        Args:
          call: The call's name, for messages.

        Raises:
          TableError: If it only reads.
        """
        if self.is_new:
            return list(range(self._n_partitions))
        self._require_writer(call)
        return self._sharing.owned(self._n_partitions)

    def is_writable(self, ids: np.ndarray) -> np.ndarray:
        """Marks the rows that belong to this process, `[n]`.

        Args:
          ids: `[n]`, the rows.
        """
        return np.isin(ids % self._n_partitions, self.writable("fill"))

    def _require_writer(self, call: str) -> None:
        if self._sharing.process is None:
            raise TableError(
                call,
                "a process that may write",
                "a table that was opened for reading (`process=None`)",
                "Give this process a number.",
            )

    def _take_place(self, process: int) -> None:
        """Takes a process's number, and keeps the note of rows that an earlier process with this number was writing."""
        lock = self._open(f"{process}.lock")
        if not _try_lock(lock):
            holder = _read(lock).decode()
            self.close()
            raise TableError(
                f"{self.path}",
                f"one table for process {process} of {self._sharing.n_processes}",
                f"a second one, while process id {holder} has it",
                "Give each process a number of its own. In one process let go of the first table.",
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._note = self._open(f"{process}.writing")
        cut = self._read_notes(process)
        if len(cut):
            killed = self._open(f"{process}.cut")
            os.pwrite(killed, cut.tobytes(), os.fstat(killed).st_size)
        self._clear(self._note)

    # ---- what is in writing ------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, ids: np.ndarray) -> Iterator[None]:
        """Notes that some rows are in writing, until the `with` ends.

        Args:
          ids: `[n]`, int64, the rows.
        """
        if self._note is None or self.is_new:
            yield
            return
        os.pwrite(self._note, ids.tobytes(), _COUNT.itemsize)
        os.pwrite(self._note, _COUNT.type(len(ids)).tobytes(), 0)  # last: the numbers are there
        yield
        self._clear(self._note)

    def cut_rows(self, forget: bool) -> np.ndarray:
        """The rows that were in writing when a process was killed, `[n]`, rising.

        Args:
          forget: Whether they are forgotten.
        """
        counts = [np.zeros(0, _COUNT)]
        with _gate(self.path):
            for process in range(self._sharing.n_processes):
                before = self.path / f"{process}.cut"
                if before.exists():
                    counts.append(np.frombuffer(before.read_bytes(), _COUNT))
                is_gone = process != self._sharing.process and not self._has_lock(process)
                if is_gone:
                    counts.append(self._read_notes(process))
                if forget:
                    before.unlink(missing_ok=True)
                    if is_gone:
                        (self.path / f"{process}.writing").unlink(missing_ok=True)
        return np.unique(np.concatenate(counts))

    def _read_notes(self, process: int) -> np.ndarray:
        """The rows that a process has noted."""
        path = self.path / f"{process}.writing"
        numbers = (
            np.frombuffer(
                path.read_bytes(),
                _COUNT,
            )
            if path.exists()
            else np.zeros(0, _COUNT)
        )
        return numbers[1 : 1 + numbers[0]] if len(numbers) else numbers

    def _clear(self, note: int) -> None:
        os.pwrite(note, _COUNT.type(0).tobytes(), 0)

    def _is_running(self, process: int) -> bool:
        """Tells whether a process of some number has the table."""
        with _gate(self.path):
            return self._has_lock(process)

    def _has_lock(self, process: int) -> bool:
        """Tells whether a process has the table, while the caller holds the gate: a look takes the lock for a moment."""
        path = self.path / f"{process}.lock"
        if not path.exists():
            return False
        lock = os.open(path, os.O_RDWR)
        try:
            return not _try_lock(lock)
        finally:
            os.close(lock)

    # ---- what all rows share -----------------------------------------------------------------------------------------

    def read_state(self, leaves: Sequence[Any]) -> list[np.ndarray]:
        """The optimizer state that all rows share, such as a count of updates: of this process's updates, or lock-free of everybody's.

        Args:
          leaves: Arrays like it, which are given back if there has been no update.
        """
        arrays = [np.asarray(leaf) for leaf in leaves]
        written = b"" if self._state is None else _read(self._state)
        result = []
        start = 0
        for array in arrays if written else ():
            piece = np.frombuffer(written, array.dtype, array.size, start)
            result.append(piece.reshape(array.shape))
            start += array.nbytes
        return result or arrays

    def write_state(self, leaves: Sequence[Any]) -> None:
        """Keeps that state.

        Args:
          leaves: Its arrays.
        """
        if self._state is not None:
            pieces = [np.asarray(leaf).tobytes() for leaf in leaves]
            os.pwrite(self._state, b"".join(pieces), 0)

    def _open(self, name: str) -> int:
        """Opens a file that is closed with the table, or with the process."""
        file = os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o666)
        self._files.append(file)
        return file


@dataclass(frozen=True)
class PlaceTaken(TableSharing):
    """A sharing by a process that has its place already.

    Args:
      place: The place.
    """

    place: SharedFolder | None = None


def _find_place(sharing: TableSharing, folder: Path) -> SharedFolder | None:
    """The place that another `Table` of this process has in a folder; None without one.

    Args:
      sharing: How the table is shared.
      folder: The folder.
    """
    place = sharing.place if isinstance(sharing, PlaceTaken) else None
    if place is None or place.path.resolve() != folder.resolve():
        return None
    return place


@contextmanager
def opening(
    folder: Path,
    sharing: TableSharing,
    facts: Mapping[str, Any],
    nbytes: int,
) -> Iterator[SharedFolder]:
    """Opens a process's place in a folder. Other processes wait until the `with` has ended, in which the first process writes all rows.

    Args:
      folder: The folder; made if it is missing.
      sharing: How the table is shared.
      facts: What all processes must agree on, and the first one's rounding seed, in JSON's types; `partitions` is their number.
      nbytes: The bytes of rows and their state.

    Yields:
      The place.

    Raises:
      TableError: If the table that is there is another, a process that runs has this one's number, partitions would belong to nobody or a process
        own none, there is no room, or files may not be written.
    """
    _check_owners(sharing, facts["partitions"])
    facts = {**facts, "writers": sharing.writers, "processes": sharing.n_processes}
    with needing_rights(folder), _gate(folder):
        is_new = not (folder / _FACTS).exists()
        if is_new:
            _check_room(folder, nbytes)
        else:
            _check_same(folder, facts)
        taken = _find_place(sharing, folder)
        if taken is not None:
            yield taken
            return
        place = SharedFolder(folder, sharing, facts["partitions"], is_new)
        try:
            yield place
        except BaseException:
            place.close()
            raise
        if is_new:
            written = folder / f"{_FACTS}.new"
            written.write_text(json.dumps(facts))
            os.replace(written, folder / _FACTS)
        place.is_new = False


def shared_facts(folder: str | Path) -> dict[str, Any]:
    """Reads the common facts of the table in a folder.

    Raises:
      TableError: If there is no such table.
    """
    path = Path(folder) / _FACTS
    with needing_rights(folder):
        if path.exists():
            return json.loads(path.read_text())
    fix = "Make it with `Table(values, tx, folder=..., sharing=...)`."
    raise TableError(f"{folder}", "a shared table", f"no `{_FACTS}`", fix)


@contextmanager
def needing_rights(folder: str | Path) -> Iterator[None]:
    """Explains errors of the operating system about rights.

    Args:
      folder: The folder of a table in files.

    Raises:
      TableError: If a file or folder may not be read or written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_RIGHTS:
            raise
        raise TableError(
            f"folder `{folder}`",
            "a folder in which this process may read, make and write files, as also those that only read do, for locks",
            f"{error.strerror}: `{error.filename}`",
            "Give the process's user the right to write there (`chmod`, or a group in common), or name another folder.",
        ) from error


def _check_same(folder: Path, facts: Mapping[str, Any]) -> None:
    facts_there = shared_facts(folder)
    differing = []
    for name, value in facts.items():
        if name not in _OF_EACH_PROCESS and facts_there.get(name) != value:
            differing.append(name)
    if differing:
        name = differing[0]
        raise TableError(
            f"{folder}, {name}",
            f"those of the table that is there, {facts_there.get(name)!r:.120}",
            f"{facts[name]!r:.120}",
            "Make it by the same call in all processes, or remove the folder to begin anew.",
        )


def _check_owners(sharing: TableSharing, n_partitions: int) -> None:
    if sharing.is_partitioned and sharing.n_processes > n_partitions:
        raise TableError(
            "partitions",
            f"at least {sharing.n_processes}, one for each process that writes",
            f"{n_partitions}, so that process {n_partitions} would own no row",
            f"Give `partitions={sharing.n_processes}`, or a multiple of it.",
        )


def _check_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise TableError(
            f"{folder}",
            f"room for {nbytes:,} bytes of rows and their optimizer state",
            f"{free:,} bytes free",
            "Name another folder. A container's /dev/shm is small by default (`--shm-size`).",
        )


@contextmanager
def _gate(folder: Path) -> Iterator[None]:
    """Holds the lock under which processes come and look at each other."""
    with needing_rights(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _GATE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _try_lock(file: int) -> bool:
    """Tells whether a file's lock could be taken."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _close_all(files: Sequence[int], process_id: int) -> None:
    """Closes a place's files. A forked process has the files, too, and would keep the locks: so the place's own process lets go of all locks."""
    for file in files:
        if os.getpid() == process_id:
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)
