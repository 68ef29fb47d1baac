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

from ampjax.engine.program import ChainProgram, Program
from ampjax.ir.adjoint import Made, made
from ampjax.optim.update import combine, trainable


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
        (i, (leaf.shape[1:], leaf.dtype))
        for i, (leaf, other) in enumerate(zip(few, more, strict=True))
        if leaf.record and leaf.shape[:1] == (3,) and other.shape == (5, *leaf.shape[1:])
    ]
    return Kept(tuple(i for i, _ in kept), tuple(row for _, row in kept))


def find_chain_kept(program: ChainProgram, rows: tuple[tuple[tuple[int, ...], str], ...], params: Any) -> Kept:
    """Which residuals of a chain's row-wise nodes to keep; what they collect is recorded before these.

    Args:
      program: The chain's program.
      rows: Shape and dtype name of a row of each port.
      params: `shapes_of(params)`.
    """
    if program.rows is None:
        return Kept()
    structure, leaves = params
    given = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves])
    ways, own = program.split(given)
    (sent,) = jax.eval_shape(program.ways[0], ways[0], (jax.ShapeDtypeStruct(*rows[0]),))
    collected = (sent.shape, str(sent.dtype))
    kept = find_kept(program.rows, (collected, *rows), shapes_of(own))
    return Kept(kept.leaves, (collected, *kept.rows))


def shapes_of(params: Any) -> Any:
    """A hashable description of a pytree of arrays, or of their shapes."""
    leaves, structure = jax.tree.flatten(params)
    return structure, tuple((tuple(leaf.shape), jnp.result_type(leaf.dtype)) for leaf in map(_array, leaves))


def _array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "shape") else jnp.asarray(leaf)


def _probe(program: Program, rows: Any, params: Any, k: int) -> list[Made]:
    """The leaves of the pullback for `k` rows."""
    inputs = tuple(jax.ShapeDtypeStruct((k, *shape), dtype) for shape, dtype in rows)
    seeds = jax.ShapeDtypeStruct((k,), np.uint32) if program.random else None

    def leaves(params: Any, inputs: Any, seeds: Any) -> Any:
        return jax.tree.leaves(row_vjp(program, params, inputs, seeds)[1])

    return made(leaves, params, inputs, seeds)
