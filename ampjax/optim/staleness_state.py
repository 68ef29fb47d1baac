"""Passes the staleness of gradients to a transform in its state, where updates take gradients, state and parameters only.

A runner's optimizer is cut in two and runs where rows are (`split_rows`). A scalar of its shared state is sent there anyway.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.jaxprs.flat_program import is_literal, trace
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any


class StalenessState(NamedTuple):
    """The state of `keep_staleness`.

    Attributes:
      staleness: The staleness of the next gradient, a float32 scalar, in updates; 0 until `set_staleness` changes it.
      inner: The state of the transform.
    """

    staleness: jax.Array
    inner: Any


def keep_staleness(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Makes a transform that reads the staleness of each gradient from its state, after `set_staleness` has written the number there.

    Returns:
      The transform. Its state is a `StalenessState`.
    """
    inner_tx = with_extra_arguments(tx)

    def init(params: Tree) -> StalenessState:
        return StalenessState(
            jnp.zeros((), jnp.float32),
            inner_tx.init(params),
        )

    def update(
        grads: Tree, state: StalenessState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, StalenessState]:
        steps, inner = inner_tx.update(
            grads, state.inner, params, **extra | {"staleness": state.staleness}
        )
        return steps, StalenessState(state.staleness, inner)

    return transform(init, update)


def keep_staleness_if_used(
    tx: optax.GradientTransformation, params: Tree
) -> optax.GradientTransformation:
    """Applies `keep_staleness` to a transform if its updates depend on staleness.

    Returns:
      `keep_staleness(tx)`; or `tx` itself if it does not use staleness, or can't be traced (its first use will then raise the error).
    """
    try:
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype),
            params,
        )
        return keep_staleness(tx) if uses_staleness(tx, shapes) else tx
    except (
        Exception
    ):  # a user's transform may raise anything while it is traced, or ask for the loss
        return tx


def set_staleness(state: Tree, staleness: float) -> Tree:
    """Sets the staleness that the next update reads.

    Args:
      state: The state of a transform.
      staleness: Updates that were made since the gradient's parameters were read.

    Returns:
      The new state; any state but a `StalenessState` is returned unchanged.
    """
    if isinstance(state, StalenessState):
        return state._replace(staleness=np.float32(staleness))
    return state


def uses_staleness(tx: optax.GradientTransformation, params: Tree) -> bool:
    """Tells whether a transform's updates depend on the extra argument `staleness`.

    Args:
      tx: An optax transform. Errors while it is traced are raised to the caller.
      params: The parameters, or their shapes and dtypes.
    """
    step = with_extra_arguments(tx)
    state = jax.eval_shape(tx.init, params)

    def update(
        staleness: Any,
        grads: Any,
        state: Any,
        params: Any,
    ) -> Any:
        return step.update(grads, state, params, staleness=staleness)

    flat = trace(
        update,
        jax.ShapeDtypeStruct((), np.float32),
        params,
        state,
        params,
    )
    read = [
        *(atom for equation in flat.equations for atom in equation.invars),
        *flat.outputs,
    ]
    return any(not is_literal(atom) and atom is flat.inputs[0] for atom in read)
