"""Recorded activations: the arrays that a stage's forward pass keeps for its adjoint.

AMPNet's adjoint uses the activations of the forward pass, even where the parameters have changed since ("current weights" means
recorded activations with current parameters). `jax.vjp` makes the residuals; those that depend on parameters are kept, row by row, beside
the output rows. What depends on inputs alone is computed again: it comes out the same, and XLA drops what nobody needs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from ampjax.devices.random_keys import is_key
from ampjax.engine.kernels.stage_program import ChainProgram, StageProgram
from ampjax.ir.parameter_dependence import Made, describe, needing_record
from ampjax.jaxprs.min_cut import smallest_cut
from ampjax.optim.node_update import combine, trainable

RowTypes = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype name of a row of each of some arrays."""


@dataclass(frozen=True)
class Residuals:
    """The residuals of a program that are recorded, and the leaves of its pullback that follow from the records.

    Args:
      leaves: The leaves of the pullback that are put back.
      rows: What is recorded: what a row of each looks like.
      places: Where it is made in a `_Trace`: equation and output; None if the leaves themselves are recorded.
    """

    leaves: tuple[int, ...] = ()
    rows: RowTypes = ()
    places: tuple[tuple[int, int], ...] | None = None

    def forward(
        self, program: StageProgram, params: Any, inputs: Any, seeds: Any
    ) -> tuple[Any, list[jax.Array]]:
        """Computes a program over rows.

        Args:
          program: The program that these residuals were found for.
          params: Its parameters.
          inputs: `[k, ...]` for each port.
          seeds: The rows' random numbers `[k]`, or None.

        Returns:
          Its outputs, and what is to be recorded, each `[k, ...]`.
        """
        # Outputs and records come from one trace, so what both need is computed once.
        traced = _Trace(program, params, inputs, seeds)
        if self.places is None:
            recorded = [traced.leaves[i] for i in self.leaves]
        else:
            recorded = traced.at(self.places)
        return traced.outputs_and(recorded)

    def backward(
        self,
        program: StageProgram,
        params: Any,
        inputs: Any,
        seeds: Any,
        recorded: Sequence[jax.Array],
    ) -> tuple[Any, Callable[..., Any]]:
        """As `row_vjp`, but with recorded activations in place of activations computed anew.

        Args:
          program: The program that these residuals were found for.
          params: Its parameters.
          inputs: `[k, ...]` for each port.
          seeds: The rows' random numbers `[k]`, or None.
          recorded: What `forward` returned to be recorded.

        Returns:
          Its outputs, and its pullback.
        """
        if not self.leaves:
            return row_vjp(program, params, inputs, seeds)
        traced = _Trace(program, params, inputs, seeds)
        # What was recorded lies before the leaves: these follow from it by cheap operations.
        if self.places is not None:
            recorded = traced.follow(
                traced.at(self.places),
                recorded,
                [traced.leaves[i] for i in self.leaves],
            )
        # All other leaves follow from inputs alone, and are computed anew.
        known = dict(zip(self.leaves, recorded, strict=True))
        outs, others = traced.outputs_and(
            [leaf for i, leaf in enumerate(traced.leaves) if i not in known]
        )
        anew = iter(others)
        leaves = []
        for i in range(len(traced.leaves)):
            leaves.append(known[i] if i in known else next(anew))
        return outs, jax.tree.unflatten(traced.pullback, leaves)


