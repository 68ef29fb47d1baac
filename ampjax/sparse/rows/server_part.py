"""What one server holds of one table: some partitions with all that belongs to them, and the updates of their rows.

Whatever comes in has been checked. It may have come from another process, and what goes out may go there: arrays and plain data.
Where there is much to do, several threads share it, a partition being the least that one of them takes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.rows.byte_counts import Columns, Traffic, cut
from ampjax.sparse.rows.gradient_buffer import Received, Rows
from ampjax.sparse.rows.partition import Partition, Selection
from ampjax.sparse.rows.partition_layout import Layout, place
from ampjax.sparse.rows.row_kernels import Kernels
from ampjax.sparse.rows.row_updates import CHUNK, Job, catch_up, compute, partials
from ampjax.sparse.rows.shared_history import History

PARALLEL_BYTES = 1 << 20
"""Gradients of an update, in bytes, from which on threads share it; below, they cost more than they gain."""


@dataclass(frozen=True)
class PartSettings:
    """What makes a part.

    Args:
      layout: The table's rows and partitions.
      partitions: The numbers of those that are in this part.
      types: What rows and their state are.
      history: Shared values of past updates, and their count; copied.
      n_servers: How many servers share the machine's cores.
      folder: Where arrays are mapped files; None for ordinary memory.
    """

    layout: Layout
    partitions: tuple[int, ...]
    types: RowTypes
    history: History
    n_servers: int
    folder: Path | None = None


class Part:
    """Partitions of a table on one server, empty at first.

    Args:
      settings: What is in it.
      kernels: The optimizer's compiled functions.
      traffic: What its pulls and pushes are added to.
    """

    def __init__(self, settings: PartSettings, kernels: Kernels, traffic: Traffic):
        layout, history = settings.layout, settings.history
        self._settings, self._layout, self._kernels, self._traffic = settings, layout, kernels, traffic
        self._history = copy.deepcopy(history)
        seen = history.version if history.capacity else None
        self._partitions = {
            p: Partition(p, layout.size(p), settings.types, seen, settings.folder) for p in settings.partitions
        }
        self._received: dict[int, Received] = {}
        self._prepared: dict[int, Callable[[], None]] = {}
        self._pool: ThreadPoolExecutor | None = None

    # ---- some rows ---------------------------------------------------------------------------------------------------

    def pull(
        self, rows: Mapping[int, np.ndarray], wire_dtype: np.dtype, columns: Columns = None
    ) -> dict[int, np.ndarray]:
        """Rows of some partitions, or some columns of them, in the dtype in which they travel: fresh arrays.

        Args:
          rows: By partition the numbers of its rows, `[n]`, each once.
          wire_dtype: In what they travel.
          columns: Which of their columns do.
        """
        self._catch_up(self._select(rows))
        result = {}
        for p, local in rows.items():
            # `take` is twice as fast as indexing, and would copy the whole partition were that cut before.
            taken = np.take(self._partitions[p].arrays[0], local, 0, mode="clip")
            result[p] = cut(taken, columns).astype(wire_dtype, order="C", copy=False)
            self._traffic.add(local, pulled=result[p])
        return result

    def receive(self, update: int, work: Mapping[int, Rows], columns: Columns = None) -> None:
        """One client's row gradients for an update: whole rows again, zero where nothing came.

        Args:
          update: The update's number.
          work: By partition its rows, each once, and their gradients as they have travelled.
          columns: Which columns have.
        """
        received = self._received.setdefault(update, Received(self._settings.types.dtype))
        for p, (local, grads) in work.items():
            self._traffic.add(local, pushed=grads)
            whole = grads
            if columns is not None:
                whole = np.zeros((len(grads), *self._settings.types.shape), grads.dtype)
                cut(whole, columns)[:] = grads
            received.add(p, local, whole)

    def send(self, update: int, wire_dtype: np.dtype) -> dict[int, Rows]:
        """What an update has gathered, as it travels.

        Raises:
          TableError: If a sum has overflowed.
        """
        result = {p: (local, grads.astype(wire_dtype, copy=False)) for p, (local, grads) in self.rows(update).items()}
        for local, grads in result.values():
            self._traffic.add(local, pulled=grads)
        return result

    # ---- updates -----------------------------------------------------------------------------------------------------

    def rows(self, update: int) -> dict[int, Rows]:
        """By touched partition an update's rows, each once in rising order, and the sums of their gradients.

        Raises:
          TableError: If a sum has overflowed.
        """
        return self._received[update].rows() if update in self._received else {}

    def check(self, update: int) -> None:
        """Whether an update's gradients can be applied.

        Raises:
          TableError: If a sum has overflowed.
        """
        self.rows(update)

    def partials(self, update: int, turn: int, shared: Sequence[Any]) -> list[list[np.ndarray]]:
        """One round's reductions over all rows in here, in as many pieces as threads made them.

        Args:
          update: The update's number.
          turn: The round.
          shared: Shared values for the round.
        """
        jobs = self._jobs(self.rows(update)) or [Job(Selection(()), ())]
        n_untouched = sum(part.n_rows for part in self._partitions.values()) - sum(len(job.rows) for job in jobs)
        first = partials(self._kernels, jobs[0], turn, shared, n_untouched)
        return [first, *self._each(lambda job: partials(self._kernels, job, turn, shared, 0), jobs[1:])]

    def prepare(self, update: int, shared: Sequence[Any]) -> None:
        """Computes an update of touched rows; none of them changes before `commit`.

        Args:
          update: Its number.
          shared: Its shared values.
        """
        if self._history.is_full:
            self.settle()

        def new_rows(job: Job) -> list[np.ndarray]:
            self._catch_up(job.rows)
            return compute(self._kernels, job, shared)

        jobs = self._jobs(self.rows(update))
        results = self._each(new_rows, jobs)

        def write() -> None:
            self._history.append(shared)
            for job, new in zip(jobs, results, strict=True):
                job.rows.write(new, self._history.version)

        self._prepared[update] = write

    def commit(self, update: int) -> None:
        """Makes an update that was prepared, with nothing in between. Its gradients can still be read."""
        self._prepared.pop(update)()

    def drop(self, update: int) -> None:
        """Forgets an update. May be called from any thread."""
        self._received.pop(update, None)
        self._prepared.pop(update, None)

    # ---- all rows ----------------------------------------------------------------------------------------------------

    def read(self, start: int, stop: int) -> dict[int, list[np.ndarray]]:
        """What is in here of rows start to stop of the table, by partition: parameters, states and counts as they are. Views."""
        return {
            p: [array[own] for array in part.everything]
            for p, part in self._partitions.items()
            for _, own in [self._layout.within(p, start, stop)]
        }

    def write(self, start: int, stop: int, rows: Mapping[int, Sequence[np.ndarray]]) -> None:
        """Replaces what is in here of rows start to stop; rows from outside lack the last array, the counts, which stay as they are."""
        for p, arrays in rows.items():
            _, own = self._layout.within(p, start, stop)
            for array, new in zip(self._partitions[p].everything, arrays, strict=False):
                array[own] = new

    def settle(self) -> None:
        """Catches up all rows, so that the history is no longer needed."""
        for part in self._partitions.values() if self._history.length else ():
            for start in range(0, part.n_rows, CHUNK):
                self._catch_up(Selection(((part, np.arange(start, min(start + CHUNK, part.n_rows))),)))
        self._history.clear()

    def history(self) -> History:
        """Shared values of past updates."""
        return self._history

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _catch_up(self, rows: Selection) -> None:
        catch_up(self._kernels, self._history, rows)

    def _select(self, rows: Mapping[int, np.ndarray]) -> Selection:
        return Selection(tuple((self._partitions[p], local) for p, local in rows.items()))

    def _jobs(self, work: Mapping[int, Rows]) -> list[Job]:
        """An update's work as few kernel calls: one, or several where there is much to do."""
        sizes = [grads.nbytes for _, grads in work.values()]
        n_threads = -(-_n_threads() // self._settings.n_servers) if sum(sizes) >= PARALLEL_BYTES else 1
        groups: dict[int, list[int]] = {}
        for p, thread in zip(work, place(sizes, n_threads), strict=True):
            groups.setdefault(thread, []).append(p)
        return [
            Job(self._select({p: work[p][0] for p in group}), tuple(work[p][1] for p in group))
            for _, group in sorted(groups.items())
        ]

    def _each(self, function: Callable[[Job], Any], jobs: Sequence[Job]) -> list[Any]:
        """The function's results for jobs; NumPy and XLA let go of the interpreter, so that threads can help."""
        if len(jobs) < 2:
            return [function(job) for job in jobs]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_n_threads(), thread_name_prefix="table")
        return list(self._pool.map(function, jobs))


def _n_threads() -> int:
    return os.cpu_count() or 1
