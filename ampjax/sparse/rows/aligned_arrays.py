"""NumPy arrays that JAX uses on a CPU without a copy: they start at a multiple of 64 bytes, as NumPy's own seldom do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A new array, not filled, whose memory XLA can compute with.

    Args:
      shape: Its shape.
      dtype: Its dtype.

    >>> aligned_empty((3, 5), np.float32).ctypes.data % ALIGNMENT
    0
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    address = memory.__array_interface__["data"][0]  # `ctypes.data` takes ten times as long
    start = -address % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)
