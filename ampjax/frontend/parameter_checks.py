"""Checks of a model's parameters, which can only be arrays of floats, without layers of flax that keep a state."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError


def require_float(where: str, leaf: Any) -> None:
    """Checks that a leaf of the parameters is an array of floats, or a float.

    Raises:
      GraphError: If it is anything else.
    """
    is_array = isinstance(
        leaf,
        jax.Array | np.ndarray | np.generic | bool | int | float | complex,
    )
    dtype = getattr(leaf, "dtype", type(leaf))
    if is_array and jnp.issubdtype(dtype, np.inexact):
        return
    fix = "Put what is not trained into the instances, or let the model close over it."
    if isinstance(leaf, str):
        fix = "Is this the spec? It comes third: `amp.compile(model, params, spec)`."
    elif hasattr(leaf, "init") and hasattr(leaf, "apply"):
        fix = "Give what the module's `init` returns, and call its `apply` in the model."
    got = str(dtype) if is_array and hasattr(leaf, "dtype") else type(leaf).__name__
    raise GraphError(where, "arrays of floats", got, fix)


def refuse_state(where: str, value: Any) -> None:
    """Checks that a module of flax.nnx has no variables but parameters.

    Args:
      where: What an error calls it.
      value: A module, or anything else.

    Raises:
      GraphError: If it has, such as batch statistics or random streams.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    for module in jax.tree.leaves(
        value,
        is_leaf=lambda part: isinstance(part, nnx.Module),
    ):
        if isinstance(module, nnx.Module):
            variables = jax.tree.leaves(
                nnx.state(module), is_leaf=lambda part: isinstance(part, nnx.Variable)
            )
            others = sorted({type(each).__name__ for each in variables} - {"Param"})
            if others:
                fix = "Split it, `graph, params, rest = nnx.split(module, nnx.Param, ...)`, give `params`, and merge them in the model."
                raise GraphError(
                    where, "a module whose variables are all `Param`", f"{', '.join(others)}", fix
                )