class _Trace:
    """The jaxpr of a program over rows and of its pullback's leaves, and the values of its variables."""

    def __init__(
        self,
        program: StageProgram,
        params: Any,
        inputs: Any,
        seeds: Any,
    ):
        self._arguments = jax.tree.leaves((params, inputs, seeds))
        traced = _vjp_of(program).trace(
            *jax.tree.map(
                _type_of,
                (params, inputs, seeds),
            )
        )
        outs, pull = traced.out_info
        self._closed = traced.jaxpr
        self.jaxpr = traced.jaxpr.jaxpr
        self.structure = jax.tree.structure(outs)
        self.pullback = jax.tree.structure(pull)
        n = self.structure.num_leaves
        self.outs = self.jaxpr.outvars[:n]
        self.leaves = self.jaxpr.outvars[n:]
        self.unfree = needing_record(
            self.jaxpr,
            len(jax.tree.leaves(params)),
        )

    def at(
        self,
        places: Sequence[tuple[int, int]],
    ) -> list[Any]:
        """The variables at some places."""
        result = []
        for i, j in places:
            result.append(self.jaxpr.eqns[i].outvars[j])
        return result

    def outputs_and(
        self,
        variables: Sequence[Any],
    ) -> tuple[Any, list[Any]]:
        """The program's outputs, and the values of some variables."""
        values = self.values([*self.outs, *variables])
        n = len(self.outs)
        return jax.tree.unflatten(self.structure, values[:n]), values[n:]

    def values(self, variables: Sequence[Any]) -> list[Any]:
        """The values of some variables."""
        names = self.jaxpr.debug_info._replace(
            result_paths=None
        )  # those of the trace, of which there are another number
        jaxpr = self.jaxpr.replace(outvars=[*variables], debug_info=names)
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, self._closed.consts))(*self._arguments)

    def follow(
        self,
        known: Sequence[Any],
        values: Sequence[Any],
        wanted: Sequence[Any],
    ) -> list[Any]:
        """Computes the values of `wanted` from the values of a cut, by cheap operations."""
        value_of = dict(zip(known, values, strict=True))
        steps = set[int]()
        stack = [v for v in wanted if v not in value_of]
        seen = set[Any]()
        makers = {}
        for i, equation in enumerate(self.jaxpr.eqns):
            for v in equation.outvars:
                makers[v] = i
        free: dict[Any, None] = {}
        # Backwards from what is wanted, to what is known or follows from inputs alone.
        while stack:
            var = stack.pop()
            if isinstance(var, Literal) or var in value_of or var in seen:
                continue
            seen.add(var)
            if not self.unfree.get(var, False):
                free[var] = None
                continue
            steps.add(makers[var])
            stack.extend(self.jaxpr.eqns[makers[var]].invars)
        # What follows from inputs is computed in one go.
        value_of.update(zip(free, self.values(list(free)), strict=True))
        # Then the steps between, in the order of the jaxpr, so each finds its operands.
        for equation in (self.jaxpr.eqns[i] for i in sorted(steps)):
            results = equation.primitive.bind(
                *(v.val if isinstance(v, Literal) else value_of[v] for v in equation.invars),
                **equation.params,
            )
            results = results if equation.primitive.multiple_results else [results]
            value_of.update(
                (v, x) for v, x in zip(equation.outvars, results, strict=True) if v not in value_of
            )
        return [value_of[v] for v in wanted]


@functools.lru_cache(maxsize=256)
def _vjp_of(program: StageProgram) -> Any:
    """`row_vjp` of a program, jitted for its traces, which JAX keeps: a stage's forward pass and its adjoint of as many rows share one."""
    return jax.jit(functools.partial(row_vjp, program))


def _type_of(x: Any) -> jax.ShapeDtypeStruct:
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def over_rows(
    program: StageProgram,
    seeds: jax.Array | None,
) -> Callable[..., Any]:
    """A program mapped over rows.

    Args:
      program: The program.
      seeds: The rows' random numbers `[k]`; None in inference, or where nothing is random.

    Returns:
      `function(params, inputs)`, with inputs and outputs `[k, ...]`.
    """
    if seeds is None:
        return jax.vmap(
            lambda params, inputs: program(params, inputs),
            in_axes=(None, 0),
        )
    mapped = jax.vmap(program, in_axes=(None, 0, 0))
    return lambda params, inputs: mapped(params, inputs, seeds)


def row_vjp(
    program: StageProgram,
    params: tuple[Any, ...],
    inputs: tuple[Any, ...],
    seeds: Any,
) -> tuple[Any, Callable[..., Any]]:
    """`jax.vjp` of a program over rows, with respect to the float parameters and the ports that take a gradient.

    Args:
      program: The program.
      params: Its parameters.
      inputs: `[k, ...]` for each port.
      seeds: The rows' random numbers `[k]`, or None.

    Returns:
      Its outputs, and a function from their cotangents to those of the parameters, then of each such port.
    """
    float_inputs = []
    for x, takes in zip(inputs, program.float_ports, strict=True):
        if takes:
            float_inputs.append(x)
    function = over_rows(program, seeds)

    def of(floats: tuple[Any, ...], *xs: Any) -> Any:
        floats_of_ports = iter(xs)
        full = tuple(
            next(floats_of_ports) if takes else x
            for x, takes in zip(inputs, program.float_ports, strict=True)
        )
        return function(
            tuple(combine(p, f) for p, f in zip(params, floats, strict=True)),
            full,
        )

    return jax.vjp(
        of,
        tuple(trainable(p) for p in params),
        *float_inputs,
    )


