"""Checks that a transform fits parameters, before any computation; and whether the transform needs the loss."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.interpreters import partial_eval

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any

_MISSING = re.compile(r"missing \d+ required keyword-only arguments?: (.*)")
_TO_BE_GIVEN = re.compile(r"^(\w+_fn) must be provided")
"""As optax's transforms ask for a function that computes the loss or its gradient."""


def wants_loss(
    tx: optax.GradientTransformation,
    params: Tree,
    where: str,
    fix: str,
) -> bool:
    """Tells whether a transform needs the loss, as its argument `value`.

    Args:
      tx: An optax transform.
      params: The parameters that it is to update, or their shapes.
      where: What an error calls it.
      fix: What an error advises if the transform does not fit the parameters.

    Raises:
      SettingsError: If it does not fit them, or needs more than gradients, parameters and the loss, as line searches do.
    """
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    try:
        hash(tx)
    except TypeError:  # made of a mutable object, which another call may find changed
        reads_loss = _reads_loss.__wrapped__
    else:
        reads_loss = _reads_loss
    try:
        return reads_loss(tx, structure, shapes)
    except Exception as error:  # a transform may raise anything
        raise does_not_fit(error, where, fix) from error


@functools.lru_cache(maxsize=256)
def _reads_loss(
    tx: optax.GradientTransformation,
    structure: Any,
    shapes: tuple[tuple[Any, Any], ...],
) -> bool:
    """Tells whether a transform's update reads the loss; traced once for parameters of the same shapes."""
    step = with_extra_arguments(tx)

    def update(gradient: Tree, params: Tree, loss: Any) -> Tree:
        return step.update(
            gradient,
            tx.init(params),
            params,
            staleness=jnp.float32(0),
            value=loss,
        )

    params = structure.unflatten([jax.ShapeDtypeStruct(*shape) for shape in shapes])
    closed = jax.make_jaxpr(update)(
        params,
        params,
        jax.ShapeDtypeStruct((), jnp.float32),
    )
    _, used = partial_eval.dce_jaxpr(
        closed.jaxpr,
        [True] * len(closed.jaxpr.outvars),
    )
    return bool(used[-1])


def check_init(
    tx: optax.GradientTransformation,
    params: Tree,
    where: str,
    fix: str,
) -> None:
    """Checks that a transform can make a state for parameters.

    Args:
      tx: An optax transform.
      params: The parameters, or their shapes.
      where: What an error calls it.
      fix: What an error advises.

    Raises:
      SettingsError: If not.
    """
    try:
        jax.eval_shape(tx.init, params)
    except Exception as error:  # a transform may raise anything
        raise does_not_fit(error, where, fix) from error


def draws(tx: optax.GradientTransformation, params: Tree) -> bool:
    """Tells whether a transform draws random numbers: each part of a tree then gets other numbers than alone, but just as random.

    Args:
      tx: An optax transform.
      params: The parameters, or their shapes.
    """
    step = with_extra_arguments(tx)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
        params,
    )
    try:
        closed = jax.make_jaxpr(
            lambda gradient, params: step.update(gradient, tx.init(params), params)
        )(shapes, shapes)
    except Exception:  # it does not fit all of them together
        return False
    return "random_bits" in str(closed) or "threefry" in str(closed)


def does_not_fit(error: Exception, where: str, fix: str) -> SettingsError:
    """The error of a transform that does not fit its parameters."""
    if isinstance(error, TypeError) and (missing := _MISSING.search(str(error))):
        fix = "A line search calls the loss again and again, which the engine can't; take a rule without one."
        return _needs_more(where, missing[1].replace("'", "`"), fix)
    if missing := _TO_BE_GIVEN.search(str(error)):
        fix = "It calls the loss or its gradient itself, which the engine can't; take a rule that doesn't, such as `optax.contrib.sam` without `opaque_mode`."
        return _needs_more(where, f"`{missing[1]}`", fix)
    first = str(error).strip().partition("\n")[0]
    return SettingsError(
        where,
        "a transform that fits these parameters",
        f"{type(error).__name__}: {first:.200}",
        fix,
    )


def _needs_more(where: str, needed: str, fix: str) -> SettingsError:
    """The error of a transform with needs beyond gradients, parameters and the loss."""
    expected = "a transform of gradients, parameters and, at most, the loss (`value`)"
    return SettingsError(where, expected, f"one that also needs {needed}", fix)
