"""Rows that follow one another, for many ranges at once."""

from __future__ import annotations

import numpy as np


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers `starts[i] ... starts[i] + sizes[i] - 1` for each `i`, one after the other.

    Args:
      starts: `[n]` integers.
      sizes: `[n]` integers of at least 0.

    Returns:
      `[sum(sizes)]`.
    """
    ends = sizes.cumsum()
    return np.arange(sizes.sum()) + (starts - (ends - sizes)).repeat(sizes)
