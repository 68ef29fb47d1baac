"""Layouts of rows for loops in steps of a few row counts: level after level, each level cut into steps; integers of the host.

A step computes neighbouring rows: so many as one of the row counts says, the largest of which is at most `MOST_ROWS`. Steps are done in rounds: in
a round all steps of the largest row count come first, then those of the next one, and so on. So one compiled program does with any numbers of levels
and of rows, and no step computes many rows that nobody needs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ampjax.frontend.loops.level_passes import sorted_rows
from ampjax.utils.row_ranges import ranges

MOST_ROWS = 128
"""Rows of a step at most."""

EIGHTHS = (8, 5, 3, 1)
"""The row counts as parts of the largest one."""


@dataclass(frozen=True, eq=False)
class StepLayout:
    """The places of rows, and the steps that compute the rows.

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
    largest: int,
    start: float,
) -> StepLayout:
    """Lays rows out.

    Args:
      levels: `[rows]`: the level of each row, from 0.
      order: `[rows]`: rows of a level lie in the order of these numbers.
      largest: The largest row count.
      start: What it costs to start a step, in rows that could be computed meanwhile.
    """
    by_level = sorted_rows(levels, sorted_rows(order))
    counts = np.bincount(levels)
    counts = counts[counts > 0]
    steps = _steps(counts.tobytes(), largest, start)
    at = np.zeros(len(levels), np.int64)
    at[by_level] = ranges(steps.of_level, counts)
    return StepLayout(at, steps.firsts, steps.starts, steps.n_rows)


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps of levels of some sizes; see `StepLayout`.

    Args:
      of_level: `[levels]`: where each level's rows begin.
      firsts: As there.
      starts: As there.
      n_rows: As there.
    """

    of_level: np.ndarray
    firsts: np.ndarray
    starts: np.ndarray
    n_rows: int


@functools.lru_cache(maxsize=32)  # loops in both directions, and later epochs, have the same levels
def _steps(
    counts_in_bytes: bytes,
    largest: int,
    start: float,
) -> _Steps:
    """Cuts levels into steps, given the rows of each level."""
    counts = np.frombuffer(counts_in_bytes, np.int64)
    sizes = np.array(row_counts(largest), np.int64)
    kinds, which = np.unique(counts, return_inverse=True)
    cuts = [_cut(int(n), tuple(sizes.tolist()), start) for n in kinds]
    n_steps = np.array([len(cut) for cut in cuts], np.int64)
    first_cut = np.cumsum(n_steps) - n_steps
    every_cut = np.concatenate(
        [
            np.zeros(
                0,
                np.int64,
            ),
            *cuts,
        ]
    ).astype(np.int64)
    number = every_cut[
        ranges(
            first_cut[which],
            n_steps[which],
        )
    ]
    ends = np.cumsum(sizes[number])
    firsts = ends - sizes[number]
    of_level = np.cumsum(n_steps[which]) - n_steps[which]
    return _Steps(
        firsts[of_level],
        firsts,
        _rounds(number, len(sizes)),
        int(ends[-1]) if len(ends) else 0,
    )


@functools.lru_cache(maxsize=4096)
def _cut(
    n: int,
    sizes: tuple[int, ...],
    start: float,
) -> np.ndarray:
    """Cuts a level of so many rows into row counts at the least cost, and returns the counts' numbers, the largest counts first."""
    n_full = max(0, n // sizes[0] - 1)
    rest = n - n_full * sizes[0]
    _, ends = _cheapest(sizes, start)
    found = [0] * n_full
    while rest > 0:
        number = int(ends[rest])
        found.append(number)
        rest -= sizes[number]
    return np.sort(np.array(found))


@functools.lru_cache(maxsize=256)
def _cheapest(sizes: tuple[int, ...], start: float) -> tuple[list[float], list[int]]:
    """For each number of rows below twice the largest row count: the least that its steps cost, and the number of the last one's row count."""
    costs = [0.0]
    ends = [0]
    for n in range(1, 2 * sizes[0]):
        ways = []
        for number, size in enumerate(sizes):
            ways.append((costs[max(n - size, 0)] + start + size, number))
        cost, number = min(ways)
        costs.append(cost)
        ends.append(number)
    return costs, ends


def _rounds(number: np.ndarray, n_sizes: int) -> np.ndarray:
    """`[rounds, row counts + 1]`: where the steps of each row count begin in each round, given the number of each step's row count."""
    if not len(number):
        return np.zeros(
            (0, n_sizes + 1),
            np.int64,
        )
    is_new = np.diff(number) < 0
    own = np.concatenate([[0], np.cumsum(is_new)])
    key = own * n_sizes + number
    asked = np.arange(own[-1] + 1)[:, None] * n_sizes + np.arange(n_sizes + 1)
    return np.searchsorted(key, asked)
