"""The values of a forward pass that its adjoint needs and that depend on parameters.

AMPNet's adjoint uses the activations of the forward pass. Those that depend on parameters must be recorded, for parameters change between
the two passes; the others come out the same when they are computed again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from ampjax.ir.bodies import NodeBody

EXPENSIVE = (
    "dot_general",
    "conv_general_dilated",
    "scan",
    "while",
    "cholesky",
    "eigh",
    "svd",
    "custom_linear_solve",
)
"""Primitives whose results are kept even if they depend on inputs alone."""

ROWS = 3
"""Rows for which functions are traced."""


@dataclass(frozen=True)
class Made:
    """An array that a function makes.

    Args:
      shape: Its shape.
      dtype: Its dtype's name; empty for what is no array of numbers, such as a PRNG key.
      record: Whether it must be recorded: it depends on parameters, or is expensive to compute again.
    """

    shape: tuple[int, ...]
    dtype: str
    record: bool


def describe_results(
    function: Callable[..., Any],
    params: Any,
    *inputs: Any,
) -> list[Made]:
    """The arrays that `function(params, *inputs)` makes, in the order of its result's leaves.

    Args:
      function: Gives a list of arrays.
      params: Shapes of parameters.
      *inputs: Shapes of what does not depend on them.
    """
    jaxpr = jax.make_jaxpr(function)(params, *inputs).jaxpr
    needed = needing_record(jaxpr, len(jax.tree.leaves(params)))
    return [describe(jaxpr, var, needed) for var in jaxpr.outvars]


def needing_record(jaxpr: Any, n_params: int) -> dict[Any, bool]:
    """Finds the variables that can't be computed again from inputs alone at little cost.

    Args:
      jaxpr: A jaxpr.
      n_params: How many of its inputs, from the first on, are parameters.

    Returns:
      By variable, whether it depends on parameters or is expensive.
    """
    dependent = {var: i < n_params for i, var in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        depends = any(
            dependent.get(v, False) for v in equation.invars if not isinstance(v, Literal)
        )
        dependent.update(dict.fromkeys(equation.outvars, depends or _is_expensive(equation)))
    return dependent


def describe(
    jaxpr: Any,
    var: Any,
    needed: Mapping[Any, bool],
) -> Made:
    """Describes a variable of a jaxpr; inputs and constants need no record.

    Args:
      jaxpr: The jaxpr.
      var: The variable.
      needed: What `needing_record` gave.
    """
    aval: Any = var.aval
    is_array = hasattr(aval, "shape") and not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    computed = not isinstance(var, Literal) and var not in jaxpr.invars
    return Made(
        tuple(aval.shape),
        str(aval.dtype) if is_array else "",
        is_array and computed and needed.get(var, False),
    )


def records(
    body: NodeBody,
    rows: tuple[tuple[tuple[int, ...], str], ...],
) -> bool:
    """Whether the adjoint of a body with parameters needs activations that were recorded; that of a linear layer does not.

    Args:
      body: The body.
      rows: Shape and dtype name of a row of each input.
    """
    if body.init is None:
        return False

    def pullback(
        params: Any,
        inputs: Any,
        keys: Any,
    ) -> list[Any]:
        options = {"key": keys} if body.rng else {}
        mapped: Any = jax.vmap(
            lambda p, xs, more: body.apply(p, *xs, **more),
            (None, 0, 0),
        )
        floats = []
        for leaf in jax.tree.leaves((params, inputs)):
            floats.append(jnp.issubdtype(leaf.dtype, jnp.inexact))
        leaves, structure = jax.tree.flatten((params, inputs))

        def of_floats(float_leaves: list[Any]) -> Any:
            following = iter(float_leaves)
            full = []
            for is_float, leaf in zip(floats, leaves, strict=True):
                full.append(next(following) if is_float else leaf)
            return mapped(*jax.tree.unflatten(structure, full), options)

        float_leaves = [leaf for is_float, leaf in zip(floats, leaves, strict=True) if is_float]
        return jax.tree.leaves(jax.vjp(of_floats, float_leaves)[1])

    params = body.param_shapes
    inputs = tuple(jax.ShapeDtypeStruct((ROWS, *shape), dtype) for shape, dtype in rows)
    keys = jax.eval_shape(
        functools.partial(jax.random.split, num=ROWS),
        jax.random.key(0),
    )
    return any(
        array.record and array.shape[:1] == (ROWS,)
        for array in describe_results(pullback, params, inputs, keys)
    )


def _is_expensive(equation: Any) -> bool:
    if equation.primitive.name in EXPENSIVE:
        return True
    inner = (getattr(value, "jaxpr", value) for value in equation.params.values())
    return any(_is_expensive(e) for jaxpr in inner if hasattr(jaxpr, "eqns") for e in jaxpr.eqns)
