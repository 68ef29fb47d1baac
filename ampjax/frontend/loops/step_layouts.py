"""Layouts of rows for loops in steps of a few row counts: level after level, each level cut into steps; integers of the host.

A step computes neighbouring rows: so many as one of the row counts says, the largest of which is at most `MOST_ROWS`. Steps are done in rounds: in
a round all steps of the largest row count come first, then those of the next one, and so on. So one compiled program does with any numbers of levels
and of rows, and no step computes many rows that nobody needs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ampjax.frontend.loops.level_passes import cut_levels, sorted_rows
from ampjax.utils.row_ranges import ranges

MOST_ROWS = 128
"""Rows of a step at most."""

EIGHTHS = (8, 5, 3, 1)
"""The row counts as parts of the largest one."""


@dataclass(frozen=True, eq=False)
class StepLayout:
    """The places of rows, and the steps that compute the rows, for several batches.

    Args:
      at: `[rows]`: where each of the given rows lies in its batch.
      firsts: `[batches, most steps]`: where each step's rows begin; 0 behind the last one.
      starts: `[batches, most rounds, row counts + 1]`: at which step each row count's steps of each round begin, and where the round ends; 0 behind
        the last round.
      n_steps: `[batches]`.
      n_rounds: `[batches]`.
      n_rows: `[batches]`: how many rows there are, copies included.
    """

    at: np.ndarray
    firsts: np.ndarray
    starts: np.ndarray
    n_steps: np.ndarray
    n_rounds: np.ndarray
    n_rows: np.ndarray


def row_counts(most: int) -> list[int]:
    """The row counts of a loop, the largest first.

    Args:
      most: The largest.

    >>> row_counts(64), row_counts(3), row_counts(0)
    ([64, 40, 24, 8], [3, 2, 1], [])
    """
    sizes = [-(-most * eighths // 8) for eighths in EIGHTHS]
    return list(dict.fromkeys(size for size in sizes if size))


def largest_count(most: int) -> int:
    """The largest row count of a loop whose widest level has so many rows: few different ones, so that few shapes are compiled.

    Args:
      most: Rows of the widest level.

    >>> [largest_count(n) for n in (0, 1, 5, 9, 64, 300)]
    [0, 1, 5, 16, 64, 128]
    """
    return min(most if most < 8 else -(-most // 8) * 8, MOST_ROWS)


def lay_out(
    levels: np.ndarray,
    order: np.ndarray,
    batch: np.ndarray,
    counts: np.ndarray,
    largest: int,
    start: float,
) -> StepLayout:
    """Lays rows out.

    Args:
      levels: `[rows]`: the level of each row, from 0.
      order: `[rows]`: rows of a level lie in the order of these numbers.
      batch: `[rows]`: the batch of each row.
      counts: `[batches, levels]`: the rows of each level.
      largest: The largest row count.
      start: What it costs to start a step, in rows that could be computed meanwhile.
    """
    n_batches, n_levels = counts.shape
    sizes = row_counts(largest)
    n_sizes = len(sizes)
    most_rows = int(counts.sum(1).max(initial=0))  # each step has one at least
    of_level = np.zeros_like(counts)
    firsts = np.zeros((n_batches, most_rows), np.int64)
    starts = np.zeros((n_batches, n_levels, n_sizes + 1), np.int64)
    totals = np.zeros((n_batches, 3), np.int64)
    cut_levels(
        counts,
        np.array(sizes, np.int64),
        _last_counts(tuple(sizes), start),
        np.zeros(n_sizes, np.int64),
        of_level,
        firsts,
        starts,
        totals,
    )
    by_level = sorted_rows(batch * n_levels + levels, sorted_rows(order))
    at = np.zeros(len(levels), np.int64)
    at[by_level] = ranges(of_level.ravel(), counts.ravel())
    return StepLayout(at, firsts, starts, *totals.T)


@functools.lru_cache(maxsize=256)
def _last_counts(sizes: tuple[int, ...], start: float) -> np.ndarray:
    """For each number of rows below twice the largest row count: the number of the last step's row count, at the least cost of all steps."""
    costs = [0.0]
    ends = [0]
    for n in range(1, 2 * sizes[0] if sizes else 1):
        ways = []
        for number, size in enumerate(sizes):
            ways.append((costs[max(n - size, 0)] + start + size, number))
        cost, number = min(ways)
        costs.append(cost)
        ends.append(number)
    return np.array(ends, np.int64)
