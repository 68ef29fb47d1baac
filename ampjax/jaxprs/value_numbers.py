"""Numbers for the variables of a flat program: equal numbers mean equal values, or the same function of the rows of one table or another.

So it can be told which tables an optimizer treats alike. Knows programs and how they depend on tables; nothing of optimizers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ampjax.jaxprs.content import array_content, settings
from ampjax.jaxprs.dependence import Dependence
from ampjax.jaxprs.flat_program import Equation, FlatProgram, Var, is_literal

_SHAPES = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}
"""By operation the parameter that names the shape of its result, and so the number of rows."""


class ValueNumbers:
    """The numbers of one program's variables.

    Args:
      flat: The program.
      dependence: How its variables depend on tables.
      roles: By input that has rows what it is: inputs of several tables that have one role get one number.
    """

    def __init__(
        self,
        flat: FlatProgram,
        dependence: Dependence,
        roles: Mapping[Var, Hashable],
    ):
        self._dependence = dependence
        self._numbers: dict[Var, Hashable] = {}
        self._known: dict[Hashable, int] = {}
        self._totals = {reduction.result for reduction in dependence.reductions}
        for place, var in enumerate((*flat.constants, *flat.inputs)):
            self._numbers[var] = self._number(
                ("rows", roles[var]) if var in roles else ("input", place)
            )
        for equation in flat.equations:
            key = self.operation(equation)
            for place, var in enumerate(equation.outvars):
                # The total of one table's rows is another number than that of another one's.
                self._numbers[var] = self._number((var if var in self._totals else key, place))

    def of(self, atom: Any) -> Hashable:
        """Returns the value number of an operand or a result, or a literal's value.

        Args:
          atom: A variable or a literal.
        """
        if is_literal(atom):
            return (array_content(atom.val), atom.aval.dtype)
        return self._numbers[atom]

    def operation(self, equation: Equation) -> Hashable:
        """Describes an equation by its operation and its operands' numbers, independent of the number of rows."""
        (first, *_) = equation.outvars
        has_rows = first in self._dependence.table_of or first in self._dependence.uniform
        params = dict(equation.params)
        if has_rows and (name := _SHAPES.get(equation.primitive.name)):
            params[name] = params[name][1:]
        shapes = tuple(
            (
                var.aval.shape[1:] if has_rows else var.aval.shape,
                var.aval.dtype,
            )
            for var in equation.outvars
        )
        operands = tuple(map(self.of, equation.invars))
        # What folds rows that are all equal depends on how many there are.
        if has_rows:
            folded = ()
        else:
            folded = tuple(
                atom.aval.shape for atom in equation.invars if self._has_equal_rows(atom)
            )
        return (
            equation.primitive,
            settings(equation.replace(params=params)),
            operands,
            shapes,
            has_rows,
            folded,
        )

    def _has_equal_rows(self, atom: Any) -> bool:
        return not is_literal(atom) and atom in self._dependence.uniform

    def _number(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))
