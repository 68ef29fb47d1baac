"""Recordings: files of a run's decisions, written during the run and read during a replay, in bounded memory.

A file is `MAGIC`, the header's length (4 bytes), the header (JSON), and the decisions. One that ends properly ends with `End`; what a
killed run left can be followed up to its last whole decision.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ampjax.errors import ReplayError
from ampjax.trace.journal import N_END, Decision, End, pack, unpack
from ampjax.utils.bounded_reading import MOST_JSON_BYTES, parse_json

MAGIC = b"ampjax recording 2\n"
OLD = b"ampjax recording 1\n"
"""Of files whose checksums hold the slots of instances, which only the scheduler that routed messages while it scheduled can have again."""
BUFFER = 1 << 16
"""Bytes that are kept before they are written, and read at a time."""


class Recorder:
    """Writes a recording.

    Args:
      path: The file; one that is there is replaced.
      header: What a reader should know before the first decision; anything that JSON can hold.
      place: Where another's `place` was, to go on from there in its file: what follows is cut off. None begins anew.

    Raises:
      ReplayError: If the file is not the one to go on with.
      OSError: If the file can't be written.
    """

    def __init__(
        self,
        path: str | Path,
        header: Mapping[str, Any],
        place: Mapping[str, Any] | None = None,
    ):
        if place is None:
            text = json.dumps(header).encode()
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(path, "wb", BUFFER)  # noqa: SIM115 (it stays open for the run)
            self._n = self._checksum = 0
            self._write(MAGIC + len(text).to_bytes(4, "little") + text)
        else:
            _require_bytes(path, place["bytes"], place["checksum"])
            self._file = open(path, "r+b", BUFFER)  # noqa: SIM115 (likewise)
            self._file.truncate(place["bytes"])
            self._file.seek(0, os.SEEK_END)
            self._n = place["decisions"]
            self._checksum = place["checksum"]

    def place(self) -> dict[str, Any]:
        """Gives the position in the recording, once all additions so far are on the disk; JSON can hold the result."""
        # On the disk first: a snapshot must not name bytes that a crash could lose.
        self._file.flush()
        os.fsync(self._file.fileno())
        return {
            "bytes": self._file.tell(),
            "checksum": self._checksum,
            "decisions": self._n,
        }

    def take(self, decision: Decision) -> None:
        """Adds a decision."""
        self._write(pack(decision))
        self._n += 1

    def close(self, reason: int) -> None:
        """Ends the recording, with the reason of its end (a number in `REASONS`)."""
        self._write(pack(End(reason, self._n)))
        self._file.close()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._checksum = zlib.crc32(data, self._checksum)


class Recording:
    """Reads a recording.

    Args:
      path: The file.
      partial: Whether one that was cut off will do.

    Raises:
      ReplayError: If the file is no recording, or is cut off and `partial` is false.
      OSError: If it can't be read.
    """

    def __init__(self, path: str | Path, partial: bool = False):
        self.path = Path(path)
        with open(self.path, "rb") as file:
            self.header: dict[str, Any] = self._read_header(file)
            self._start = file.tell()
            size = file.seek(0, 2)
            file.seek(max(self._start, size - N_END))
            last = file.read()
        self.end = _end(last)
        if self.end is None and not partial:
            raise ReplayError(
                f"recording `{path}`",
                "one that has been written to its end",
                f"one that was cut off after {size} bytes: the run was killed, or the file is not whole",
                "Pass `partial=True` to replay it up to there.",
            )

    def decisions(self) -> Iterator[Decision]:
        """The decisions in order; the last is an `End`, unless the file was cut off.

        Raises:
          ReplayError: If the file is damaged.
        """
        with open(self.path, "rb") as file:
            file.seek(self._start)
            data = b""
            at = 0
            n = 0
            ended = False
            while True:
                more = file.read(BUFFER)
                # What is left of the last buffer is the beginning of a decision.
                data = data[at:] + more
                at = 0
                while at < len(data):
                    # Where in the file it is, for errors.
                    place = file.tell() - len(data) + at
                    try:
                        decision, at = unpack(data, at)
                    except ValueError as error:
                        raise self._foreign(f"byte {place}, where {error}") from None
                    # Cut off by the buffer's end: more is read.
                    if decision is None:
                        break
                    if ended:
                        raise self._foreign(f"byte {place}, where more follows the end")
                    if isinstance(decision, End) and decision.decisions != n:
                        got = f"byte {place}, where {n} decisions end that should be {decision.decisions}"
                        raise self._foreign(got)
                    n = n + 1
                    ended = isinstance(decision, End)
                    yield decision
                if not more:
                    break
            # A file with an end must be whole up to it.
            if self.end is not None and (not ended or at < len(data)):
                raise self._foreign(
                    f"byte {file.tell() - len(data) + at}, where no whole decision is"
                )

    def _read_header(self, file: BinaryIO) -> dict[str, Any]:
        magic = file.read(len(MAGIC))
        if magic == OLD:
            raise ReplayError(
                f"recording `{self.path}`",
                "one of format 2, which says by instance and state what was in each dispatch",
                "one of format 1, which an earlier version has written",
                "Replay it with that version, or record the run anew: the same seed makes the same run if its clock is virtual.",
            )
        if magic != MAGIC:
            raise self._foreign(f"a file that begins with {magic!r}")
        length = int.from_bytes(file.read(4), "little")
        left = os.fstat(file.fileno()).st_size - file.tell()
        if length > min(left, MOST_JSON_BYTES):
            raise self._foreign(
                f"a header that can't be read ({length} bytes where {left} are left)"
            )
        try:
            header = parse_json(file.read(length))
        except ValueError as error:
            raise self._foreign(f"a header that can't be read ({error})") from None
        if not isinstance(header, dict):
            raise self._foreign("a header that is no object")
        return header

    def _foreign(self, got: str) -> ReplayError:
        return ReplayError(
            f"recording `{self.path}`",
            "a whole recording of this version's format",
            got,
            "Pass a file that `fit(..., record=...)` has written.",
        )

    def __repr__(self) -> str:
        n = "cut off" if self.end is None else f"{self.end.decisions} decisions"
        return f"Recording({str(self.path)!r}, {n})"


def _require_bytes(path: str | Path, n_bytes: int, checksum: int) -> None:
    """Checks that a recording begins with the bytes that a snapshot was taken after.

    Raises:
      ReplayError: If it does not.
    """
    if Path(path).is_file():
        size = Path(path).stat().st_size
    else:
        size = 0
    if size < n_bytes or _checksum(Path(path), n_bytes) != checksum:
        raise ReplayError(
            f"recording `{path}`",
            f"the {n_bytes} bytes that were there at the snapshot",
            f"{'others' if size >= n_bytes else size}",
            "Pass the file of the run that was killed, or resume without `record`.",
        )


def _checksum(path: Path, n_bytes: int) -> int:
    """Of the first bytes of a file."""
    checksum = 0
    with open(path, "rb") as file:
        while n_bytes and (data := file.read(min(n_bytes, BUFFER))):
            checksum = zlib.crc32(data, checksum)
            n_bytes = n_bytes - len(data)
    return checksum


def _end(data: bytes) -> End | None:
    """The last decision, if that is an end."""
    if len(data) < N_END or data[-N_END] != pack(End(0, 0))[0]:
        return None
    try:
        decision, _ = unpack(data, len(data) - N_END)
    except ValueError:
        return None
    return decision if isinstance(decision, End) else None
