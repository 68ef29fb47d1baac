"""A server's work on rows in pieces: one where there is little to do, else one for each of several threads.

NumPy and XLA let go of the interpreter, so that threads help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from ampjax.sparse.rows import parallel_calls
from ampjax.sparse.rows.gradient_buffer import Rows
from ampjax.sparse.rows.partition import Partition, Selection
from ampjax.sparse.rows.partition_layout import place_evenly
from ampjax.sparse.rows.row_updates import RowJob


class JobPool:
    """A pool of threads that cuts updates into jobs and runs the jobs.

    Args:
      partitions: A server's partitions of a table, by number.
      n_servers: How many servers share the machine's cores.
    """

    def __init__(self, partitions: Mapping[int, Partition], n_servers: int):
        self._partitions = partitions
        self._n_servers = n_servers
        self._threads: ThreadPoolExecutor | None = None

    def select(self, rows: Mapping[int, Any]) -> Selection:
        """Rows of several partitions as one selection.

        Args:
          rows: By partition the numbers of its rows, `[n]`.
        """
        return Selection(tuple((self._partitions[p], local) for p, local in rows.items()))

    def cut(self, work: Mapping[int, Rows]) -> list[RowJob]:
        """Divides an update's rows evenly, a partition into several jobs if need be.

        Args:
          work: By partition, its rows and their gradients.

        Returns:
          The jobs; none where there are no rows.
        """
        nbytes = sum(grads.nbytes for _, grads in work.values())
        spans = self.spans(
            {p: len(local) for p, (local, _) in work.items()},
            nbytes,
        )
        return [self._job(work, span) for span in spans]

    def cut_between_partitions(self, work: Mapping[int, Rows]) -> list[RowJob]:
        """Divides an update's rows, but no partition: so sums over a table of one partition have the same bits on any number of cores.

        Args:
          work: By partition, its rows and their gradients.

        Returns:
          The jobs, about even by the bytes of their gradients; none where there are no rows.
        """
        sizes = [grads.nbytes for _, grads in work.values()]
        groups: dict[int, dict[int, slice]] = {}
        for p, thread in zip(
            work,
            place_evenly(
                sizes,
                self._n_jobs(sum(sizes)),
            ),
            strict=True,
        ):
            groups.setdefault(thread, {})[p] = slice(None)
        result = []
        for _, span in sorted(groups.items()):
            result.append(self._job(work, span))
        return result

    def spans(
        self,
        counts: Mapping[int, int],
        nbytes: int,
    ) -> list[dict[int, slice]]:
        """Divides rows evenly.

        Args:
          counts: By partition its number of rows.
          nbytes: How much there is to do.

        Returns:
          For each piece its rows, by partition; no piece is empty.
        """
        total = sum(counts.values())
        n = min(total, self._n_jobs(nbytes))
        pieces = []
        for start, stop in pairwise(total * i // n for i in range(n + 1)) if n else ():
            piece = {}
            first = 0
            for p, count in counts.items():
                rows = slice(
                    max(start - first, 0),
                    min(stop - first, count),
                )
                first += count
                if rows.start < rows.stop:
                    piece[p] = rows
            pieces.append(piece)
        return pieces

    def run(
        self,
        function: Callable[..., Any],
        *pieces: Sequence[Any],
    ) -> list[Any]:
        """Calls a function on each piece of work, in threads if there are several.

        Args:
          function: Takes a piece.
          *pieces: The pieces; several sequences are gone through together, as `map` does.

        Returns:
          The function's results, in the pieces' order.
        """
        if len(pieces[0]) < 2:
            return [function(*piece) for piece in zip(*pieces, strict=True)]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                parallel_calls.n_threads(), thread_name_prefix="table"
            )
        return list(self._threads.map(function, *pieces))

    def _job(
        self,
        work: Mapping[int, Rows],
        span: Mapping[int, slice],
    ) -> RowJob:
        """The job of some rows of each partition."""
        rows = self.select({p: work[p][0][some] for p, some in span.items()})
        return RowJob(
            rows,
            tuple(work[p][1][some] for p, some in span.items()),
        )

    def _n_jobs(self, nbytes: int) -> int:
        if nbytes >= parallel_calls.PARALLEL_BYTES:
            return -(-parallel_calls.n_threads() // self._n_servers)
        return 1
