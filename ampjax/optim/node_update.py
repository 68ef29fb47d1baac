"""One node's update: from the sum of its gradient rows to new parameters.

Pure functions on pytrees. This module knows neither when an update is due (the scheduler does) nor on which device it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import ParameterError, SettingsError
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any


def trainable(params: Tree) -> Tree:
    """Selects the parameters that have gradients: the same tree with None in place of integer, boolean and PRNG-key leaves.

    Optimizer states and accumulators are made for this tree: `tx.init(trainable(params))`. It is `params` itself where all
    leaves are floats.

    Args:
      params: A pytree of arrays.

    Returns:
      A tree like `params`.
    """
    return jax.tree.map(
        lambda leaf: leaf if _is_float(leaf) else None,
        params,
    )


def combine(params: Tree, changed: Tree) -> Tree:
    """Replaces the trainable leaves of `params`; the inverse of `trainable`.

    Args:
      params: Parameters.
      changed: A tree like `trainable(params)`.

    Returns:
      The parameters, with changed leaves in the place of old ones.
    """
    return jax.tree.map(
        lambda old, new: old if new is None else new,
        params,
        changed,
    )


def make_update(
    tx: optax.GradientTransformation, gradient: str = "mean"
) -> Callable[..., tuple[Tree, Tree, Tree]]:
    """Makes the update of a PPT from its locally accumulated gradients (AMPNet §3, §4), a function to be jitted.

    The function returned is `update(params, opt_state, accumulator, count, **extra) -> (params, opt_state, accumulator)`:

    * `params`: the parameters. Leaves that are not floats have no gradient and stay as they are.
    * `opt_state`: as `tx.init(trainable(params))` makes it.
    * `accumulator`: a tree like `trainable(params)`: the **sum** of the gradient rows. May be wider than the parameters
      (float32 for bfloat16); the gradient is cast to the parameters' dtype after the division, so that states keep theirs.
    * `count`: a float scalar, the number of rows summed. A count of 0 gives a zero gradient, which Adam's momentum may still
      turn into a step.
    * `extra`: optax's extra arguments; dropped where `tx` takes none. The engine passes one, `staleness`, a float32 scalar: how many updates the
      node has made between a message's forward pass and its adjoint, in the mean over the gradient rows of this update.

    It returns the accumulator set to zero. All three results have the structure, shapes and dtypes of what came in: one
    compilation each, and all of it may be donated.

    Args:
      tx: An optax transform.
      gradient: `mean` or `sum` over the gradient rows.

    Returns:
      The pure function. It raises `ParameterError` while it is traced, if the accumulator does not fit the parameters.

    Raises:
      SettingsError: If `gradient` is neither of the two, or `tx` is no optax transform.

    >>> update = make_update(optax.sgd(0.5))
    >>> params, _, zeros = update({"w": jnp.ones(2)}, optax.sgd(0.5).init({"w": jnp.ones(2)}), {"w": jnp.array([4.0, 8.0])}, 4.0)
    >>> params["w"].tolist(), zeros["w"].tolist()
    ([0.5, 0.0], [0.0, 0.0])
    """
    if gradient not in ("mean", "sum"):
        raise SettingsError(
            "gradient", "`mean` or `sum`", f"{gradient!r}", "Choose one of the two."
        )
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise SettingsError(
            "tx",
            "an optax transform",
            f"{type(tx).__name__}",
            "Pass for example `optax.adam(1e-3)`.",
        )
    step = with_extra_arguments(tx)

    def update(
        params: Tree, opt_state: Tree, accumulator: Tree, count: Any, **extra: Any
    ) -> tuple[Tree, Tree, Tree]:
        old = trainable(params)
        _check_accumulator(old, accumulator)
        grads = gradient_of(old, accumulator, count, gradient)
        updates, opt_state = step.update(grads, opt_state, old, **extra)
        new = optax.apply_updates(old, updates)
        empty = jax.tree.map(
            lambda a, p: _empty(a, p, jnp.asarray(count) < 0),
            accumulator,
            new,
        )
        return combine(params, new), opt_state, empty

    return update


def gradient_of(
    params: Tree,
    accumulator: Tree,
    count: Any,
    gradient: str,
) -> Tree:
    """The gradient that an optimizer is given: the mean or the sum of the gradient rows that an accumulator holds.

    Args:
      params: The parameters.
      accumulator: The sums of their gradient rows.
      count: How many rows were summed, a float scalar.
      gradient: `mean` or `sum`.

    Returns:
      A tree like `params`, in its dtypes.
    """
    if gradient == "mean":
        divisor = jnp.maximum(jnp.asarray(count), 1)
    else:
        divisor = 1
    return jax.tree.map(
        lambda p, a: (a / divisor).astype(jnp.result_type(p)),
        params,
        accumulator,
    )


def _empty(
    accumulator: jax.Array,
    new: jax.Array,
    never: jax.Array,
) -> jax.Array:
    """Zeros in place of an accumulator, written once the new parameter is known: by a choice that XLA can't foresee.

    A constant would be built elsewhere and copied into the donated buffer, and where the zeros could come first, XLA copies what they
    overwrite: a third of the update's time.
    """
    return jnp.where(false_after(never, new), accumulator, 0)


def false_after(
    never: jax.Array,
    *values: jax.Array,
) -> jax.Array:
    """Returns False, known to XLA only once some values are: a choice by this flag is written after the values were computed.

    Args:
      never: A condition that is never true, which XLA can't know.
      *values: Arrays; one element of each is looked at.

    Returns:
      A boolean scalar.
    """
    first = []
    for value in values:
        if value.size:
            first.append(jnp.abs(value.reshape(-1)[0]))
    if first:
        return jnp.where(never, sum(first), -1) >= 0
    return jnp.asarray(False)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def _check_accumulator(params: Tree, accumulator: Tree) -> None:
    wanted, actual = (dict(_shapes(tree)) for tree in (params, accumulator))
    for path in [*wanted, *actual]:
        if wanted.get(path) != actual.get(path):
            raise ParameterError(
                f"gradient accumulator, leaf `{path or 'params'}`",
                f"shape {wanted[path]}" if path in wanted else "no such leaf",
                f"shape {actual[path]}" if path in actual else "none",
                "Make accumulators like `trainable(params)`.",
            )


def _shapes(tree: Tree) -> list[tuple[str, tuple[int, ...]]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    result = []
    for path, leaf in leaves:
        result.append((jax.tree_util.keystr(path), jnp.shape(leaf)))
    return result
