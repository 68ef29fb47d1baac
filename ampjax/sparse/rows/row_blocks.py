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
    """Yields new rows with their first optimizer state, block by block.

    Args:
      values: `[n_rows, *row]`: an array, or anything with `shape`, `dtype` and slices of rows.
      kernels: The optimizer's compiled functions.

    Raises:
      TableError: If a value is not finite.
    """
    for start, stop in ranges(
        0,
        values.shape[0],
        row_bytes(
            values.shape[1:],
            np.dtype(values.dtype),
        ),
    ):
        rows = check_finite(
            np.array(values[start:stop]),
            range(start, stop),
            "values",
        )
        yield start, [rows, *kernels.init(rows)]


def of_arrays(
    arrays: Sequence[np.ndarray],
    first: int = 0,
) -> Iterator[Block]:
    """Yields arrays of rows, which may be mapped files, block by block.

    Args:
      arrays: Parameters, then states, `[n_rows, ...]` each.
      first: The number of the first of these rows.
    """
    for start, stop in ranges(
        0,
        len(arrays[0]),
        row_bytes(arrays[0].shape[1:], arrays[0].dtype),
    ):
        yield first + start, [np.asarray(array[start:stop]) for array in arrays]


def row_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    """Bytes of one row.

    Args:
      shape: The shape of one row.
      dtype: Its dtype.
    """
    return math.prod(shape) * dtype.itemsize


def ranges(
    first: int,
    end: int,
    row_bytes: int,
) -> Iterator[tuple[int, int]]:
    """Yields where each block of some rows starts and stops.

    Args:
      first: The first row.
      end: The row after the last.
      row_bytes: Bytes of one row.
    """
    size = max(1, BLOCK_BYTES // max(1, row_bytes))
    return ((start, min(start + size, end)) for start in range(first, end, size))
