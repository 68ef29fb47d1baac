"""Sequences without elements, in a model on concrete values: a function's types of results come from an element of zeros."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.combinators.draw_places import Use
from ampjax.frontend.combinators.structures import Ragged, is_rows

_LEARNS_TYPES: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "ampjax_learns_types", default=False
)


def learns_types() -> bool:
    """Tells whether a function runs on an element that does not exist, to learn the types of its results."""
    return _LEARNS_TYPES.get()


@contextmanager
def learning_types(use: Use) -> Iterator[None]:
    """Inside, functions that a combinator was given run on elements that are not there."""
    token = _LEARNS_TYPES.set(True)
    try:
        with use.inside():
            yield
    finally:
        _LEARNS_TYPES.reset(token)


def none_of(use: Use, one: Callable[[], Any]) -> Any:
    """No elements, of the types that a function gives.

    Args:
      use: The combinator that was given the function.
      one: Gives what an element would be, a pytree.
    """
    with learning_types(use):
        element = one()
    return jax.tree.map(_none, element, is_leaf=is_rows)


def blank(leaf: Any) -> Any:
    """Makes an element for an empty sequence: zeros, or a sequence without elements."""
    if isinstance(leaf, Ragged):
        return leaf.values[0:0]
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return (jnp if is_key else np).zeros(
        leaf.shape[1:],
        leaf.dtype,
    )


def _none(element: Any) -> Any:
    if isinstance(element, Ragged):
        return Ragged(
            element[0:0],
            np.zeros(0, np.int64),
        )
    return jnp.zeros(
        (0, *jnp.shape(element)),
        jnp.result_type(element),
    )
