"""A function as equations with its variables' values, and the rest of the function where some variables are constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ampjax.frontend.combinators.tracing import Traced
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name, equations_for, flatten
from ampjax.frontend.deduction.numpy_equations import numpy_results
from ampjax.frontend.draft.payload_types import is_key
from ampjax.frontend.draft.values import Constant, OfParams, Value
from ampjax.jaxprs.primitives import bind


@dataclass(frozen=True, eq=False)
class Opened:
    """A function in one place.

    Args:
      equations: Its equations, in order.
      results: What it returns.
      values: What its variables are.
      called: The user's name for what it gives; empty if it has none.
    """

    equations: list[Equation]
    results: list[Atom]
    values: Mapping[Name, Value]
    called: str = ""

    def needs_params(self, results: Iterable[int]) -> bool:
        """Tells whether some results need the model's parameters."""
        wanted = [self.results[i] for i in results]
        read = {
            atom for equation in equations_for(self.equations, wanted) for atom in equation.inputs
        } | set(wanted)
        return any(
            isinstance(self.values.get(atom), OfParams) for atom in read if isinstance(atom, Name)
        )

    def fold_constants(self) -> Opened:
        """Folds constants: results that follow from constants become constants, and additions of zero are left out.

        A product with zeros is zero here, also where the other factor is not finite. Functions made with `amp.node` are equations like others.
        """
        known: dict[Name, Atom] = {}
        for name, value in self.values.items():
            if isinstance(value, Constant):
                known[name] = Known(value.value)
        left: list[Equation] = []

        def read(atom: Atom) -> Atom:
            return known.get(atom, atom) if isinstance(atom, Name) else atom

        def fold(equations: Sequence[Equation]) -> None:
            for equation in equations:
                inputs = tuple(map(read, equation.inputs))
                if equation.call is not None and equation.call.kind.is_function:
                    (function,) = equation.call.functions
                    inside, results = flatten(
                        function, dict(zip(function.variables, inputs, strict=True))
                    )
                    fold(inside)
                    known.update(zip(equation.outputs, map(read, results), strict=True))
                elif (folded := _fold(equation, inputs)) is None:
                    left.append(replace(equation, inputs=inputs))
                else:
                    known.update(zip(equation.outputs, folded, strict=True))

        fold(self.equations)
        return replace(
            self,
            equations=left,
            results=[read(atom) for atom in self.results],
        )


def open_function(function: Traced, values: Sequence[Value]) -> Opened:
    """A function's equations."""
    atoms = {variable: Name(variable.aval) for variable in function.variables}
    equations, results = flatten(function, atoms)
    return Opened(
        equations,
        results,
        dict(zip(atoms.values(), values, strict=True)),
        function.called,
    )


def constant_results(source: Any, values: Sequence[Any]) -> list[Any]:
    """Computes an operation on constants."""
    results: Sequence[Any] | None = numpy_results(source, values)
    if results is None:
        with jax.ensure_compile_time_eval():
            results = bind(source, values)
    return [result if is_key(result) else np.asarray(result) for result in results]


def _fold(
    equation: Equation,
    inputs: Sequence[Atom],
) -> list[Atom] | None:
    """Returns an equation's results, if nothing has to be computed for them when the model runs."""
    if equation.draws or equation.reads is not None or equation.call is not None:
        return None
    if all(isinstance(atom, Known) for atom in inputs):
        result = []
        for x in constant_results(
            equation.source, [a.value for a in inputs if isinstance(a, Known)]
        ):
            result.append(Known(x))
        return result
    return _without_zeros(equation, inputs)


def _without_zeros(
    equation: Equation,
    inputs: Sequence[Atom],
) -> list[Atom] | None:
    """Returns the results of a product with zeros, or of a sum with zeros; None for any other equation."""
    zeros = [_is_zero(atom) for atom in inputs]
    if not any(zeros):
        return None
    name = equation.source.primitive.name
    kind = equation.outputs[0].aval
    if name in ("mul", "dot_general", "conv_general_dilated"):
        return [Known(np.zeros(kind.shape, kind.dtype))]
    if name in ("add", "add_any") or (name == "sub" and not zeros[0]):
        other = inputs[1 if zeros[0] else 0]
        if isinstance(other, Name) and other.aval.shape == kind.shape:
            return [other]
    return None


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Known) and not is_key(atom.value) and not np.any(atom.value)
