"""A table's partitions and the servers that they are on: made together, filled, replaced as one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.sparse import blocks
from ampjax.sparse.blocks import Block
from ampjax.sparse.kernels import Kernels
from ampjax.sparse.layout import Layout
from ampjax.sparse.partition import Partition
from ampjax.sparse.server import Server, Traffic
from ampjax.sparse.settings import TableSettings

PARALLEL_BYTES = 1 << 20
"""Rows of one call below which partitions are updated one after the other: threads would cost more than they gain."""


class Shards:
    """Partitions, empty at first, each on its server.

    Args:
      settings: The table's settings.
      n_partitions: P, which may differ from the settings' after a new split.
      kernels: The rule's compiled functions.
      seen: Updates that all rows have seen; None where rows that are left out of updates need not catch up.
      traffic: For each server the counts that it goes on with.
    """

    def __init__(
        self,
        settings: TableSettings,
        n_partitions: int,
        kernels: Kernels,
        seen: int | None,
        traffic: Sequence[Traffic],
    ):
        self.layout = Layout(settings.n_rows, n_partitions)
        self.placement = settings.placement(n_partitions)
        self._folder = _own_folder(settings.folder)
        path = self._folder and Path(self._folder.name)
        sizes = [self.layout.size(p) for p in range(n_partitions)]
        self.partitions = [Partition(p, size, kernels, seen, path) for p, size in enumerate(sizes)]
        on = [
            [part for part, s in zip(self.partitions, self.placement, strict=True) if s == i]
            for i in range(len(traffic))
        ]
        self.servers = [
            Server({p.index: p for p in parts}, settings.wire, t) for parts, t in zip(on, traffic, strict=True)
        ]
        self._pool: ThreadPoolExecutor | None = None

    def server(self, partition: int) -> Server:
        """The server that holds a partition."""
        return self.servers[self.placement[partition]]

    def fill(self, rows: Iterable[Block]) -> None:
        """Writes all rows."""
        blocks.fill(self.partitions, self.layout, rows)

    def blocks(self) -> Iterator[Block]:
        """All rows in order."""
        return blocks.of_partitions(self.partitions, self.layout)

    def whole(self) -> list[np.ndarray]:
        """Each array of all rows, joined: parameters, then states."""
        first = self.partitions[0].arrays
        result = [np.empty((self.layout.n_rows, *array.shape[1:]), array.dtype) for array in first]
        for start, arrays in self.blocks():
            for joined, array in zip(result, arrays, strict=False):
                joined[start : start + len(array)] = array
        return result

    def each(self, function: Callable[[Partition, Any], Any], work: Mapping[int, Any], n_bytes: int) -> list[Any]:
        """The function's results for some partitions, in parallel where there is enough to do.

        Args:
          function: Called with a partition and its work.
          work: For each partition that has some.
          n_bytes: The size of the work.
        """
        parts = [self.partitions[p] for p in work]
        if len(parts) < 2 or n_bytes < PARALLEL_BYTES:
            return list(map(function, parts, work.values()))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(thread_name_prefix="table")
        return list(self._pool.map(function, parts, work.values()))


def _own_folder(folder: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """A new folder for mapped files, removed with what holds it."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="table-", dir=folder, ignore_cleanup_errors=True)
