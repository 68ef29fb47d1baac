"""A function's equations as one flat list: calls of `jax.jit` are replaced by their equations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.extend import core as jex

from ampjax.errors import GraphError
from ampjax.frontend.combinators.branches import READ
from ampjax.frontend.combinators.draw_places import DrawPlace
from ampjax.frontend.combinators.tracing import COMBINATOR, Call, Traced, bodies
from ampjax.frontend.draft.long_axes import is_sequence
from ampjax.jaxprs.primitives import (
    CALLS,
    REMATERIALIZED,
    bind,
    called,
    evaluate,
    for_usual_platforms,
    inner,
    is_anywhere,
    line_text,
    opened,
    source_function,
    users_frames,
)


@dataclass(frozen=True, eq=False)
class Name:
    """A variable.

    Args:
      aval: Its type.
    """

    aval: Any


@dataclass(frozen=True, eq=False)
class Known:
    """A number written into the program, or an array that a function closes over.

    Args:
      value: The number or array.
    """

    value: Any


Atom = Name | Known


@dataclass(frozen=True, eq=False)
class CodePlace:
    """The place of an equation: JAX keeps source lines only up to the innermost function that was traced by itself.

    Args:
      line: The user's line that had the function traced; it serves where no other line is known.
      callers: JAX's equations that call the functions under `jax.jit` or `jax.checkpoint` that it is in, the innermost first.
    """

    line: str
    callers: tuple[Any, ...] = ()

    def within(self, caller: Any) -> CodePlace:
        """The place inside of a function under `jax.jit`."""
        return CodePlace(self.line, (caller, *self.callers))

    @property
    def rematerialized(self) -> Any:
        """The outermost call of a function under `jax.checkpoint` around the place; None if there is none."""
        found = None
        for caller in self.callers:
            if caller.primitive.name in REMATERIALIZED:
                found = caller
        return found

    def lines(self, source: Any) -> Iterator[str]:
        """Yields the user's lines that lead to an equation, the innermost first; at least one."""
        frame = None
        for frame in (
            each for equation in (source, *self.callers) for each in users_frames(equation)
        ):
            yield line_text(Path(frame.file_name), frame.line_num)
        if frame is None:
            yield self.line


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation.

    Args:
      source: JAX's equation.
      inputs: Its operands.
      outputs: Its results.
      place: Where it is.
      indexing: The equation that reads by numbers, if that one is joined to it.
    """

    source: Any
    inputs: tuple[Atom, ...]
    outputs: tuple[Name, ...]
    place: CodePlace
    indexing: Equation | None = None

    @property
    def call(self) -> Call | None:
        """The combinator that the equation uses; None for a computation inside a node: an operation of JAX, a random draw, or a read."""
        used = self._used
        return None if used is None or used.kind.inside_node else used

    @property
    def reads(self) -> int | None:
        """The assumed value, if the equation is an `amp.read` of its operand; else None."""
        used = self._used
        return used.options["assume"] if used is not None and used.kind == READ else None

    @property
    def draws(self) -> bool:
        """Tells whether the equation draws random numbers."""
        return self._used is not None and self._used.kind.draws

    @property
    def _used(self) -> Call | None:
        return self.source.params["call"] if self.source.primitive is COMBINATOR else None

    @property
    def line(self) -> str:
        """The user's line."""
        if self._used:
            return self._used.line
        return next(self.place.lines(self.source))

    @property
    def origin(self) -> str:
        """The user's lines that lead to the equation, from the outermost: `model.py:23 > layers.py:9`."""
        if self._used:
            return self._used.line
        return " > ".join(reversed([*self.place.lines(self.source)]))

    def evaluate(
        self,
        key: Any,
        operands: Sequence[Any],
    ) -> list[Any]:
        """Computes its results.

        Args:
          key: A PRNG key in training, where it draws; else None.
          operands: Values of its operands.
        """
        if self.reads is not None:
            return [jax.lax.stop_gradient(operands[0])]
        if not self.draws:
            return bind(self.source, operands)
        call = self.source.params["call"]
        n_first, n_second = call.n_closed
        first, second = call.functions
        rest = list(operands[n_first + n_second :])
        if key is None:
            return _run(second, [*operands[n_first : n_first + n_second], *rest])
        return _run(first, [*operands[:n_first], key, *rest])

    @property
    def function(self) -> str:
        """The user's function around the equation; empty for a function without a name."""
        name = source_function(self.source)
        return "" if name.startswith("<") else name.strip("_")

    @property
    def tells(self) -> bool:
        """Tells whether the equation, or a function in it, reports something beside its results: a metric or an output."""
        return self.call is not None and (
            self.call.kind.reports
            or any(_has_report(function.jaxpr) for function in self.call.functions)
        )


