"""A table's rows from its client's side: the servers of all rows, the requests to each server, and the traffic.

Knows ids, servers and bytes. What becomes of rows is the servers' affair; updates are `pending_update`'s.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.optim.row_rule import RowRule
from ampjax.sparse.narrow.narrow_rows import stored_arrays
from ampjax.sparse.rows import row_blocks
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import PartitionLayout, SplitKey
from ampjax.sparse.rows.row_blocks import Block
from ampjax.sparse.rows.server_part import PartSettings, ServerNeeds
from ampjax.sparse.rows.shared_history import SharedHistory
from ampjax.sparse.servers.all_servers import Servers, unique_numbers
from ampjax.sparse.table.row_client import RowClient, SplitPlace
from ampjax.sparse.table.shared_folder import SharedFolder, needing_rights
from ampjax.sparse.table.table_settings import TableSettings


@dataclass(frozen=True)
class Connection:
    """The properties of a table at its servers that do not depend on its partitions.

    Args:
      rule: What the optimizer does to rows.
      servers: The servers that hold the rows.
      table: The table's number there.
      lock: Held during a call, so that one runs at a time.
      counts: By server, the bytes that the table's clients have counted.
      shared: This process's place in the folder of a table that others share; None where the table is this process's.
    """

    rule: RowRule
    servers: Servers
    table: int = field(default_factory=lambda: next(unique_numbers))
    lock: Any = field(default_factory=threading.RLock)
    counts: list[ByteCounts] = field(default_factory=list)
    shared: SharedFolder | None = None

    def writing(self, ids: np.ndarray) -> contextlib.AbstractContextManager[None]:
        """Notes, where others share the table, that some rows are in writing until the `with` ends.

        Args:
          ids: `[n]`, int64, the rows.
        """
        if self.shared is None:
            return contextlib.nullcontext()
        return self.shared.writing(ids)


class Shards:
    """One split of a table: partitions, empty at first, each on its server.

    It has more than 15 methods, since it is where a table's calls become requests to servers: one for each kind.

    Args:
      settings: The table's settings.
      n_partitions: P. It differs from the settings' after a new split.
      connection: What all splits of the table share.
      history: Shared values of past updates, and their number.

    Attributes:
      place: Where its rows are.
      client: Pulls and pushes rows.
      version: Updates that the rows have seen.
    """

    def __init__(
        self,
        settings: TableSettings,
        n_partitions: int,
        connection: Connection,
        history: SharedHistory,
    ):
        self.connection = connection
        self.version = history.version
        self._narrow = settings.narrow(connection.rule.shape)
        self.place = SplitPlace(
            SplitKey(connection.table, next(unique_numbers)),
            PartitionLayout(settings.n_rows, n_partitions),
            settings.placement(n_partitions),
            connection.rule.types,
            settings.wire,
        )
        ask = functools.partial(
            connection.servers.ask, self.place.key
        )  # without a reference to this object
        self._first_version = self.version
        self.client = RowClient(self.place, ask, connection.counts)
        self._successor: Shards | None = None
        self._has_counts = history.max_lag > 0
        shared = connection.shared
        # It goes when this does, unless others share it.
        self._folder = None if shared else _own_folder(settings.folder)
        # There are as many servers as there ever were.
        connection.counts.extend(
            ByteCounts() for _ in range(settings.n_servers - len(connection.counts))
        )
        if shared is not None:
            path = shared.path
        else:
            path = Path(self._folder.name) if self._folder else None
        by_server = self.place.by_server({p: p for p in range(n_partitions)})
        self._used_servers = sorted(by_server)
        parts = {}
        for server, partitions in by_server.items():
            parts[server] = PartSettings(
                self.layout,
                tuple(partitions),
                connection.rule.types,
                history,
                settings.n_servers,
                path,
                self._narrow,
            )
        self._close = weakref.finalize(
            self, connection.servers.close_parts, self.key
        )  # half filled, too
        self._close.atexit = False
        connection.servers.open_parts(self.key, connection.rule, parts)

    @property
    def key(self) -> SplitKey:
        """The split's name at the servers."""
        return self.place.key

    @property
    def layout(self) -> PartitionLayout:
        """The layout: the partition of each row."""
        return self.place.layout

    @property
    def placement(self) -> tuple[int, ...]:
        """For each partition its server."""
        return self.place.placement

    @property
    def wire(self) -> np.dtype:
        """The dtype of rows and gradients between client and server."""
        return self.place.wire

    @property
    def n_updates(self) -> int:
        """The number of updates since this split."""
        return self.version - self._first_version

    @property
    def latest(self) -> Shards:
        """The table's present split: this one, unless another has replaced it."""
        return self if self._successor is None else self._successor.latest

    def replace(self, successor: Shards) -> None:
        """Lets another split take this one's place. The servers forget this one.

        Args:
          successor: The new split, which has all rows by now.
        """
        self._successor = successor
        self._close()
        if self._folder is not None:
            self._folder.cleanup()

    # ---- all rows ----------------------------------------------------------------------------------------------------

    @property
    def stored_arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """The shape of one row and the dtype of each array at servers: parameters in stored form, then states."""
        return stored_arrays(self.connection.rule.types.arrays, self._narrow)

    def fill(
        self,
        rows: Iterable[Block],
        *,
        stored: bool = False,
    ) -> None:
        """Writes all rows; of a shared table, the rows of this process.

        Args:
          rows: All rows in order. Blocks from outside lack the last array, how many updates each row has seen; those counts stay as they
            are.
          stored: Whether parameters come in stored form.

        Raises:
          TableError: If this process only reads.
        """
        shared = self.connection.shared
        partitions = range(self.layout.n_partitions) if shared is None else shared.writable("fill")
        for start, values in rows:
            block = values if stored else self._as_stored(values)
            stop = start + len(block[0])
            within = {}
            for p in partitions:
                within[p] = self.layout.within(p, start, stop)
            pieces = self.place.by_server(
                {p: [array[places] for array in block] for p, (places, _) in within.items()}
            )
            ids = np.arange(start, stop)
            if shared is not None:
                ids = ids[shared.is_writable(ids)]
            with self.connection.writing(ids):
                self.ask({s: ("write", start, stop, piece) for s, piece in pieces.items()})

    def assign(
        self,
        ids: np.ndarray,
        arrays: Sequence[np.ndarray],
        *,
        stored: bool = False,
    ) -> None:
        """Replaces some rows of any partitions.

        Args:
          ids: `[n]`, each once, int64.
          arrays: Their parameters, then their states, `[n, ...]` each.
          stored: Whether parameters come in stored form.
        """
        if not stored:
            arrays = self._as_stored(arrays)
        order, spans, local = self.layout.group(ids)
        work = {}
        for p, span in spans:
            places = order[span]
            work[p] = (local[span], [array[places] for array in arrays])
        by_server = self.place.by_server(work)
        with self.connection.writing(ids):
            self.ask({server: ("assign", rows) for server, rows in by_server.items()})

    def _as_stored(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Rows and states with parameters in stored form."""
        if self._narrow is None:
            return arrays
        return [self._narrow.stored(arrays[0]), *arrays[1:]]

    def note_changes(self) -> None:
        """Begins to note changed rows, and forgets earlier notes."""
        self.everywhere("note_changes")

    def changes(
        self,
        first: int,
        end: int,
        n_arrays: int,
    ) -> Iterator[Block]:
        """Yields the noted rows, in blocks of the table's rows.

        Args:
          first: The first row that is looked at.
          end: The row after the last.
          n_arrays: How many arrays of each row.

        Returns:
          For each block its number of rows before, and arrays `[n, ...]`: the rows' numbers, counted from `first`; parameters in stored form;
            states.
        """
        shape, dtype = self.connection.rule.types.arrays[0]
        done = 0
        row_bytes = row_blocks.row_bytes(shape, dtype)
        for start, stop in row_blocks.ranges(first, end, row_bytes):
            ids = []
            arrays = []
            answers = self.everywhere(
                "read_changes",
                start,
                stop,
                n_arrays,
            )
            for of_server in answers.values():
                for of_partition, rows in of_server.values():
                    ids.append(of_partition)
                    arrays.append(rows)
            joined = np.concatenate(ids)
            order = np.argsort(joined)
            block = [joined[order] - first]
            for column in zip(*arrays, strict=True):
                block.append(np.concatenate(column)[order])
            yield done, block
            done += len(joined)

    def blocks(
        self,
        first: int = 0,
        end: int | None = None,
        n_arrays: int | None = None,
        *,
        stored: bool = False,
    ) -> Iterator[Block]:
        """Yields rows in order, with their present states and counts.

        Args:
          first: The first row.
          end: The row after the last; None for all.
          n_arrays: How many of their arrays: 1 for parameters alone; None for all.
          stored: Whether parameters are given in stored form.
        """
        types = self.stored_arrays
        arrays = (types + ([((), np.dtype(np.int64))] if self._has_counts else []))[:n_arrays]
        end = self.layout.n_rows if end is None else end
        for start, stop in row_blocks.ranges(
            first,
            end,
            row_blocks.row_bytes(*arrays[0]),
        ):
            block = []
            for shape, dtype in arrays:
                block.append(np.empty((stop - start, *shape), dtype))
            for partitions in self.everywhere("read", start, stop, n_arrays).values():
                for p, pieces in partitions.items():
                    places, _ = self.layout.within(p, start, stop)
                    for joined, piece in zip(block, pieces, strict=True):
                        joined[places] = piece
            if self._narrow is not None and not stored:
                block[0] = self._narrow.read(block[0])
            yield start, block

    def arrays(
        self,
        first: int = 0,
        end: int | None = None,
        n_arrays: int | None = None,
    ) -> list[np.ndarray]:
        """Copies parameters and states of rows after all updates, `[n, ...]` each.

        Args:
          first: The first row.
          end: The row after the last; None for all.
          n_arrays: How many arrays: 1 for parameters alone; None for all.
        """
        self.settle()
        types = self.connection.rule.types.arrays[:n_arrays]
        end = self.layout.n_rows if end is None else end
        result = []
        for shape, dtype in types:
            result.append(np.empty((end - first, *shape), dtype))
        for start, arrays in self.blocks(first, end, len(types)):
            for joined, array in zip(result, arrays, strict=True):
                joined[start - first : start - first + len(array)] = array
        return result

    def settle(self) -> None:
        """Catches up all rows, so that no history is needed."""
        if self._has_counts:
            self.everywhere("settle")

    def history(self) -> SharedHistory:
        """Shared values of past updates: the longest history that a server has.

        A server that was interrupted may have caught up without the others, and then has a shorter one.
        """
        return max(
            self.everywhere("history").values(),
            key=lambda history: history.length,
        )

    # ---- the servers -------------------------------------------------------------------------------------------------

    def everywhere(
        self,
        method: str,
        *args: Any,
        nbytes: int = 0,
        needs: Mapping[int, ServerNeeds] | None = None,
    ) -> dict[int, Any]:
        """Asks all servers that hold rows for the same.

        Args:
          method: A method of `ServerPart`.
          args: Its arguments.
          nbytes: How much there is to do, in bytes of gradients.
          needs: By server what must have come there before, from other clients.

        Returns:
          By server, what the method gives.
        """
        return self.ask(
            {server: (method, *args) for server in self._used_servers},
            nbytes,
            needs,
        )

    def ask(
        self,
        calls: Mapping[int, Any],
        nbytes: int = 0,
        needs: Mapping[int, ServerNeeds] | None = None,
    ) -> dict[int, Any]:
        """Asks some servers.

        Args:
          calls: By server, a method of its `ServerPart` and the arguments.
          nbytes: How much there is to do, in bytes of gradients.
          needs: By server what must have come there before, from other clients.

        Returns:
          By server, what the method gives.
        """
        return self.connection.servers.ask(self.key, calls, nbytes, needs)


def _own_folder(folder: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """Makes a new folder for mapped files, removed together with its owner."""
    if folder is None:
        return None
    with needing_rights(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(
            prefix="table-", dir=Path(folder).absolute(), ignore_cleanup_errors=True
        )
