"""A table's rows as its client sees them: which server has which rows, what each server is asked for, and what went to and fro.

Knows ids, servers and bytes. What becomes of rows is the servers' affair; updates are `pending_update`'s.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows import row_blocks
from ampjax.sparse.rows.byte_counts import ByteCounts, Columns, cut
from ampjax.sparse.rows.partition_layout import PartitionLayout, SplitKey
from ampjax.sparse.rows.row_blocks import Block
from ampjax.sparse.rows.server_part import PartSettings
from ampjax.sparse.rows.shared_history import SharedHistory
from ampjax.sparse.servers.all_servers import Servers, unique_numbers
from ampjax.sparse.table.table_settings import TableSettings


@dataclass(frozen=True)
class Connection:
    """What stays the same of a table at its servers, however it is split.

    Args:
      rule: What the optimizer does to rows.
      servers: The servers that hold the rows.
      table: The table's number there.
      lock: Held during a call, so that one runs at a time.
      counts: By server, the bytes that the table's clients have counted.
    """

    rule: RowRule
    servers: Servers
    table: int = field(default_factory=lambda: next(unique_numbers))
    lock: Any = field(default_factory=threading.RLock)
    counts: list[ByteCounts] = field(default_factory=list)


class Shards:
    """One split of a table: partitions, empty at first, each on its server.

    Args:
      settings: The table's settings.
      n_partitions: P. It differs from the settings' after a new split.
      connection: What all splits of the table share.
      history: Shared values of past updates, and their number.

    Attributes:
      key: The split's name at the servers.
      layout: Which partition holds which row.
      placement: For each partition its server.
      wire: The dtype of rows and gradients between client and server.
      version: Updates that the rows have seen.
    """

    def __init__(self, settings: TableSettings, n_partitions: int, connection: Connection, history: SharedHistory):
        self.connection, self.version = connection, history.version
        self.layout = PartitionLayout(settings.n_rows, n_partitions)
        self.placement, self.wire = settings.placement(n_partitions), settings.wire
        self.key = SplitKey(connection.table, next(unique_numbers))
        self._successor: Shards | None = None
        self._has_counts = history.capacity > 0
        self._folder = _own_folder(settings.folder)  # goes when this does
        # There are as many servers as there ever were.
        connection.counts.extend(ByteCounts() for _ in range(settings.n_servers - len(connection.counts)))
        path = Path(self._folder.name) if self._folder else None
        by_server = self.by_server({p: p for p in range(n_partitions)})
        self._used_servers = sorted(by_server)
        parts = {
            server: PartSettings(
                self.layout, tuple(partitions), connection.rule.types, history, settings.n_servers, path
            )
            for server, partitions in by_server.items()
        }
        self._close = weakref.finalize(self, connection.servers.close_parts, self.key)  # half filled, too
        self._close.atexit = False
        connection.servers.open_parts(self.key, connection.rule, parts)

    @property
    def latest(self) -> Shards:
        """The split that the table has now: this one, unless it was replaced."""
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

    def fill(self, rows: Iterable[Block]) -> None:
        """Writes all rows.

        Args:
          rows: All rows in order. Blocks from outside lack the last array, how many updates each row has seen; those counts stay as they
            are.
        """
        for start, block in rows:
            stop = start + len(block[0])
            within = {p: self.layout.within(p, start, stop) for p in range(self.layout.n_partitions)}
            pieces = self.by_server({p: [array[places] for array in block] for p, (places, _) in within.items()})
            self.ask({server: ("write", start, stop, piece) for server, piece in pieces.items()})

    def blocks(self) -> Iterator[Block]:
        """Yields all rows in order, with their states and counts as they are."""
        types = self.connection.rule.types.arrays
        arrays = types + ([((), np.dtype(np.int64))] if self._has_counts else [])
        for start, stop in row_blocks.ranges(self.layout.n_rows, row_blocks.row_bytes(*arrays[0])):
            block = [np.empty((stop - start, *shape), dtype) for shape, dtype in arrays]
            for partitions in self.everywhere("read", start, stop).values():
                for p, pieces in partitions.items():
                    places, _ = self.layout.within(p, start, stop)
                    for joined, piece in zip(block, pieces, strict=True):
                        joined[places] = piece
            yield start, block

    def whole(self) -> list[np.ndarray]:
        """Copies parameters and states of all rows after all updates, `[n_rows, ...]` each."""
        self.settle()
        types = self.connection.rule.types.arrays
        result = [np.empty((self.layout.n_rows, *shape), dtype) for shape, dtype in types]
        for start, arrays in self.blocks():
            for joined, array in zip(result, arrays, strict=False):  # counts are left out
                joined[start : start + len(array)] = array
        return result

    def settle(self) -> None:
        """Catches up all rows, so that no history is needed."""
        if self._has_counts:
            self.everywhere("settle")

    def history(self) -> SharedHistory:
        """Shared values of past updates: the longest history that a server has.

        A server that was interrupted may have caught up without the others, and then has a shorter one.
        """
        return max(self.everywhere("history").values(), key=lambda history: history.length)

    # ---- some rows ---------------------------------------------------------------------------------------------------

    def pull(self, ids: np.ndarray, wire_dtype: np.dtype, columns: Columns) -> np.ndarray:
        """Rows after all updates so far, as they arrive.

        Args:
          ids: `[n]`, each once, int64.
          wire_dtype: The dtype in which they travel.
          columns: Which of their columns travel; the others are zero.

        Returns:
          `[n, *row]` in the table's dtype.
        """
        rule = self.connection.rule
        order, spans, local = self.layout.group(ids)
        wanted = self.by_server({p: local[span] for p, span in spans})
        sent = self.ask({server: ("pull", partitions, wire_dtype, columns) for server, partitions in wanted.items()})
        for p, span in spans:
            self.count(p, local[span], pulled=sent[self.placement[p]][p])
        if len(spans) == 1 and columns is None:  # in order, and nothing is missing
            p = spans[0][0]
            return sent[self.placement[p]][p].astype(rule.dtype, copy=False)
        rows = (np.empty if columns is None else np.zeros)((len(ids), *rule.shape), rule.dtype)
        for p, span in spans:
            pulled = sent[self.placement[p]][p]
            cut(rows, columns)[order[span]] = pulled
        return rows

    # ---- the servers -------------------------------------------------------------------------------------------------

    def by_server(self, values: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
        """Groups what belongs to partitions by their server.

        Args:
          values: `{partition: value}`.

        Returns:
          `{server: {partition: value}}`.
        """
        result: dict[int, dict[int, Any]] = {}
        for p, value in values.items():
            result.setdefault(self.placement[p], {})[p] = value
        return result

    def count(self, partition: int, local: np.ndarray, **rows: np.ndarray) -> None:
        """Counts what has travelled between a partition's server and its clients.

        Args:
          partition: The partition.
          local: `[n]`, the row ids that have travelled.
          rows: `pulled`, rows that the server has sent, or `pushed`, gradients that it has received.
        """
        self.connection.counts[self.placement[partition]].add(local, **rows)

    def everywhere(self, method: str, *args: Any, nbytes: int = 0) -> dict[int, Any]:
        """Asks all servers that hold rows for the same.

        Args:
          method: A method of `ServerPart`.
          args: Its arguments.
          nbytes: How much there is to do, in bytes of gradients.

        Returns:
          By server, what the method gives.
        """
        return self.ask({server: (method, *args) for server in self._used_servers}, nbytes)

    def ask(self, calls: Mapping[int, Any], nbytes: int = 0) -> dict[int, Any]:
        """Asks some servers.

        Args:
          calls: By server, a method of its `ServerPart` and the arguments.
          nbytes: How much there is to do, in bytes of gradients.

        Returns:
          By server, what the method gives.
        """
        return self.connection.servers.ask(self.key, calls, nbytes)


def _own_folder(folder: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """A new folder for mapped files, removed with what holds it."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="table-", dir=Path(folder).absolute(), ignore_cleanup_errors=True)
