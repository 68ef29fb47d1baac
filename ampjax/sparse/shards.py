"""A table's rows in partitions on servers, and the updates of them: what is done by row, once everything has been checked.

The paper's parameter servers in one process. Rows of one server's partitions go through one kernel call; where there is much
to do, several threads share it, a partition being the least that one of them takes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.sparse import blocks
from ampjax.sparse.blocks import Block
from ampjax.sparse.history import History
from ampjax.sparse.kernels import Kernels
from ampjax.sparse.layout import Layout, place
from ampjax.sparse.partition import Partition, Selection
from ampjax.sparse.settings import TableSettings
from ampjax.sparse.updates import CHUNK, Job, catch_up, compute, partials

PARALLEL_BYTES = 1 << 20
"""Gradients of an update, in bytes, from which on threads share it; below, they cost more than they gain."""

Work = Mapping[int, tuple[np.ndarray, np.ndarray]]
"""For each touched partition its rows, each once, and their gradients."""


class Shards:
    """Partitions, empty at first, each on its server.

    Args:
      settings: The table's settings.
      n_partitions: P, which differs from the settings' after a new split.
      kernels: The rule's compiled functions.
      history: Shared values of past updates, and their count.
    """

    def __init__(self, settings: TableSettings, n_partitions: int, kernels: Kernels, history: History):
        self.layout = Layout(settings.n_rows, n_partitions)
        self.placement = settings.placement(n_partitions)
        self._n_servers, self._kernels, self._history = settings.n_servers, kernels, history
        self._folder = _own_folder(settings.folder)
        path = Path(self._folder.name) if self._folder else None
        seen = history.version if history.capacity else None
        sizes = [self.layout.size(p) for p in range(n_partitions)]
        self.partitions = [Partition(p, size, kernels.rule, seen, path) for p, size in enumerate(sizes)]
        self._pool: ThreadPoolExecutor | None = None

    # ---- all rows ----------------------------------------------------------------------------------------------------

    def fill(self, rows: Iterable[Block]) -> None:
        """Writes all rows."""
        blocks.fill(self.partitions, self.layout, rows)

    def blocks(self) -> Iterator[Block]:
        """All rows in order, with their states and counts as they are."""
        return blocks.of_partitions(self.partitions, self.layout)

    def whole(self) -> list[np.ndarray]:
        """Parameters and states of all rows, `[n_rows, ...]` each: copies."""
        result = [np.empty((self.layout.n_rows, *array.shape[1:]), array.dtype) for array in self.partitions[0].arrays]
        for start, arrays in self.blocks():
            for joined, array in zip(result, arrays, strict=False):  # counts are left out
                joined[start : start + len(array)] = array
        return result

    def settle(self) -> None:
        """Catches up all rows, so that the history is no longer needed."""
        for part in self.partitions if self._history.length else ():
            for start in range(0, part.n_rows, CHUNK):
                self._catch_up(Selection(((part, np.arange(start, min(start + CHUNK, part.n_rows))),)))
        self._history.clear()

    # ---- some rows ---------------------------------------------------------------------------------------------------

    def catch_up(self, rows: Mapping[int, np.ndarray]) -> None:
        """Catches up some rows of some partitions; each row once."""
        self._catch_up(self._select(rows))

    def partials(self, turn: int, work: Work, shared: Sequence[Any]) -> list[np.ndarray]:
        """One round's reductions over all rows: each server's own, put together."""
        jobs = self._jobs(work) or [Job(Selection(()), ())]
        n_touched = sum(len(job.rows) for job in jobs)
        first = partials(self._kernels, jobs[0], turn, shared, self.layout.n_rows - n_touched)
        others = self._each(lambda job: partials(self._kernels, job, turn, shared, 0), jobs[1:])
        return self._kernels.rule.combine(turn, [first, *others])

    def prepare(self, work: Work, shared: Sequence[Any]) -> Callable[[], None]:
        """Computes one update of touched rows; none of them has changed before what it gives is called."""
        if self._history.is_full:
            self.settle()

        def new_rows(job: Job) -> list[np.ndarray]:
            self._catch_up(job.rows)
            return compute(self._kernels, job, shared)

        jobs = self._jobs(work)
        results = self._each(new_rows, jobs)

        def write() -> None:
            self._history.append(shared)
            for job, new in zip(jobs, results, strict=True):
                job.rows.write(new, self._history.version)

        return write

    def _catch_up(self, rows: Selection) -> None:
        catch_up(self._kernels, self._history, rows)

    def _select(self, rows: Mapping[int, np.ndarray]) -> Selection:
        return Selection(tuple((self.partitions[p], local) for p, local in rows.items()))

    def _jobs(self, work: Work) -> list[Job]:
        """An update's work as few kernel calls: one for each server, or several where there is much to do."""
        sizes = {p: grads.nbytes for p, (_, grads) in work.items()}
        n_threads = -(-_n_threads() // self._n_servers) if sum(sizes.values()) >= PARALLEL_BYTES else 1
        groups: dict[tuple[int, int], list[int]] = {}
        for server in range(self._n_servers):
            own = [p for p in work if self.placement[p] == server]
            for p, thread in zip(own, place([sizes[p] for p in own], n_threads), strict=True):
                groups.setdefault((server, thread), []).append(p)
        return [
            Job(self._select({p: work[p][0] for p in group}), tuple(work[p][1] for p in group))
            for group in groups.values()
        ]

    def _each(self, function: Callable[[Job], Any], jobs: Sequence[Job]) -> list[Any]:
        """The function's results for jobs; NumPy and XLA let go of the interpreter, so that threads can help."""
        if len(jobs) < 2 or sum(job.nbytes for job in jobs) < PARALLEL_BYTES:
            return [function(job) for job in jobs]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_n_threads(), thread_name_prefix="table")
        return list(self._pool.map(function, jobs))


def _n_threads() -> int:
    return os.cpu_count() or 1


def _own_folder(folder: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """A new folder for mapped files, removed with what holds it."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="table-", dir=folder, ignore_cleanup_errors=True)
