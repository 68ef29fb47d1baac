"""Parameter leaves as tables: rows lead, whatever axes the program counts them along.

A stack of tables `[F, V, D]` that is read by pairs has F * V rows; of `[D, V]` that is read by columns, each column is a row.
A table has as many axes as its leaf, so that an optimizer that goes by their number treats both alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

LEADING = (0,)
"""Rows along the first axis: leaf and table are the same array."""


def table_shape(
    shape: Sequence[int],
    axes: Sequence[int],
) -> tuple[int, ...]:
    """The shape of the table, `[n_rows, 1, ..., *row]`.

    Args:
      shape: The leaf's shape.
      axes: The axes along which its rows are counted.

    >>> table_shape((3, 20, 4), (0, 1)), table_shape((4, 20), (1,))
    ((60, 1, 4), (20, 4))
    """
    row = (n for a, n in enumerate(shape) if a not in axes)
    if not shape:
        return tuple(shape)
    return (
        math.prod(shape[a] for a in axes),
        *[1] * (len(axes) - 1),
        *row,
    )


def to_table(leaf: Any, axes: Sequence[int]) -> Any:
    """Reshapes a leaf to a table. NumPy arrays give views wherever they can.

    Args:
      leaf: An array, its shape, or None.
      axes: The axes along which its rows are counted.
    """
    if tuple(axes) == LEADING or leaf is None:
        return leaf
    shape = table_shape(leaf.shape, axes)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, leaf.dtype)
    return leaf.transpose(_order(leaf.shape, axes)).reshape(shape)


def from_table(
    table: Any,
    shape: Sequence[int],
    axes: Sequence[int],
) -> Any:
    """Reshapes a table back to the leaf.

    Args:
      table: An array `[n_rows, ...]`.
      shape: The leaf's shape.
      axes: The axes along which its rows are counted.
    """
    if tuple(axes) == LEADING:
        return table
    order = _order(shape, axes)
    return table.reshape([shape[a] for a in order]).transpose(np.argsort(order))


def _order(
    shape: Sequence[int],
    axes: Sequence[int],
) -> list[int]:
    return [
        *axes,
        *(a for a in range(len(shape)) if a not in axes),
    ]
