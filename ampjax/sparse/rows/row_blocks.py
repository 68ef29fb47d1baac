"""A table's arrays as a stream of blocks of consecutive rows: how rows get in, out, to files and to other partitions.

A block is its first row's number and the arrays of its rows, parameters first. No more than a block is copied at a time, so
tables may be larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ampjax.sparse.rows.row_gradients import check_finite
from ampjax.sparse.rows.row_kernels import RowKernels

BLOCK_BYTES = 1 << 24

Block = tuple[int, list[np.ndarray]]


def of_values(values: Any, kernels: RowKernels) -> Iterator[Block]:
    """New rows with their first optimizer state.

    Raises:
      TableError: If a value is not finite.
    """
    for start, stop in ranges(values.shape[0], row_bytes(values.shape[1:], np.dtype(values.dtype))):
        rows = check_finite(np.array(values[start:stop]), range(start, stop), "values")
        yield start, [rows, *kernels.init(rows)]


def of_arrays(arrays: Sequence[np.ndarray]) -> Iterator[Block]:
    """Arrays of all rows, mapped files for example."""
    for start, stop in ranges(len(arrays[0]), row_bytes(arrays[0].shape[1:], arrays[0].dtype)):
        yield start, [np.asarray(array[start:stop]) for array in arrays]


def row_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    """Bytes of one row."""
    return math.prod(shape) * dtype.itemsize


def ranges(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """From and to where blocks go."""
    size = max(1, BLOCK_BYTES // max(1, row_bytes))
    return ((start, min(start + size, n_rows)) for start in range(0, n_rows, size))
