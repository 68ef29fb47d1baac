"""A table's arrays as a stream of blocks of consecutive rows: how rows get in, out, to files and to other partitions.

A block is its first row's number and the arrays of its rows, parameters first. No more than a block is copied at a time, so
tables may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ampjax.sparse.kernels import Kernels
from ampjax.sparse.layout import Layout
from ampjax.sparse.partition import Partition
from ampjax.sparse.rowgrads import check_finite

BLOCK_BYTES = 1 << 24

Block = tuple[int, list[np.ndarray]]


def of_values(values: Any, kernels: Kernels) -> Iterator[Block]:
    """New rows with their first optimizer state.

    Raises:
      TableError: If a value is not finite.
    """
    for start, stop in _ranges(values.shape[0], int(np.prod(values.shape[1:])) * values.dtype.itemsize):
        rows = check_finite(np.array(values[start:stop]), "values")
        yield start, [rows, *kernels.init(rows)]


def of_arrays(arrays: Sequence[np.ndarray]) -> Iterator[Block]:
    """Arrays of all rows, mapped files for example."""
    for start, stop in _ranges(len(arrays[0]), arrays[0][:1].nbytes):
        yield start, [np.asarray(array[start:stop]) for array in arrays]


def of_partitions(partitions: Sequence[Partition], layout: Layout) -> Iterator[Block]:
    """All rows in order, from the partitions that they are dealt out to."""
    sources = [part.everything for part in partitions]
    for start, stop in _ranges(layout.n_rows, sources[0][0][:1].nbytes):
        block = [np.empty((stop - start, *array.shape[1:]), array.dtype) for array in sources[0]]
        for index, arrays in enumerate(sources):
            places, own = layout.within(index, start, stop)
            for joined, array in zip(block, arrays, strict=True):
                joined[places] = array[own]
        yield start, block


def fill(partitions: Sequence[Partition], layout: Layout, blocks: Iterable[Block]) -> None:
    """Writes all rows into partitions; blocks from outside lack the last array, the counts, which stay as they are."""
    for start, block in blocks:
        for part in partitions:
            places, own = layout.within(part.index, start, start + len(block[0]))
            for array, rows in zip(part.everything, block, strict=False):
                array[own] = rows[places]


def _ranges(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    size = max(1, BLOCK_BYTES // max(1, row_bytes))
    return ((start, min(start + size, n_rows)) for start in range(0, n_rows, size))
