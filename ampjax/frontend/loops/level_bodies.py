"""The body of a loop over steps as functions of any number of rows: forwards, backwards, and a last part for all rows at once.

A body computes states of some rows from *constants* (parameters, say), from states that it reads, and from rows that are known before the loop.
It is traced with its derivative as one program, for each row count and for all rows of the loop. From this, parts are computed: in the loop what the
states need, and of the derivative what cotangents of the states that were read need; behind it, for all rows at once, the cotangents of the others.
What is kept in between is a minimum cut (`jaxprs.min_cut`): so few bytes a row that the rest follows by cheap operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.extend.core import Literal

from ampjax.errors import InvariantError
from ampjax.frontend.loops.traced_rows import TracedRows
from ampjax.jaxprs.inlining import inline_calls
from ampjax.jaxprs.min_cut import CHEAP, smallest_cut
from ampjax.jaxprs.primitives import is_inexact, opened
from ampjax.lanes.rewriting.one_kernel import are_small

Place = tuple[int, int]


@dataclass(frozen=True, eq=False)
class BodyParts:
    """The kinds of a body's inputs, by the inputs' numbers.

    Args:
      n_moving: Constants that have a gradient.
      n_fixed: Constants that have none.
      n_reads: States that are read.
      n_moving_rows: Rows that have a gradient.
      n_fixed_rows: Rows that have none.
      n_states: States that are computed.
    """

    n_moving: int
    n_fixed: int
    n_reads: int
    n_moving_rows: int
    n_fixed_rows: int
    n_states: int

    def split(self, values: Sequence[Any]) -> list[list[Any]]:
        """Splits inputs by kind; the last list has the values behind all inputs."""
        sizes = (self.n_moving, self.n_fixed, self.n_reads, self.n_moving_rows, self.n_fixed_rows)
        parts = []
        first = 0
        for size in sizes:
            parts.append(list(values[first : first + size]))
            first += size
        return [*parts, list(values[first:])]


class LevelBody:
    """A body for several numbers of rows.

    Args:
      bodies: The body for each number of rows: from constants, states that are read and rows, in the order of `parts`, to states.
      parts: What its inputs are.
      types: For each number of rows, the types of its inputs.
    """

    def __init__(
        self,
        bodies: dict[int, Callable[..., list[Any]]],
        parts: BodyParts,
        types: dict[int, list[Any]],
    ):
        self.parts = parts
        self._both: dict[int, TracedRows] = {}
        for n_rows, body in bodies.items():
            self._both[n_rows] = _with_derivative(
                body,
                parts,
                types[n_rows],
                n_rows,
            )

    @cached_property
    def kept(self) -> list[Place]:
        """The places of the values kept of the forward pass, beside the states."""
        widths = sorted(self._both)
        return _kept(
            self._both[widths[-1]],
            self._both[widths[0]],
            self.parts,
        )

    def kept_types(self, n_rows: int) -> list[Any]:
        """Returns the types of the kept values."""
        both = self._both[n_rows]
        return [both.at(place).aval for place in self.kept]

    def is_small(self, n_rows: int) -> bool:
        """Tells whether the states of some rows take little to compute.

        Args:
          n_rows: How many rows.
        """
        both = self._both[n_rows]
        states = both.outputs[: self.parts.n_states]
        equations, _ = both.needed(states, set(both.inputs))
        return are_small(equations)

    def forward(
        self, n_rows: int, inputs: Sequence[Any], is_kept: bool
    ) -> tuple[list[Any], list[Any]]:
        """Computes states of some rows, and the values to keep.

        Args:
          n_rows: How many rows.
          inputs: The body's inputs.
          is_kept: Whether anything is kept.
        """
        both = self._both[n_rows]
        known = dict(zip(both.inputs, inputs, strict=False))
        states = both.outputs[: self.parts.n_states]
        kept = [both.at(place) for place in self.kept] if is_kept else []
        found = both.compute(
            known,
            [*states, *kept],
        )
        return found[: len(states)], found[len(states) :]

    def backward(
        self,
        n_rows: int,
        inputs: Sequence[Any],
        states: Sequence[Any],
        kept: Sequence[Any],
        cotangents: Sequence[Any],
        of_reads: bool,
    ) -> list[Any]:
        """Computes cotangents of the states that were read, or cotangents of constants and rows.

        Args:
          n_rows: How many rows.
          inputs: The body's inputs.
          states: The states that it gave.
          kept: What was kept.
          cotangents: Cotangents of the states.
          of_reads: Which of both.
        """
        both = self._both[n_rows]
        known = dict(zip(both.inputs, [*inputs, *cotangents], strict=True))
        own = both.outputs[: self.parts.n_states]
        for variable, value in zip(own, states, strict=True):
            if not isinstance(variable, Literal):
                known.setdefault(variable, value)
        for place, value in zip(self.kept, kept, strict=True):
            known[both.at(place)] = value
        parts = self.parts
        found = both.outputs[parts.n_states :]
        moving = found[: parts.n_moving]
        reads = found[parts.n_moving : parts.n_moving + parts.n_reads]
        rows = found[parts.n_moving + parts.n_reads :]
        return both.compute(
            known,
            reads if of_reads else [*moving, *rows],
        )


def traced(
    function: Callable[..., Any], types: Sequence[Any], n_rows: int
) -> tuple[TracedRows, Sequence[Any]]:
    """Traces a function of rows, and returns the constants of its closure, which become its first inputs.

    Args:
      function: The function.
      types: Types of its inputs.
      n_rows: How many rows these have.
    """
    jaxpr, constants = opened(jax.make_jaxpr(function)(*types))
    jaxpr = inline_calls(jaxpr)
    jaxpr = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return TracedRows(jaxpr, n_rows), constants


def _with_derivative(
    body: Callable[..., list[Any]], parts: BodyParts, types: Sequence[Any], n_rows: int
) -> TracedRows:
    """A body and its derivative as one program: from its inputs and cotangents of states to states and cotangents."""

    def both(*args: Any) -> list[Any]:
        moving, fixed, reads, rows, fixed_rows, seeds = parts.split(args)

        def of_moving(*given: Any) -> list[Any]:
            n = len(moving)
            m = n + len(reads)
            return body(
                *given[:n],
                *fixed,
                *given[n:m],
                *given[m:],
                *fixed_rows,
            )

        states, pull = jax.vjp(
            of_moving,
            *moving,
            *reads,
            *rows,
        )
        return [*states, *pull(seeds)]

    found, constants = traced(
        both,
        [
            *types,
            *jax.eval_shape(
                body,
                *types,
            ),
        ],
        n_rows,
    )
    if len(constants):
        raise InvariantError(
            "batch, loop", "a body without constants", f"{len(constants)}", "Report it."
        )
    return found


def _kept(
    both: TracedRows,
    other: TracedRows,
    parts: BodyParts,
) -> list[Place]:
    """Chooses the values kept of the forward pass, and returns their places."""
    _, _, reads, rows, fixed_rows, seeds = parts.split(both.inputs)
    backward = both.depending(seeds)
    of_rows = both.depending([*reads, *rows, *fixed_rows])
    late = both.depending(reads)
    places = both.places()
    unfree: dict[Any, bool] = {}
    sizes: dict[Any, int] = {}
    wanted: list[Any] = []
    forward = []
    states = set(both.outputs[: parts.n_states])
    for equation in both.jaxpr.eqns:
        operands = [v for v in equation.invars if not isinstance(v, Literal)]
        if equation.outvars[0] in backward:
            wanted += [v for v in operands if unfree.get(v)]
            continue
        forward.append(equation)
        name = equation.primitive.name
        is_read = name == "gather" and equation.outvars[0] not in late
        is_cheap = name in CHEAP or is_read
        for v in equation.outvars:
            if v in of_rows:
                unfree[v] = not is_cheap or any(unfree.get(x) for x in operands)
                size = _row_bytes(
                    v.aval,
                    other.at(places[v]).aval,
                    both.n_rows,
                    other.n_rows,
                )
                if size is not None:
                    sizes[v] = 0 if v in states else size
    wanted = [v for v in dict.fromkeys(wanted)]
    cut = smallest_cut(forward, unfree, sizes, wanted)
    return [places[v] for v in cut if v not in states]


def _row_bytes(
    kind: Any,
    other: Any,
    n_rows: int,
    n_others: int,
) -> int | None:
    """Bytes of a row of an array that has one for each row; None for any other array."""
    if not kind.shape or kind.shape[0] != n_rows or other.shape != (n_others, *kind.shape[1:]):
        return None
    if (
        not is_inexact(kind.dtype)
        and kind.dtype != bool
        and not hasattr(
            kind.dtype,
            "itemsize",
        )
    ):
        return None
    return max(math.prod(kind.shape[1:]) * kind.dtype.itemsize, 1)
