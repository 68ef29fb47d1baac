"""Single rows of an array that change in place, in loops that hand the array from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.jaxprs.primitives import is_inexact
from ampjax.lanes.rewriting.linear_pairs import FloatParts, linear_pair


def set_rows(every: Any, at: Any, values: Any) -> Any:
    """Sets some rows in place.

    JAX's own derivative reads the changed rows' cotangents and clears them in any order, so XLA copies all rows once in each step.

    Args:
      every: `[rows, ...]`.
      at: `[n]`: the number of each changed row, no two equal; such as are too large are dropped.
      values: `[n, ...]`.
    """
    if not is_inexact(every.dtype):
        return _put(every, at, values)

    def forward(given: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
        (own,) = given
        rows, new = linear
        return [_put(rows, own, new)]

    def backward(given: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        (own,) = given
        (total,) = cotangents
        of_new = _read(total, own)
        return [_put(total, own, _after(of_new)), of_new]

    result = jax.ShapeDtypeStruct(every.shape, every.dtype)
    return linear_pair(forward, backward, [at], [every, values], [result])[0]


def changed_rows(
    change: Callable[..., Any],
    every: Any,
    at: Any,
    values: Sequence[Any],
) -> Any:
    """Replaces some rows in place, each by a function of the row.

    The derivative, too, reads and writes these rows alone.

    Args:
      change: From a row and values of it to the new row.
      every: `[rows, ...]`.
      at: `[n]`: as for `set_rows`.
      values: `[n, ...]` each.
    """
    of_rows = jax.vmap(change)

    def result(every: Any, at: Any, *values: Any) -> Any:
        return _put(every, at, of_rows(_read(every, at), *values))

    if not is_inexact(every.dtype):
        return result(every, at, *values)
    function = jax.custom_jvp(result)

    @function.defjvp
    def changes(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        whole, own, *others = primals
        rows = _read(whole, own)
        floats = [i for i, x in enumerate(others) if is_inexact(x.dtype)]
        parts = FloatParts([0, *(i + 1 for i in floats)], [0])
        found = function(*primals)
        linear = [tangents[0], *(tangents[i + 2] for i in floats)]
        pair = linear_pair(
            _forward(of_rows, parts),
            _backward(of_rows, parts),
            [own, rows, *others],
            linear,
            [found],
        )
        return found, pair[0]

    return function(every, at, *values)


def _forward(of_rows: Callable[..., Any], parts: FloatParts) -> Any:
    """From the changes of all rows before and of the values to the change of all rows."""

    def forward(given: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
        own, *args = given
        every, *of_values = linear
        floats = parts.of(lambda *each: [of_rows(*each)], args)
        of_rows_before = _read(every, own)
        _, found = jax.jvp(floats, parts.own(args), (of_rows_before, *of_values))
        return [_put(every, own, found[0])]

    return forward


def _backward(of_rows: Callable[..., Any], parts: FloatParts) -> Any:
    """From the cotangents of all rows to the cotangents of all rows before and of the values."""

    def backward(given: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        own, *args = given
        (total,) = cotangents
        floats = parts.of(lambda *each: [of_rows(*each)], args)
        _, back = jax.vjp(floats, *parts.own(args))
        of_new = _read(total, own)
        of_row, *of_values = back([of_new])
        return [_put(total, own, of_row + _after(of_new)), *of_values]

    return backward


def _after(values: Any) -> Any:
    """Zeros that XLA must compute from values, so that XLA reads the values first, and writes in place."""
    none = jnp.minimum(jnp.abs(values), 0).astype(values.dtype)
    return jnp.where(jnp.isnan(values), 0, none)


def _read(every: Any, at: Any) -> Any:
    """Rows by number; zeros for a number that is too large."""
    return every.at[at].get(mode="fill", fill_value=0)


def _put(every: Any, at: Any, rows: Any) -> Any:
    """Rows written at different numbers; a number that is too large drops its row."""
    return every.at[at].set(rows, mode="drop", unique_indices=True)
