"""How the rows of a loop lie that goes on in steps of a few row counts: level after level, each level cut into steps; integers of the host.

A step computes neighbouring rows: so many as one of the row counts says, the largest of which is at most `MOST_ROWS`. Steps are done in rounds: in
a round all steps of the largest row count come first, then those of the next one, and so on. So one compiled program does with any numbers of levels
and of rows, and no step computes many rows that nobody needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.utils.row_ranges import ranges

MOST_ROWS = 128
"""Rows of a step at most."""

N_SIZES = 4
"""How many row counts there are at most: each is about half of the one before."""


@dataclass(frozen=True, eq=False)
class StepLayout:
    """Where rows lie, and in which steps they are computed.

    Args:
      at: `[rows]`: where each of the given rows lies.
      firsts: `[steps]`: where each step's rows begin.
      starts: `[rounds, row counts + 1]`: at which step each row count's steps of each round begin, and where the round ends.
      n_rows: How many rows there are, copies included.
    """

    at: np.ndarray
    firsts: np.ndarray
    starts: np.ndarray
    n_rows: int


def row_counts(most: int) -> list[int]:
    """The row counts of a loop, the largest first.

    Args:
      most: The largest.

    >>> row_counts(64), row_counts(3), row_counts(0)
    ([64, 32, 16, 8], [3, 2, 1], [])
    """
    sizes: list[int] = []
    size = most
    while size and len(sizes) < N_SIZES:
        sizes.append(size)
        size = -(-size // 2) if size > 1 else 0
    return sizes


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
    largest: int,
) -> StepLayout:
    """Lays rows out.

    Args:
      levels: `[rows]`: the level of each row, from 0.
      order: `[rows]`: rows of a level lie in the order of these numbers.
      largest: The largest row count.
    """
    sizes = np.array(row_counts(largest), np.int64)
    by_level = np.lexsort((order, levels))
    counts = np.bincount(levels)
    counts = counts[counts > 0]
    kinds, which = np.unique(counts, return_inverse=True)
    cuts = [_cut(int(n), sizes.tolist()) for n in kinds]
    n_steps = np.array([len(cut) for cut in cuts], np.int64)
    first_cut = np.cumsum(n_steps) - n_steps
    every_cut = np.concatenate([np.zeros(0, np.int64), *cuts]).astype(np.int64)
    number = every_cut[ranges(first_cut[which], n_steps[which])]
    ends = np.cumsum(sizes[number])
    firsts = ends - sizes[number]
    of_level = np.cumsum(n_steps[which]) - n_steps[which]
    at = np.zeros(len(levels), np.int64)
    at[by_level] = ranges(firsts[of_level], counts)
    return StepLayout(
        at,
        firsts,
        _rounds(number, len(sizes)),
        int(ends[-1]) if len(ends) else 0,
    )


def _cut(n: int, sizes: Sequence[int]) -> np.ndarray:
    """The numbers of the row counts that a level of so many rows is cut into.

    A row count is taken that leaves at most a quarter of its rows over; else the largest that is filled.
    """
    found = []
    while n > 0:
        fitting = [i for i, size in enumerate(sizes) if size >= n]
        filled = [i for i, size in enumerate(sizes) if size <= n]
        if fitting and (not filled or (sizes[fitting[-1]] - n) * 4 <= sizes[fitting[-1]]):
            number = fitting[-1]
        else:
            number = filled[0]
        found.append(number)
        n -= sizes[number]
    return np.array(found)


def _rounds(number: np.ndarray, n_sizes: int) -> np.ndarray:
    """`[rounds, row counts + 1]`: where the steps of each row count begin in each round, given the number of each step's row count."""
    if not len(number):
        return np.zeros((0, n_sizes + 1), np.int64)
    is_new = np.diff(number) < 0
    own = np.concatenate([[0], np.cumsum(is_new)])
    key = own * n_sizes + number
    asked = np.arange(own[-1] + 1)[:, None] * n_sizes + np.arange(n_sizes + 1)
    return np.searchsorted(key, asked)
