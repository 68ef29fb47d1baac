"""The layout of a table: the partition of each row, and the server of each partition. Integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class SplitKey(NamedTuple):
    """The key of one split of a table: a new split has other parts.

    Args:
      table: The table's number.
      split: The split's.
    """

    table: int
    split: int


@dataclass(frozen=True)
class PartitionLayout:
    """The assignment of rows to partitions in turn: row r is row `r // P` of partition `r % P`.

    Vocabularies are mostly sorted by frequency, so contiguous ranges would leave one partition with nearly all the work.

    Args:
      n_rows: Rows in the table.
      n_partitions: P.
    """

    n_rows: int
    n_partitions: int

    def size(self, partition: int) -> int:
        """The number of rows in a partition; sizes differ by one at most."""
        return (self.n_rows - partition + self.n_partitions - 1) // self.n_partitions

    def group(
        self,
        row_ids: np.ndarray,
    ) -> tuple[np.ndarray, list[tuple[int, slice]], np.ndarray]:
        """Sorts row ids by their partitions, stably.

        Args:
          row_ids: `[n]`, each in `[0, n_rows)`.

        Returns:
          The order, `[n]`; for each partition that holds some its number and where they stand in that order; and in that
          order the rows' numbers within their partitions, `[n]`, int32 where the table allows.
        """
        if self.n_rows <= np.iinfo(np.int32).max:
            small = np.int32
        else:
            small = np.int64
        if self.n_partitions == 1:  # nothing to sort
            n = len(row_ids)
            return (
                np.arange(n),
                [
                    (
                        0,
                        slice(
                            0,
                            n,
                        ),
                    )
                ]
                if n
                else [],
                row_ids.astype(small),
            )
        local, partition = np.divmod(row_ids, self.n_partitions)
        order = np.argsort(partition, kind="stable")
        ends = np.cumsum(np.bincount(partition, minlength=self.n_partitions)).tolist()
        spans = []
        for p, (start, end) in enumerate(pairwise([0, *ends])):
            if start < end:
                spans.append((p, slice(start, end)))
        return order, spans, local[order].astype(small)

    def count(self, row_ids: np.ndarray) -> np.ndarray:
        """Counts some rows by partition.

        Args:
          row_ids: `[n]`, each in `[0, n_rows)`.

        Returns:
          `[n_partitions]`, integers.
        """
        return np.bincount(row_ids % self.n_partitions, minlength=self.n_partitions)

    def row_ids(self, partition: int, local: np.ndarray) -> np.ndarray:
        """The table's numbers of a partition's rows.

        Args:
          partition: The partition's number.
          local: `[n]`, numbers of rows within the partition.

        Returns:
          `[n]`, int64.
        """
        return local.astype(np.int64) * self.n_partitions + partition

    def within(
        self,
        partition: int,
        start: int,
        stop: int,
    ) -> tuple[slice, slice]:
        """Finds the slices of a partition's rows in a block of the table's rows.

        Returns:
          The places of the partition's rows in the block, and their numbers within the partition.
        """
        offset = (partition - start) % self.n_partitions
        first = (start + offset) // self.n_partitions
        n = max(
            0,
            (stop - start - offset + self.n_partitions - 1) // self.n_partitions,
        )
        return slice(offset, stop - start, self.n_partitions), slice(first, first + n)


def place_evenly(
    sizes: Sequence[int],
    n_servers: int,
    load: Sequence[int] = (),
) -> tuple[int, ...]:
    """A server for each part, evenly by size: the largest first, each to the server that has least.

    Args:
      sizes: Bytes, or rows, of each partition and whole variable.
      n_servers: At least 1.
      load: What each server has already; nothing by default.

    >>> place_evenly([5, 3, 3, 1], 2)
    (0, 1, 1, 0)
    >>> place_evenly([5, 3, 3, 1], 2, load=[6, 0])
    (1, 1, 0, 1)
    """
    load = list(load) or [0] * n_servers
    result = [0] * len(sizes)
    for part in sorted(
        range(len(sizes)),
        key=lambda i: -sizes[i],
    ):
        result[part] = min(
            range(n_servers),
            key=lambda s: load[s],
        )
        load[result[part]] += sizes[part]
    return tuple(result)
