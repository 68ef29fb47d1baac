"""Rows written into an array at slots, in place where the array is donated.

A scatter of a single row is rewritten by XLA into a choice between the whole array with the row and the whole array without it, in case the slot lies
outside, with copies of the array before it: a dispatch of one row then costs as much as all that is in flight. A slice, whose place is clamped, costs the row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

INSIDE: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
"""Slots are never negative. To count negative ones from the end is a fused kernel more, 15 ms to compile, wherever slots are used."""


def read_rows(array: Array, slots: Array) -> Array:
    """The rows of `array` at `slots`, all of which lie inside."""
    if slots.shape[0] != 1:
        return array.at[slots].get(**INSIDE)
    return array[jnp.repeat(slots, 2)][:1]


def set_rows(array: Array, slots: Array, rows: Any) -> Array:
    """`array` `[m, ...]` with `rows` `[k, ...]`, or a number, at `slots` `[k]`, all of which lie inside."""
    if slots.shape[0] != 1:
        return array.at[slots].set(rows, **INSIDE)
    row = jnp.broadcast_to(rows, (1, *array.shape[1:])).astype(array.dtype)
    return jax.lax.dynamic_update_slice_in_dim(array, row, slots[0], axis=0)


def add_rows(array: Array, slots: Array, rows: Array) -> Array:
    """`array` with `rows` added at `slots`, likewise; a slot may come more than once."""
    if slots.shape[0] != 1:
        return array.at[slots].add(rows, **INSIDE)
    return set_rows(array, slots, array[slots] + rows.astype(array.dtype))
