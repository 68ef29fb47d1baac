"""Loops of as many turns as a length says, as loops through sequences; each has the arguments of JAX's function of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export


def associative_scan(
    fn: Callable[..., Any],
    elems: Any,
    reverse: bool = False,
    axis: int = 0,
) -> Any:
    """`jax.lax.associative_scan` along the elements, one after the other: how many levels a tree of sums has is each example's own."""
    leaves = jax.tree.leaves(elems)
    axis = axis % len(leaves[0].shape)
    if not export.is_symbolic_dim(leaves[0].shape[axis]):
        return NotImplemented

    def step(before: Any, own: Any) -> tuple[Any, Any]:
        # the function gets arrays of elements, here of one
        pair = [_each(lambda x: jnp.expand_dims(x, axis), x) for x in (before, own)]
        after = _each(lambda x: jnp.squeeze(x, axis), fn(*pair))
        return after, after

    xs = _each(lambda x: jnp.moveaxis(x, axis, 0), elems)
    numbers = jnp.arange(leaves[0].shape[axis])
    if reverse:
        numbers = numbers[::-1]
    _, results = jax.lax.scan(
        step,
        _each(lambda x: _or_zeros(x, -1 if reverse else 0), xs),
        _each(lambda x: x[:-1] if reverse else x[1:], xs),
        reverse=reverse,
    )

    # the first element is its own result, each other one's is where it was without the first
    def of_all(x: Any, own: Any) -> Any:
        places = jnp.arange(x.shape[0]) - (not reverse)
        wide = (x.shape[0],) + (1,) * (x.ndim - 1)
        return jnp.where(
            (numbers == 0).reshape(wide),
            x,
            _or_zeros(own, places),
        )

    whole = jax.tree.map(of_all, xs, results)
    return _each(lambda x: jnp.moveaxis(x, 0, axis), whole)


def scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    length: Any = None,
    reverse: bool = False,
    **settings: Any,
) -> Any:
    """`jax.lax.scan` of as many turns as a length says, through the numbers of the turns."""
    if jax.tree.leaves(xs) or not export.is_symbolic_dim(length):
        return NotImplemented
    return jax.lax.scan(
        lambda carry, number: f(carry, xs),
        init,
        jnp.arange(length),
        reverse=reverse,
    )


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[..., Any],
    init_val: Any,
    **settings: Any,
) -> Any:
    """`jax.lax.fori_loop` from a number of Python to a length, through the numbers of the turns."""
    is_counted = export.is_symbolic_dim(upper) and isinstance(lower, int) and lower >= 0
    if not is_counted:
        return NotImplemented
    last, _ = jax.lax.scan(
        lambda carry, number: (body_fun(number, carry), None),
        init_val,
        jnp.arange(upper)[lower:],
    )
    return last


def _each(
    function: Callable[[Any], Any],
    tree: Any,
) -> Any:
    return jax.tree.map(function, tree)


def _or_zeros(
    xs: Any,
    places: Any,
) -> Any:
    """Elements by number, and zeros where a number has none."""
    # an array, as JAX makes `n - 1` of -1, which is no length where n is 0
    return xs.at[jnp.asarray(places)].get(
        mode="fill",
        fill_value=0,
    )
