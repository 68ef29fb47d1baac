"""Choices between rows by a mask, whose derivatives keep the mask alone.

JAX keeps a choice's condition as it is used: one truth value for each number of each row, and in a loop for each step. What is here keeps one for
each row, and leaves an array as it is where only its derivative is cut off: a loop then keeps no copy of the array for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.jaxprs.primitives import is_inexact
from ampjax.lanes.rewriting.linear_pairs import linear_pair


def along(mask: Any, values: Any) -> Any:
    """A number for each row, of a shape that fits rows.

    Args:
      mask: `[rows]`.
      values: `[rows, ...]`.
    """
    return mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))


def rows_where(mask: Any, one: Any, other: Any) -> Any:
    """Rows of one array where a mask holds, else of another one.

    Args:
      mask: `[rows]`.
      one: `[rows, ...]`.
      other: `[rows, ...]`, of the same dtype.
    """
    if not is_inexact(one.dtype):
        return _chosen(mask, one, other)
    return _rows_where(mask, one, other)


def with_copies(values: Any, mask: Any, copy: Any) -> Any:
    """Rows, with a copy of one row in place of each row left out by a mask.

    Args:
      values: `[rows, ...]`.
      mask: `[rows]`.
      copy: `[...]`: the row.
    """
    # Read first, by itself: what XLA would fuse with such a read is not vectorised.
    row = jax.lax.optimization_barrier(copy) if is_inexact(copy.dtype) else copy
    return rows_where(mask, values, jnp.broadcast_to(row, values.shape))


def _chosen(mask: Any, one: Any, other: Any) -> Any:
    return jnp.where(along(mask, one), one, other)


_rows_where = jax.custom_jvp(_chosen)


@_rows_where.defjvp
def _change_of_rows(primals: Any, tangents: Any) -> tuple[Any, Any]:
    mask, one, other = primals
    # a plain choice, so that loops see how cheap it is to compute it again
    result = _chosen(mask, one, other)
    (change,) = linear_pair(
        _joined,
        _parted,
        [mask],
        tangents[1:],
        [result],
    )
    return result, change


def _joined(given: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
    return [_chosen(*given, *linear)]


def _parted(given: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    (total,) = cotangents
    mask = along(given[0], total)
    nothing = jnp.zeros_like(total)
    return [jnp.where(mask, total, nothing), jnp.where(mask, nothing, total)]


def derived_where(flag: Any, values: Any) -> Any:
    """Values whose derivative is zero unless a flag holds.

    Args:
      flag: `[]`.
      values: Of any shape.
    """
    return _derived_where(flag, values) if is_inexact(values.dtype) else values


@jax.custom_jvp
def _derived_where(flag: Any, values: Any) -> Any:
    del flag
    return values


@_derived_where.defjvp
def _change_if(primals: Any, tangents: Any) -> tuple[Any, Any]:
    flag, values = primals
    change = tangents[1]
    return values, jax.lax.select(flag, change, jnp.zeros_like(change))
