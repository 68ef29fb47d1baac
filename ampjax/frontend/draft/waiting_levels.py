"""In which order rows can be computed that wait for one another: level by level, each as early as possible."""

from __future__ import annotations

import numpy as np

from ampjax.utils.row_ranges import ranges

NARROW = 8
"""Levels of so many rows are gone through row by row."""


def waiting_levels(
    n: int,
    waiting: np.ndarray,
    awaited: np.ndarray,
) -> np.ndarray:
    """Computes the level of each row: 0 for a row that waits for none, else one more than the highest level among the awaited rows.

    Args:
      n: How many rows there are.
      waiting: `[pairs]`: rows that wait.
      awaited: `[pairs]`: the row that each waits for.

    Returns:
      `[n]`; -1 for rows that wait for themselves, and for those that wait for such.

    >>> waiting_levels(5, np.array([1, 2, 2, 3, 4]), np.array([0, 0, 1, 4, 3])).tolist()
    [0, 1, 2, -1, -1]
    """
    levels = np.full(n, -1)
    # Sorted by awaited row, the rows that wait for row r are at first[r]:first[r + 1].
    order = np.argsort(awaited, kind="stable")
    first = np.searchsorted(awaited[order], np.arange(n + 1))
    # Rows that wait for nothing begin; `left` counts what the others still wait for.
    left = np.bincount(waiting, minlength=n)
    ready = np.flatnonzero(left == 0)
    level = 0
    while len(ready):
        if len(ready) <= NARROW:
            # A chain has as many levels as rows: calls of NumPy for each would take most of the time.
            ready, level = _narrow_levels(ready, level, waiting[order], first, left, levels)
            continue
        levels[ready] = level
        level += 1
        # One wait ends for each edge from a ready row, counted once per edge.
        freed = waiting[order[ranges(first[ready], first[ready + 1] - first[ready])]]
        np.subtract.at(left, freed, 1)
        # A row is ready after its last wait; rows in a circle never are, and keep -1.
        above = np.unique(freed)
        ready = above[left[above] == 0]
    return levels


def _narrow_levels(
    ready: np.ndarray,
    level: int,
    waiting: np.ndarray,
    first: np.ndarray,
    left: np.ndarray,
    levels: np.ndarray,
) -> tuple[np.ndarray, int]:
    """The rows and the number of the next level that is not narrow; notes the levels of those before it."""
    waits = np.ascontiguousarray(waiting).data
    begins = np.ascontiguousarray(first).data
    missing = left.data
    noted = levels.data
    rows = ready.tolist()
    while 0 < len(rows) <= NARROW:
        above = []
        for row in rows:
            noted[row] = level
            for number in range(begins[row], begins[row + 1]):
                other = waits[number]
                missing[other] -= 1
                if not missing[other]:
                    above.append(other)
        rows = sorted(above)
        level += 1
    return np.array(rows, np.int64), level
