"""An update's rows as kernel calls: one where there is little to do, else one for each of several threads.

A partition is the least that a thread takes. NumPy and XLA let go of the interpreter, so that threads help.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ampjax.sparse.rows.gradient_buffer import Rows
from ampjax.sparse.rows.partition import Partition, Selection
from ampjax.sparse.rows.partition_layout import place_evenly
from ampjax.sparse.rows.row_updates import RowJob

PARALLEL_BYTES = 1 << 20
"""Gradients of an update, in bytes, from which on threads share it; below, they cost more than they gain."""


class JobPool:
    """Cuts updates into jobs and runs them.

    Args:
      partitions: A server's partitions of a table, by number.
      n_servers: How many servers share the machine's cores.
    """

    def __init__(self, partitions: Mapping[int, Partition], n_servers: int):
        self._partitions, self._n_servers = partitions, n_servers
        self._threads: ThreadPoolExecutor | None = None

    def select(self, rows: Mapping[int, Any]) -> Selection:
        """Rows by partition, `{partition: [n]}`, as one selection."""
        return Selection(tuple((self._partitions[p], local) for p, local in rows.items()))

    def cut(self, work: Mapping[int, Rows]) -> list[RowJob]:
        """Divides an update's rows among kernel calls, evenly by the bytes of their gradients.

        Args:
          work: By partition, its rows and their gradients.

        Returns:
          The jobs; none where there are no rows.
        """
        sizes = [grads.nbytes for _, grads in work.values()]
        n_threads = -(-_n_threads() // self._n_servers) if sum(sizes) >= PARALLEL_BYTES else 1
        groups: dict[int, list[int]] = {}
        for p, thread in zip(work, place_evenly(sizes, n_threads), strict=True):
            groups.setdefault(thread, []).append(p)
        return [
            RowJob(self.select({p: work[p][0] for p in group}), tuple(work[p][1] for p in group))
            for _, group in sorted(groups.items())
        ]

    def run(self, function: Callable[[RowJob], Any], jobs: Sequence[RowJob]) -> list[Any]:
        """Calls a function on each job, in threads if there are several.

        Returns:
          The function's results, in the jobs' order.
        """
        if len(jobs) < 2:
            return [function(job) for job in jobs]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_n_threads(), thread_name_prefix="table")
        return list(self._threads.map(function, jobs))


def _n_threads() -> int:
    return os.cpu_count() or 1
