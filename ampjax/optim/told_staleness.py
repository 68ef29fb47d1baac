"""Tells a transform its gradients' staleness by way of its state, where updates are made from gradients, state and parameters alone.

A runner's optimizer is cut in two and runs where rows are (`split_rows`); a scalar of its shared state travels there by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.jaxprs.flat_program import is_literal, trace
from ampjax.optim.transform import transform

Tree = Any


class ToldState(NamedTuple):
    """What `told_staleness` keeps.

    Attributes:
      staleness: Of the next gradient, a float32 scalar, in updates; 0 until somebody writes it.
      inner: The state of the transform.
    """

    staleness: jax.Array
    inner: Any


def told_staleness(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`tx` with the staleness of each gradient read from its state, where `with_staleness` has written it.

    Args:
      tx: An optax transform.

    Returns:
      The transform. Its state is a `ToldState`.
    """
    own = optax.with_extra_args_support(tx)

    def init(params: Tree) -> ToldState:
        return ToldState(jnp.zeros((), jnp.float32), own.init(params))

    def update(grads: Tree, state: ToldState, params: Tree = None, **extra: Any) -> tuple[Tree, ToldState]:
        made, inner = own.update(grads, state.inner, params, **extra | {"staleness": state.staleness})
        return made, ToldState(state.staleness, inner)

    return transform(init, update)


def told_if_asked(tx: optax.GradientTransformation, params: Tree) -> optax.GradientTransformation:
    """`told_staleness(tx)` if its updates depend on staleness, and else `tx` itself, with its own state.

    Args:
      tx: An optax transform. If it can't be traced it is given back: its first use will tell why.
      params: The parameters.
    """
    try:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), params)
        return told_staleness(tx) if asks_staleness(tx, shapes) else tx
    except Exception:  # a user's transform may raise anything while it is traced, or ask for the loss
        return tx


def with_staleness(state: Tree, staleness: float) -> Tree:
    """A state that tells the next update this staleness; any but a `ToldState` is given back as it is.

    Args:
      state: The state of a transform.
      staleness: Updates that were made since the gradient's parameters were read.
    """
    return state._replace(staleness=np.float32(staleness)) if isinstance(state, ToldState) else state


def asks_staleness(tx: optax.GradientTransformation, params: Tree) -> bool:
    """Whether updates depend on the staleness that they are told.

    Args:
      tx: An optax transform. What it raises while it is traced goes on to the caller.
      params: The parameters, or their shapes and dtypes.
    """
    step, state = optax.with_extra_args_support(tx), jax.eval_shape(tx.init, params)

    def update(staleness: Any, grads: Any, state: Any, params: Any) -> Any:
        return step.update(grads, state, params, staleness=staleness)

    flat = trace(update, jax.ShapeDtypeStruct((), np.float32), params, state, params)
    read = [*(atom for equation in flat.equations for atom in equation.invars), *flat.outputs]
    return any(not is_literal(atom) and atom is flat.inputs[0] for atom in read)
