"""Random numbers in a model: drawn in training, and nowhere else."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import GraphError
from ampjax.frontend.combinators import sequences
from ampjax.frontend.combinators.draw_places import Use
from ampjax.frontend.combinators.empty_sequences import learns_types
from ampjax.frontend.combinators.tracing import (
    COMBINATOR,
    Call,
    Combinator,
    as_arrays,
    bind,
    bodies,
    call_user,
    dimensions,
    require_same,
    require_structure,
    trace,
    type_of,
    user_line,
)

STOCHASTIC = Combinator(
    "stochastic",
    inside_node=True,
    draws=True,
    by_example=True,
    row_by_row=True,
)

_KEYS: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "ampjax_keys", default=None
)


@contextmanager
def training(key: jax.Array) -> Iterator[None]:
    """Lets a model on concrete values draw random numbers, as in training.

    When it runs: in Python, around a model that runs as it is; a compiled model draws in `fit` without it.

    Args:
      key: A PRNG key; each draw gets a new one from it. A compiled model draws other numbers from the same distributions.

    >>> with training(jax.random.key(0)):
    ...     y = dropout(jnp.ones(4), 0.5)
    >>> sorted(set(y.tolist())) in ([0.0, 2.0], [0.0], [2.0])
    True

    Returns:
      A context manager: `with amp.training(key): ...`.
    """
    token = _KEYS.set([key])
    try:
        yield
    finally:
        _KEYS.reset(token)


def stochastic(
    f: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Any,
) -> Any:
    """`f(key, *operands)` in training, `otherwise(*operands)` elsewhere.

    A compiled model gives every message a key of its own, the same in forward and backward, and another in each epoch.

    When it runs: both functions are traced once. Then one of them runs on the device: as messages once for each message, as a batch once
    for all rows, each of which has its own key.

    Args:
      f: What is computed in training, with a PRNG key.
      otherwise: What is computed in `evaluate` and `predict`, and where the model runs as it is outside of `amp.training`.
      *operands: What both are given, pytrees of arrays. Neither may hold combinators.

    Returns:
      What they return.

    Raises:
      GraphError: If the two return different structures, shapes or dtypes.
    """
    use = Use()
    if dimensions() is None:
        keys = _KEYS.get()
        if learns_types():
            return otherwise(*operands)
        if (key := use.key) is not None:
            return f(key, *operands)
        if keys is None:
            return otherwise(*operands)
        keys[0], key = jax.random.split(keys[0])
        return f(key, *operands)
    line = user_line()
    leaves, structure = jax.tree.flatten(operands)
    leaves = as_arrays("for the functions", leaves)
    types = structure.unflatten([type_of(leaf) for leaf in leaves])
    key_type = jax.eval_shape(lambda: jax.random.key(0))
    first, first_closed, results = trace(
        lambda key, args: call_user(f, key, *args),
        key_type,
        types,
    )
    second, second_closed, others = trace(
        lambda args: call_user(otherwise, *args),
        types,
    )
    for function in (first, second):
        for kind in _combinators(function.jaxpr):
            fix = "Draw what is needed in `amp.stochastic`, and use it outside."
            raise GraphError(
                line, "arrays alone in the functions of `amp.stochastic`", f"`amp.{kind}`", fix
            )
    fix = "Return the same structure from both."
    require_structure(line, "{}, as in training", first.results, second.results, fix, " otherwise")
    require_same(line, "the same types in training and otherwise", results, others)
    closed = (len(first_closed), len(second_closed))
    call = Call(
        STOCHASTIC,
        results,
        (first, second),
        closed,
        line,
        place=use.place,
    )
    return first.results.unflatten(bind(call, [*first_closed, *second_closed, *leaves]))


def _combinators(jaxpr: Any) -> Iterator[Combinator]:
    """Yields the kinds of combinators in an open jaxpr."""
    for equation in jaxpr.eqns:
        if equation.primitive is COMBINATOR:
            yield equation.params["call"].kind
        for body in bodies(equation):
            yield from _combinators(body)


def _is_sequence(leaf: Any) -> bool:
    """Whether an array is a whole sequence, in a model that is being traced."""
    return any(not isinstance(n, int) for n in jnp.shape(leaf)[:1])


def _in_each(leaf: Any, rate: float) -> Any:
    """Drops entries of an array, or of each element of a sequence."""
    if not _is_sequence(leaf):
        return dropout(leaf, rate)
    return sequences.map(lambda element: dropout(element, rate), leaf)


def dropout(x: Any, rate: float) -> Any:
    """Sets entries to zero in training, each with probability `rate`, and scales the others by `1 / (1 - rate)` (Srivastava et al. 2014).

    When it runs: on the device, in training: as messages it draws for each message, as a batch for each row.

    Args:
      x: A pytree of float arrays, or of whole sequences of such arrays.
      rate: The probability, at least 0 and below 1.

    Returns:
      A pytree of the same shapes and dtypes; `x` itself outside of training.

    Raises:
      GraphError: If the rate is outside.
    """
    if not 0 <= rate < 1:
        raise GraphError(user_line(), "0 <= rate < 1", f"{rate}", "Give the probability of a zero.")
    if rate == 0:
        return x
    if dimensions() is not None and any(
        map(
            _is_sequence,
            jax.tree.leaves(x),
        )
    ):
        return jax.tree.map(lambda leaf: _in_each(leaf, rate), x)

    def drop(key: jax.Array, x: Any) -> Any:
        leaves, structure = jax.tree.flatten(x)
        keys = jax.random.split(key, len(leaves))
        scaled = []
        for k, leaf in zip(keys, leaves, strict=True):
            scaled.append(jax.random.bernoulli(k, 1 - rate, jnp.shape(leaf)))
        return structure.unflatten(
            [
                jnp.where(keep, leaf / (1 - rate), 0)
                for keep, leaf in zip(scaled, leaves, strict=True)
            ]
        )

    return stochastic(drop, lambda x: x, x)
