"""Parts of a traced function of rows: the inputs that some values need, and the values that can be computed before a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampjax.jaxprs.primitives import bind, depending, needed_equations, value_of, variables_read

Variable = Any

HEAVY = ("dot_general", "conv_general_dilated", "product_by_number")
"""Operations that are better done once for all rows of a loop, where they do not wait for what the loop computes."""


def is_read_early(n_reads: int, n_rows: int) -> bool:
    """Tells whether rows are better read before a loop than in each step: all steps together read about as many as there are.

    Args:
      n_reads: How many reads all steps make.
      n_rows: How many rows there are.
    """
    return n_reads <= 2 * n_rows


@dataclass(frozen=True, eq=False)
class TracedRows:
    """A function of rows, traced for one number of rows.

    The same function traced for another number has the same equations; so a variable is known by its place: the number of its equation and of
    the result; inputs by -1 and their number.

    Args:
      jaxpr: An open jaxpr without constants.
      n_rows: The number of rows.
    """

    jaxpr: Any
    n_rows: int

    @property
    def inputs(self) -> list[Variable]:
        """The variables of the function's inputs."""
        return list(self.jaxpr.invars)

    @property
    def outputs(self) -> list[Any]:
        """The variables, or numbers, of the function's results."""
        return list(self.jaxpr.outvars)

    def at(self, place: tuple[int, int]) -> Variable:
        """The variable at a place."""
        number, part = place
        return self.jaxpr.invars[part] if number < 0 else self.jaxpr.eqns[number].outvars[part]

    def places(self) -> dict[Variable, tuple[int, int]]:
        """The places of all variables."""
        found = {}
        for part, variable in enumerate(self.jaxpr.invars):
            found[variable] = (-1, part)
        for number, equation in enumerate(self.jaxpr.eqns):
            for part, variable in enumerate(equation.outvars):
                found[variable] = (number, part)
        return found

    def needed(
        self, wanted: Sequence[Any], known: Mapping[Variable, Any] | set[Variable]
    ) -> tuple[list[Any], list[Variable]]:
        """The equations that some values need, and the known values that these start from.

        Args:
          wanted: Variables, or numbers.
          known: Variables that need not be computed.
        """
        equations = needed_equations(self.jaxpr.eqns, wanted, known)
        read = variables_read(equations, wanted)
        return equations, [v for v in known if v in read]

    def compute(
        self,
        known: Mapping[Variable, Any],
        wanted: Sequence[Any],
    ) -> list[Any]:
        """Values of some variables.

        Args:
          known: Values that are known.
          wanted: Variables, or numbers.
        """
        env = dict(known)
        equations, _ = self.needed(wanted, known)
        for equation in equations:
            results = bind(equation, [value_of(v, env) for v in equation.invars])
            for variable, value in zip(equation.outvars, results, strict=True):
                env.setdefault(variable, value)
        return [value_of(v, env) for v in wanted]

    def depending(self, roots: Sequence[Variable]) -> set[Variable]:
        """Finds the variables that depend on some roots, roots included.

        Args:
          roots: The roots.
        """
        return depending(self.jaxpr.eqns, roots)

    def early(
        self,
        rows: Sequence[Variable],
        late: Sequence[Variable],
        other: TracedRows,
    ) -> list[Variable]:
        """Finds results of heavy operations on rows, and of reads of tables, that do not depend on late inputs, and have their rows in front.

        Args:
          rows: Inputs with a row for each row.
          late: Inputs that come late.
          other: The same function, traced for another number of rows.
        """
        of_rows = self.depending(rows)
        comes_late = self.depending(late)
        places = self.places()
        found = []
        behind = set()
        for equation in self.jaxpr.eqns:
            result = equation.outvars[0]
            is_heavy = equation.primitive.name in HEAVY or self._reads_table(equation)
            if is_heavy:
                is_wanted = result in of_rows and result not in comes_late
            else:
                # `w @ x` has the rows of `x` behind, and is turned round then
                is_wanted = equation.primitive.name == "transpose" and equation.invars[0] in behind
            if not is_wanted:
                continue
            if self._has_rows_in_front(result, other.at(places[result]), other.n_rows):
                found.append(result)
            else:
                behind.add(result)
        return found

    def _has_rows_in_front(self, one: Variable, same: Variable, n_others: int) -> bool:
        """Tells whether the first axis of a variable counts the rows, by the same variable of another number of rows."""
        shape = one.aval.shape
        return shape[:1] == (self.n_rows,) and same.aval.shape == (n_others, *shape[1:])

    def _reads_table(self, equation: Any) -> bool:
        """Tells whether an operation reads rows of an array that has about as many rows as the loop, or more."""
        if equation.primitive.name != "gather":
            return False
        shape = equation.invars[0].aval.shape
        return bool(shape) and is_read_early(self.n_rows, shape[0])
