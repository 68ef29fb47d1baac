"""Rows written into an array at slots, in place where the array is donated.

A scatter of a single row is rewritten by XLA into a choice between the whole array with the row and the whole array without it, in case the
slot lies outside, with copies of the array before it: a dispatch of one row then costs as much as all that is in flight. A slice, whose
place is clamped, costs the row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

INSIDE: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
"""Options for slots, which are never negative. Indices that may be negative cost one more fused kernel wherever they are used, 15 ms to
compile."""


def read_rows(array: Array, slots: Array) -> Array:
    """The rows of an array at some slots.

    Args:
      array: `[m, ...]`.
      slots: `[k]`, all inside.

    Returns:
      `[k, ...]`.
    """
    if slots.shape[0] != 1:
        return array.at[slots].get(**INSIDE)
    return array[jnp.repeat(slots, 2)][:1]


def set_rows(array: Array, slots: Array, rows: Any) -> Array:
    """An array with rows written at some slots.

    Args:
      array: `[m, ...]`.
      slots: `[k]`, all inside; where one comes more than once, any of its rows is written.
      rows: `[k, ...]`, or a number.

    Returns:
      `[m, ...]`.
    """
    if slots.shape[0] != 1:
        return array.at[slots].set(rows, **INSIDE)
    row = jnp.broadcast_to(rows, (1, *array.shape[1:])).astype(array.dtype)
    return jax.lax.dynamic_update_slice_in_dim(array, row, slots[0], axis=0)


def add_rows(array: Array, slots: Array, rows: Array) -> Array:
    """An array with rows added at some slots.

    Args:
      array: `[m, ...]`.
      slots: `[k]`, all inside; one may come more than once.
      rows: `[k, ...]`.

    Returns:
      `[m, ...]`.
    """
    if slots.shape[0] != 1:
        return array.at[slots].add(rows, **INSIDE)
    return set_rows(array, slots, array[slots] + rows.astype(array.dtype))