class Equations:
    """A function of several equations, from the variables that the equations read."""

    def __init__(
        self,
        steps: Sequence[Equation],
        roots: Sequence[Name],
        results: Sequence[Atom],
    ):
        self.steps = steps
        self.roots = roots
        self.results = results

    def __call__(self, key: Any, *inputs: Any) -> list[Any]:
        """Computes the results from the variables that were read."""
        known: dict[Name, Any] = dict(zip(self.roots, inputs, strict=True))
        for number, step in enumerate(self.steps):
            operands = []
            for atom in step.inputs:
                operands.append(atom.value if isinstance(atom, Known) else known[atom])
            if step.draws and key is not None:
                call_key = jax.random.fold_in(key, number)
            else:
                call_key = None
            known |= dict(zip(step.outputs, step.evaluate(call_key, operands), strict=True))
        result = []
        for atom in self.results:
            result.append(atom.value if isinstance(atom, Known) else known[atom])
        return result


def places_of(steps: Sequence[Equation]) -> list[tuple[int, DrawPlace]]:
    """Lists the numbers of the steps that draw random numbers, and their places in the model.

    Args:
      steps: The steps of a node's body, as `Equations` numbers them.
    """
    result = []
    for number, step in enumerate(steps):
        if step.draws:
            result.append((number, step.source.params["call"].place))
    return result


def flatten(
    function: Traced,
    operands: Mapping[Any, Atom],
) -> tuple[list[Equation], list[Atom]]:
    """Makes the flat list.

    Returns:
      The equations in order, and what the outputs are.

    Raises:
      GraphError: If a combinator is inside a transformation of JAX, such as `jax.vmap`, or a loop of `jax.lax`.
    """
    return _flatten(function.jaxpr, operands, CodePlace(function.line))


def _flatten(
    jaxpr: Any, operands: Mapping[Any, Atom], place: CodePlace
) -> tuple[list[Equation], list[Atom]]:
    known = dict(operands)
    equations: list[Equation] = []

    def read(atom: Any) -> Atom:
        return Known(atom.val) if isinstance(atom, jex.Literal) else known[atom]

    for source in jaxpr.eqns:
        inputs = tuple(read(atom) for atom in source.invars)
        usual = for_usual_platforms(source)
        if usual is not None:
            inputs = inputs[1:]
        if usual is not None or source.primitive.name in CALLS or _is_opened(source):
            body, constants = opened(called(source) if usual is None else usual)
            atoms = dict(
                zip(
                    [*body.constvars, *body.invars],
                    [*map(Known, constants), *inputs],
                    strict=True,
                )
            )
            inside, results = _flatten(body, atoms, place.within(source))
            equations += inside
            known |= dict(zip(source.outvars, results, strict=True))
            continue
        if source.primitive is not COMBINATOR and any(
            _has_combinator(body) for body in inner(source)
        ):
            raise GraphError(
                next(place.lines(source)),
                "combinators inside combinators only",
                f"one inside `{source.primitive.name}`",
                "Use ampjax's `scan`, `map` or `cond` there instead of JAX's.",
            )
        outputs = tuple(Name(variable.aval) for variable in source.outvars)
        known |= dict(zip(source.outvars, outputs, strict=True))
        equations.append(Equation(source, inputs, outputs, place))
    return equations, [read(atom) for atom in jaxpr.outvars]


def equations_for(
    equations: Sequence[Equation],
    wanted: Sequence[Atom],
) -> list[Equation]:
    """The equations that the wanted results, metrics or outputs need, in order."""
    alive = {atom for atom in wanted if isinstance(atom, Name)}
    wanted_equations = []
    for equation in reversed(equations):
        if equation.tells or any(name in alive for name in equation.outputs):
            wanted_equations.append(equation)
            alive |= {atom for atom in equation.inputs if isinstance(atom, Name)}
    return wanted_equations[::-1]


def calls(jaxpr: Any) -> Iterator[Call]:
    """Yields all uses of combinators, also inside of combinators' functions."""
    for equation in jaxpr.eqns:
        if equation.primitive is COMBINATOR:
            yield equation.params["call"]
        for body in bodies(equation):
            yield from calls(body)


def _run(function: Traced, values: Sequence[Any]) -> list[Any]:
    n = len(function.jaxpr.constvars)
    return evaluate(
        function.jaxpr,
        values[:n],
        values[n:],
        bind,
    )


def _has_report(jaxpr: Any) -> bool:
    return any(call.kind.reports for call in calls(jaxpr))


def _is_opened(source: Any) -> bool:
    """Tells whether an equation is a function under `jax.checkpoint` that has sequences or combinators."""
    if source.primitive.name not in REMATERIALIZED:
        return False
    types = []
    for atom in (*source.invars, *source.outvars):
        types.append(atom.aval)
    return any(map(is_sequence, types)) or any(map(_has_combinator, inner(source)))


def _has_combinator(jaxpr: Any) -> bool:
    return is_anywhere(jaxpr, lambda equation: equation.primitive is COMBINATOR)
