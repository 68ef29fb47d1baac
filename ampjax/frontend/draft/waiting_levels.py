"""In which order rows can be computed that wait for one another: level by level, each as early as possible."""

from __future__ import annotations

import numpy as np

from ampjax.frontend.loops.level_passes import note_levels
from ampjax.frontend.loops.table_passes import wide


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
    note_levels(
        wide(waiting),
        wide(awaited),
        np.zeros(n + 1, np.int64),
        np.empty(len(waiting), np.int64),
        np.zeros(n, np.int64),
        np.empty(n, np.int64),
        levels,
    )
    return levels
