"""A table's rows as its client sees them: which server has which, what each is asked for, and what went to and fro.

Knows ids, servers and bytes; what becomes of rows is the parts'.
"""

from __future__ import annotations

import functools
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows import row_blocks
from ampjax.sparse.rows.byte_counts import Columns, Traffic, cut
from ampjax.sparse.rows.gradient_buffer import Rows
from ampjax.sparse.rows.partition_layout import Layout
from ampjax.sparse.rows.pending_update import Pending
from ampjax.sparse.rows.row_blocks import Block
from ampjax.sparse.rows.server_part import PartSettings
from ampjax.sparse.rows.shared_history import History
from ampjax.sparse.servers.all_servers import Servers, numbers
from ampjax.sparse.servers.server import Key
from ampjax.sparse.table.table_settings import TableSettings


class Shards:
    """One split of a table: partitions, empty at first, each on its server.

    Args:
      settings: The table's settings.
      n_partitions: P, which differs from the settings' after a new split.
      rule: The optimizer's rule for rows.
      servers: Where parts are.
      table: The table's number there.
      history: Shared values of past updates, and their count.
      traffic: By server what its clients count; may grow.
    """

    def __init__(
        self,
        settings: TableSettings,
        n_partitions: int,
        rule: RowRule,
        servers: Servers,
        table: int,
        history: History,
        traffic: Sequence[Traffic],
    ):
        self.layout = Layout(settings.n_rows, n_partitions)
        self.placement = settings.placement(n_partitions)
        self._rule, self._servers, self._traffic = rule, servers, traffic
        self._key = Key(table, next(numbers))
        self._has_counts = history.capacity > 0
        self._folder = _own_folder(settings.folder)  # goes when this does
        path = Path(self._folder.name) if self._folder else None
        own = self._by_server({p: p for p in range(n_partitions)})
        self._used = sorted(own)
        parts = {
            server: PartSettings(self.layout, tuple(partitions), rule.types, history, settings.n_servers, path)
            for server, partitions in own.items()
        }
        self.close = weakref.finalize(self, servers.close_parts, self._key)  # half filled, too
        self.close.atexit = False
        servers.open_parts(self._key, rule, parts)

    # ---- all rows ----------------------------------------------------------------------------------------------------

    def fill(self, rows: Iterable[Block]) -> None:
        """Writes all rows; blocks from outside lack the last array, the counts, which stay as they are."""
        for start, block in rows:
            stop = start + len(block[0])
            within = {p: self.layout.within(p, start, stop) for p in range(self.layout.n_partitions)}
            pieces = self._by_server({p: [array[places] for array in block] for p, (places, _) in within.items()})
            self._ask({server: ("write", start, stop, own) for server, own in pieces.items()})

    def blocks(self) -> Iterator[Block]:
        """All rows in order, with their states and counts as they are."""
        arrays = self._rule.types.arrays + ([((), np.dtype(np.int64))] if self._has_counts else [])
        for start, stop in row_blocks.ranges(self.layout.n_rows, row_blocks.row_bytes(*arrays[0])):
            block = [np.empty((stop - start, *shape), dtype) for shape, dtype in arrays]
            for own in self._everywhere("read", start, stop).values():
                for p, pieces in own.items():
                    places, _ = self.layout.within(p, start, stop)
                    for joined, piece in zip(block, pieces, strict=True):
                        joined[places] = piece
            yield start, block

    def whole(self) -> list[np.ndarray]:
        """Parameters and states of all rows, `[n_rows, ...]` each: copies."""
        result = [np.empty((self.layout.n_rows, *shape), dtype) for shape, dtype in self._rule.types.arrays]
        for start, arrays in self.blocks():
            for joined, array in zip(result, arrays, strict=False):  # counts are left out
                joined[start : start + len(array)] = array
        return result

    def settle(self) -> None:
        """Catches up all rows, so that no history is needed."""
        if self._has_counts:
            self._everywhere("settle")

    def history(self) -> History:
        """Shared values of past updates: the longest that a server has, for one that was interrupted may have caught up without the others."""
        return max(self._everywhere("history").values(), key=lambda history: history.length)

    # ---- some rows ---------------------------------------------------------------------------------------------------

    def pull(self, ids: np.ndarray, wire_dtype: np.dtype, columns: Columns) -> np.ndarray:
        """Rows after all updates so far, as they arrive.

        Args:
          ids: `[n]`, each once.
          wire_dtype: In what they travel.
          columns: Which of their columns do; the others are zero.
        """
        rows = (np.empty if columns is None else np.zeros)((len(ids), *self._rule.shape), self._rule.dtype)
        order, spans, local = self.layout.group(ids)
        asked = self._by_server({p: local[span] for p, span in spans})
        sent = self._ask({server: ("pull", own, wire_dtype, columns) for server, own in asked.items()})
        for p, span in spans:
            server = self.placement[p]
            self._traffic[server].add(local[span], pulled=sent[server][p])
            cut(rows, columns)[order[span]] = sent[server][p]
        return rows

    def pending(self) -> Pending:
        """A new update. If nobody holds it any more and it was not made, servers forget it."""
        return Pending(self._key, self.layout, functools.partial(self._servers.drop_update, self._key))

    def own(self, pending: Pending) -> None:
        """Whether an update waits here.

        Raises:
          TableError: If it has been made, it is another table's, or the table was split anew since.
        """
        pending.check(self._key, self.layout)

    def push(self, pending: Pending, ids: np.ndarray, grads: np.ndarray, columns: Columns) -> None:
        """Sends row gradients to where they wait for the update.

        Args:
          pending: The update.
          ids: `[n]`, each once.
          grads: `[n, *row]`, in the wire's dtype.
          columns: Which of their columns travel.
        """
        order, spans, local = self.layout.group(ids)
        grads = cut(grads, columns)[order]  # a copy: the caller may go on writing into what it gave
        work = self._by_server({p: (local[span], grads[span]) for p, span in spans})
        self._ask({server: ("receive", pending.number, own, columns) for server, own in work.items()})
        for p, span in spans:
            self._traffic[self.placement[p]].add(local[span], pushed=grads[span])
        pending.servers.update(work)
        pending.n_pushes += 1
        pending.nbytes += grads.nbytes

    def gradients(self, pending: Pending, wire_dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Row ids and gradients that an update has gathered, as they arrive."""
        ids, grads = [np.zeros(0, np.int64)], [np.zeros((0, *self._rule.shape), wire_dtype)]
        sent = self._of_update(pending, "send", wire_dtype)
        for p, (local, rows) in sent.items():
            self._traffic[self.placement[p]].add(local, pulled=rows)
            ids.append(self.layout.row_ids(p, local))
            grads.append(rows)
        return np.concatenate(ids), np.concatenate(grads)

    # ---- updates -----------------------------------------------------------------------------------------------------

    def rows(self, pending: Pending) -> dict[int, Rows]:
        """By touched partition an update's rows and the sums of their gradients; not counted."""
        return self._of_update(pending, "rows")

    def check(self, pending: Pending, wire_dtype: np.dtype) -> None:
        """Whether an update's gradients can be applied.

        Args:
          pending: The update.
          wire_dtype: In what gradients travel.

        Raises:
          TableError: If a sum has overflowed.
        """
        if pending.n_pushes < 2 and np.can_cast(wire_dtype, self._rule.dtype):
            return  # nothing is summed at the servers: all was checked before it left
        self._ask({server: ("check", pending.number) for server in sorted(pending.servers)}, pending.nbytes)

    def partials(self, turn: int, pending: Pending, shared: Sequence[Any]) -> list[np.ndarray]:
        """One round's reductions over all rows: each server's own, put together."""
        parts = self._everywhere("partials", pending.number, turn, shared, nbytes=pending.nbytes)
        return self._rule.combine(turn, [part for own in parts.values() for part in own])

    def prepare(self, pending: Pending, shared: Sequence[Any]) -> Callable[[], None]:
        """Computes one update of touched rows; none of them has changed before what it gives is called."""
        self._everywhere("prepare", pending.number, shared, nbytes=pending.nbytes)

        def commit() -> None:
            self._everywhere("commit", pending.number, nbytes=pending.nbytes)

        return commit

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _by_server(self, of_partitions: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
        """What belongs to partitions, by their server."""
        result: dict[int, dict[int, Any]] = {}
        for p, value in of_partitions.items():
            result.setdefault(self.placement[p], {})[p] = value
        return result

    def _of_update(self, pending: Pending, method: str, *args: Any) -> dict[int, Rows]:
        """What servers give of an update, by rising partition."""
        sent = self._ask({server: (method, pending.number, *args) for server in sorted(pending.servers)})
        found = {p: rows for own in sent.values() for p, rows in own.items()}
        return {p: found[p] for p in sorted(found)}

    def _everywhere(self, method: str, *args: Any, nbytes: int = 0) -> dict[int, Any]:
        return self._ask({server: (method, *args) for server in self._used}, nbytes)

    def _ask(self, calls: Mapping[int, Any], nbytes: int = 0) -> dict[int, Any]:
        return self._servers.ask(self._key, calls, nbytes)


def _own_folder(folder: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """A new folder for mapped files, removed with what holds it."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="table-", dir=Path(folder).absolute(), ignore_cleanup_errors=True)
