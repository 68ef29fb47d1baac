"""Writes at computed places as a loop over their rows: XLA compiles no `scatter` inside of a larger kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ampjax.jaxprs.primitives import applies_function

MOST_ROWS = 1024
"""Rows of one write, up to which it is a loop."""

COMBINED = {
    "scatter": lambda old, new: new,
    "scatter-add": jnp.add,
    "scatter_add": jnp.add,
}
"""By primitive, what is written where a row was."""


def is_written_by_rows(eqn: Any) -> bool:
    """Tells whether an equation is a write that `write_rows` can do.

    Args:
      eqn: The equation.
    """
    if eqn.primitive.name not in COMBINED or applies_function(eqn):
        return False
    places = eqn.invars[1].aval
    n_rows = int(np.prod(places.shape[:-1]))
    return n_rows <= MOST_ROWS


def write_rows(eqn: Any, operands: Sequence[Any]) -> Any:
    """Computes a `scatter`, one row after another.

    Args:
      eqn: The equation.
      operands: The array, the places `[..., k]`, and the rows.

    Returns:
      The array with the rows.
    """
    array, places, rows = map(jnp.asarray, operands)
    numbers = eqn.params["dimension_numbers"]
    batch = places.shape[:-1]
    n = int(np.prod(batch))
    if n == 0:
        return array
    starts = _starts(
        numbers,
        array.ndim,
        places.reshape(n, -1),
        batch,
    )
    rows, sizes = _windows(numbers, array, rows, n)
    limits = np.array(array.shape) - np.array(sizes)
    combine = COMBINED[eqn.primitive.name]
    mode = eqn.params["mode"]

    def write(i: Any, array: Any) -> Any:
        start = starts[i]
        fits = (start >= 0) & (start <= limits)
        is_inside = jnp.all(fits)
        at = list(jnp.clip(start, 0, limits))
        old = lax.dynamic_slice(array, at, sizes)
        new = combine(old, rows[i])
        if mode != lax.GatherScatterMode.CLIP:
            new = jnp.where(is_inside, new, old)
        return lax.dynamic_update_slice(array, new, at)

    return lax.fori_loop(0, n, write, array)


def _starts(
    numbers: Any,
    rank: int,
    places: Any,
    batch: Sequence[int],
) -> Any:
    """`[n, rank]`: where each row begins."""
    n = len(places)
    first = jnp.zeros(n, jnp.int32)
    columns: list[Any] = [first] * rank
    for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        numbers_here = places[:, k]
        columns[axis] = numbers_here.astype(jnp.int32)
    # an axis that the array and the places share has the place's own position on it
    positions = np.indices(batch, np.int32)
    positions = positions.reshape(len(batch), n)
    for axis, shared in zip(
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
        strict=True,
    ):
        columns[axis] = jnp.asarray(positions[shared])
    return jnp.stack(columns, 1)


def _windows(
    numbers: Any,
    array: Any,
    rows: Any,
    n: int,
) -> tuple[Any, list[int]]:
    """The rows, `[n, ...]` with all axes of the array, and the size of one."""
    window = list(numbers.update_window_dims)
    others = [axis for axis in range(rows.ndim) if axis not in window]
    lengths = iter([rows.shape[axis] for axis in window])
    alone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = []
    for axis in range(array.ndim):
        sizes.append(1 if axis in alone else next(lengths))
    in_front = rows.transpose(*others, *window)
    return in_front.reshape(n, *sizes), sizes
