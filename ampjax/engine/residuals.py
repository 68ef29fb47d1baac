"""Recorded activations: what a stage's forward pass keeps for its adjoint.

AMPNet's adjoint uses the activations of the forward pass, even where the parameters have changed since (DESIGN: "current weights" means
recorded activations with current parameters). `jax.vjp` makes the residuals; those that depend on parameters are kept, row by row, beside
the output rows. What depends on inputs alone is computed again: it comes out the same, and XLA drops what nobody needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from ampjax.engine.program import Program
from ampjax.optim.update import combine, trainable

EXPENSIVE = ("dot_general", "conv_general_dilated", "scan", "while", "cholesky", "eigh", "svd", "custom_linear_solve")
"""Primitives whose results are kept even if they depend on inputs alone."""


@dataclass(frozen=True)
class Kept:
    """Which of a pullback's leaves are kept, and what a row of each looks like."""

    leaves: tuple[int, ...] = ()
    rows: tuple[tuple[tuple[int, ...], str], ...] = ()

    def pick(self, pull: Callable[..., Any]) -> list[jax.Array]:
        """The leaves to keep, each `[k, ...]`."""
        leaves = jax.tree.leaves(pull)
        return [leaves[i] for i in self.leaves]

    def put_back(self, pull: Callable[..., Any], kept: Sequence[jax.Array]) -> Callable[..., Any]:
        """The pullback with kept leaves in place of those computed anew."""
        leaves, structure = jax.tree.flatten(pull)
        for i, value in zip(self.leaves, kept, strict=True):
            leaves[i] = value
        return jax.tree.unflatten(structure, leaves)


def over_rows(program: Program, seeds: jax.Array | None) -> Callable[..., Any]:
    """The program mapped over rows: `function(params, inputs)`."""
    if seeds is None:
        return jax.vmap(lambda params, inputs: program(params, inputs), in_axes=(None, 0))
    mapped = jax.vmap(program, in_axes=(None, 0, 0))
    return lambda params, inputs: mapped(params, inputs, seeds)


def row_vjp(
    program: Program, params: tuple[Any, ...], inputs: tuple[Any, ...], seeds: Any
) -> tuple[Any, Callable[..., Any]]:
    """`jax.vjp` of the program over rows, with respect to the float parameters and the ports that take a gradient."""
    float_inputs = [x for x, takes in zip(inputs, program.float_ports, strict=True) if takes]
    function = over_rows(program, seeds)

    def of(floats: tuple[Any, ...], *xs: Any) -> Any:
        given = iter(xs)
        full = tuple(next(given) if takes else x for x, takes in zip(inputs, program.float_ports, strict=True))
        return function(tuple(combine(p, f) for p, f in zip(params, floats, strict=True)), full)

    return jax.vjp(of, tuple(trainable(p) for p in params), *float_inputs)


@functools.cache
def find_kept(program: Program, rows: tuple[tuple[tuple[int, ...], str], ...], params: Any) -> Kept:
    """Which residuals of a program to keep.

    Args:
      program: The program.
      rows: Shape and dtype name of a row of each port.
      params: `shapes_of(params)`.
    """
    structure, leaves = params
    given = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves])
    few, more = (_probe(program, rows, given, k) for k in (3, 5))
    kept = [
        (i, (shape[1:], dtype))
        for i, ((shape, dtype, keep), (other, _, _)) in enumerate(zip(few, more, strict=True))
        if keep and shape[:1] == (3,) and other == (5, *shape[1:])
    ]
    return Kept(tuple(i for i, _ in kept), tuple(row for _, row in kept))


def shapes_of(params: Any) -> Any:
    """A hashable description of a pytree of arrays."""
    leaves, structure = jax.tree.flatten(params)
    return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _probe(program: Program, rows: Any, params: Any, k: int) -> list[tuple[tuple[int, ...], str, bool]]:
    """Each leaf of the pullback for `k` rows: shape, dtype, and whether it is to be kept."""
    inputs = tuple(jax.ShapeDtypeStruct((k, *shape), dtype) for shape, dtype in rows)
    seeds = jax.ShapeDtypeStruct((k,), np.uint32) if program.random else None

    def leaves(params: Any, inputs: Any, seeds: Any) -> Any:
        return jax.tree.leaves(row_vjp(program, params, inputs, seeds)[1])

    closed = jax.make_jaxpr(leaves)(params, inputs, seeds)
    jaxpr = closed.jaxpr
    n_params = len(jax.tree.leaves(params))
    traits: dict[Any, tuple[bool, bool]] = {var: (i < n_params, False) for i, var in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        known = [traits.get(v, (False, False)) for v in equation.invars if not isinstance(v, Literal)]
        depends, dear = (any(t[n] for t in known) for n in (0, 1))
        for var in equation.outvars:
            traits[var] = (depends, dear or _is_expensive(equation))
    result = []
    for var in jaxpr.outvars:
        aval: Any = var.aval
        is_array = hasattr(aval, "shape") and not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        computed = not isinstance(var, Literal) and var not in jaxpr.invars
        keep = is_array and computed and any(traits.get(var, (False, False)))
        result.append((tuple(aval.shape), str(aval.dtype) if is_array else "", keep))
    return result


def _is_expensive(equation: Any) -> bool:
    if equation.primitive.name in EXPENSIVE:
        return True
    inner = (getattr(value, "jaxpr", value) for value in equation.params.values())
    return any(_is_expensive(e) for jaxpr in inner if hasattr(jaxpr, "eqns") for e in jaxpr.eqns)
