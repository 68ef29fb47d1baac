"""Rows read and written at slots of an array, in place where the array is donated.

XLA rewrites the scatter of a single row into a choice between the whole array with the row and the whole array without it, in case the
slot is outside, and copies the array before. A dispatch of one row would then cost as much as copying everything in flight. So a single row
is written as a slice, whose place XLA clamps, and which costs only the row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

INSIDE: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
"""Options for indexing with slots, which are never negative. If indices may be negative, each use takes one more fused kernel, and 15 ms to
compile it."""


def read_rows(array: Array, slots: Array) -> Array:
    """Reads the rows of an array at some slots.

    Args:
      array: `[m, ...]`.
      slots: `[k]`, all inside.

    Returns:
      `[k, ...]`.
    """
    # Several rows are gathered at once.
    if slots.shape[0] != 1:
        return array.at[slots].get(**INSIDE)
    # A single row is read as two equal ones, of which the first is kept.
    return array[jnp.repeat(slots, 2)][:1]


def set_rows(array: Array, slots: Array, rows: Any) -> Array:
    """Writes rows to an array at some slots.

    Args:
      array: `[m, ...]`.
      slots: `[k]`, all inside; if a slot is repeated, any of its rows is written.
      rows: `[k, ...]`, or a number.

    Returns:
      `[m, ...]`.
    """
    if slots.shape[0] != 1:
        return array.at[slots].set(rows, **INSIDE)
    # A single row as a slice, which is written in place.
    row = jnp.broadcast_to(
        rows,
        (1, *array.shape[1:]),
    ).astype(array.dtype)
    return jax.lax.dynamic_update_slice_in_dim(array, row, slots[0], axis=0)


def add_rows(array: Array, slots: Array, rows: Array) -> Array:
    """Adds rows to an array at some slots.

    Args:
      array: `[m, ...]`.
      slots: `[k]`, all inside; may be repeated.
      rows: `[k, ...]`.

    Returns:
      `[m, ...]`.
    """
    if slots.shape[0] != 1:
        return array.at[slots].add(rows, **INSIDE)
    # A single row is read, added to, and written as a slice.
    return set_rows(
        array,
        slots,
        array[slots] + rows.astype(array.dtype),
    )