@functools.lru_cache(maxsize=256)
def find_residuals(program: StageProgram, rows: RowTypes, params: Any) -> Residuals:
    """Finds which residuals of a program to record.

    Args:
      program: The program.
      rows: Shape and dtype name of a row of each port.
      params: `shapes_of(params)`.
    """
    structure, leaves = params
    shapes = jax.tree.unflatten(
        structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves]
    )
    # Traces for three numbers of rows tell which residuals have a row for each message.
    one, few, more = (_probe(program, rows, shapes, k) for k in (1, 3, 5))
    chosen: list[tuple[int, Made]] = []
    for i, (var, other) in enumerate(zip(few.leaves, more.leaves, strict=True)):
        leaf = describe(few.jaxpr, var, few.unfree)
        if leaf.record and _is_row(var, other):
            chosen.append((i, leaf))
    numbers = tuple(i for i, _ in chosen)
    # Where a single row is traced otherwise than several, places in one jaxpr mean nothing in
    # another: leaves themselves are recorded.
    if (
        len(
            {
                tuple(equation.primitive.name for equation in trace.jaxpr.eqns)
                for trace in (one, few, more)
            }
        )
        > 1
    ):
        return Residuals(
            numbers,
            tuple((leaf.shape[1:], leaf.dtype) for _, leaf in chosen),
        )
    # Else the smallest values from which the leaves follow.
    places = _cut(
        few,
        more,
        [few.leaves[i] for i in numbers],
    )
    return Residuals(
        numbers,
        tuple((v.aval.shape[1:], str(v.aval.dtype)) for v in few.at(places)),
        places,
    )


def _cut(
    few: _Trace,
    more: _Trace,
    wanted: Sequence[Any],
) -> tuple[tuple[int, int], ...]:
    """Finds the equations that make the smallest values from which `wanted` follows: a minimum cut."""
    places: dict[Any, tuple[int, int]] = {}
    sizes: dict[Any, int] = {}
    for i, (equation, same) in enumerate(zip(few.jaxpr.eqns, more.jaxpr.eqns, strict=True)):
        for j, (var, other) in enumerate(zip(equation.outvars, same.outvars, strict=True)):
            if describe(few.jaxpr, var, few.unfree).record and _is_row(var, other):
                places[var] = i, j
                sizes[var] = math.prod(var.aval.shape[1:]) * var.aval.dtype.itemsize
    result = []
    for var in smallest_cut(few.jaxpr.eqns, few.unfree, sizes, wanted):
        result.append(places[var])
    return tuple(result)


def _is_row(few: Any, more: Any) -> bool:
    """Whether a variable, traced for 3 and for 5 messages, has a row for each."""
    shapes = few.aval.shape, more.aval.shape
    return shapes[0][:1] == (3,) and shapes[1] == (5, *shapes[0][1:])


def find_chain_residuals(program: ChainProgram, rows: RowTypes, params: Any) -> Residuals:
    """Finds the residuals of a chain's row-wise nodes to record; the collected rows are recorded before the residuals.

    Args:
      program: The chain's program.
      rows: Shape and dtype name of a row of each port.
      params: `shapes_of(params)`.
    """
    if program.rows is None:
        return Residuals()
    structure, leaves = params
    shapes = jax.tree.unflatten(
        structure, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves]
    )
    of_edges, of_row_nodes = program.split(shapes)
    (sent,) = jax.eval_shape(
        program.edge_types[0],
        of_edges[0],
        (jax.ShapeDtypeStruct(*rows[0]),),
    )
    collected = (sent.shape, str(sent.dtype))
    residuals = find_residuals(program.rows, (collected, *rows), shapes_of(of_row_nodes))
    return replace(residuals, rows=(collected, *residuals.rows))


def shapes_of(params: Any) -> Any:
    """A hashable description of a pytree of arrays, or of their shapes."""
    leaves, structure = jax.tree.flatten(params)
    return structure, tuple((tuple(leaf.shape), _dtype(leaf)) for leaf in map(_array, leaves))


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if is_key(leaf) else jnp.result_type(leaf.dtype)


def _array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "shape") else jnp.asarray(leaf)


def _probe(
    program: StageProgram,
    rows: RowTypes,
    params: Any,
    k: int,
) -> _Trace:
    """The trace for `k` rows."""
    inputs = tuple(jax.ShapeDtypeStruct((k, *shape), dtype) for shape, dtype in rows)
    return _Trace(
        program,
        params,
        inputs,
        jax.ShapeDtypeStruct((k,), np.uint32) if program.random else None,
    )
