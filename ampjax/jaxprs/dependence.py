"""The dependence of a flat program's values on tables: a value has one entry per row, is the same for all rows, or is shared.

Follows the equations once, from inputs to outputs, and refuses what is not row-wise. Knows programs; nothing of optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ampjax.errors import TableError
from ampjax.jaxprs.flat_program import Equation, FlatProgram, Var, is_literal
from ampjax.jaxprs.rowwise import is_elementwise, is_reduction, is_rowwise

_ROW_WISE = "Take a transform that treats each row of the table for itself, or keep the variable dense (`ParallaxConfig(keep_dense=...)`)."


@dataclass(frozen=True)
class RowInput:
    """An input that has one entry per row of a table.

    Args:
      table: The table's name.
      is_gradient: Whether rows that were not touched hold zeros in it.
      is_transposed: Whether the parameter has other axes than the table: then no operation may go by axes.
    """

    table: str
    is_gradient: bool = False
    is_transposed: bool = False


@dataclass(frozen=True)
class RowReduction:
    """A reduction over all rows of a table, of a function of its gradient: the sum in a norm, for example.

    Args:
      table: The table's name.
      equation: The operation.
      round: 0 if it needs no other reduction's result, else one more than the latest that it needs.
    """

    table: str
    equation: Equation
    round: int

    @property
    def result(self) -> Var:
        """The variable that holds the total."""
        return self.equation.outvars[0]


@dataclass
class Dependence:
    """The dependence of one program's variables on tables. Variables in none of these collections are shared.

    Args:
      table_of: By variable with one entry per row, its table.
      uniform: Shared variables whose rows along the first axis are all equal.
      stateful: Row variables that depend on parameters or states of the row, and not on its gradient only.
      transposed: Tables of parameters that have other axes.
      reductions: In the program's order.
      producer: The equation that makes a variable.
    """

    table_of: dict[Var, str] = field(default_factory=dict)
    uniform: set[Var] = field(default_factory=set)
    stateful: set[Var] = field(default_factory=set)
    transposed: set[str] = field(default_factory=set)
    reductions: list[RowReduction] = field(default_factory=list)
    producer: dict[Var, Equation] = field(default_factory=dict)

    def is_aligned(self, atom: Any, table: str) -> bool:
        """Tells whether an operand has, or can be given, one entry for each of any number of the table's rows.

        Args:
          atom: A variable or a literal.
          table: The table.
        """
        return not is_literal(atom) and (self.table_of.get(atom) == table or atom in self.uniform)


def find_dependence(flat: FlatProgram, inputs: Sequence[RowInput | None]) -> Dependence:
    """Finds how each of a program's variables depends on tables.

    Args:
      flat: The program.
      inputs: For each input whose rows it has, or None where it is shared.

    Returns:
      What was found; variables in none of its tables are shared.

    Raises:
      TableError: If an operation on rows is not row-wise, joins rows of two tables, or folds parameters or states.
    """
    dependence = Dependence()
    round_of = dict.fromkeys((*flat.constants, *flat.inputs), 0)
    for var, rows in zip(flat.inputs, inputs, strict=True):
        if rows is not None:
            dependence.table_of[var] = rows.table
            dependence.stateful |= set() if rows.is_gradient else {var}
            dependence.transposed |= {rows.table} if rows.is_transposed else set()
    for equation in flat.equations:
        dependence.producer.update(dict.fromkeys(equation.outvars, equation))
        operands = [atom for atom in equation.invars if not is_literal(atom)]
        turn = max((round_of[atom] for atom in operands), default=0)
        is_total = _follow_equation(equation, operands, turn, dependence)
        round_of.update(dict.fromkeys(equation.outvars, turn + is_total))
    return dependence


def _follow_equation(
    equation: Equation, operands: list[Var], turn: int, dependence: Dependence
) -> bool:
    """Finds the dependence of one equation's results on tables; returns True for a reduction."""
    tables = {dependence.table_of[atom]: None for atom in operands if atom in dependence.table_of}
    if not tables:
        aligned = [not is_literal(atom) and atom in dependence.uniform for atom in equation.invars]
        dependence.uniform |= set(equation.outvars) if is_rowwise(equation, aligned) else set()
        return False
    table, *others = tables
    if others:
        _refuse(table, equation, f"joins its rows with those of table `{others[0]}`")
    if table in dependence.transposed and not is_elementwise(equation):
        _refuse(
            table, equation, "goes by axes, where the parameter has others than its table of rows"
        )
    stateful = any(atom in dependence.stateful for atom in operands)
    if is_reduction(equation):
        if stateful:
            _refuse(
                table,
                equation,
                "folds all rows of its parameters or states, not only of its gradient",
            )
        dependence.reductions.append(RowReduction(table, equation, turn))
        return True
    if not is_rowwise(equation, [dependence.is_aligned(atom, table) for atom in equation.invars]):
        _refuse(table, equation, _why(equation, table, dependence))
    dependence.table_of.update(dict.fromkeys(equation.outvars, table))
    dependence.stateful |= set(equation.outvars) if stateful else set()
    return False


def _why(equation: Equation, table: str, dependence: Dependence) -> str:
    foreign = []
    for a in equation.invars:
        if not is_literal(a) and a.aval.shape and not dependence.is_aligned(a, table):
            foreign.append(a)
    if foreign and foreign[0] in dependence.producer:
        return f"joins its rows with what `{dependence.producer[foreign[0]].primitive.name}` made, {foreign[0].aval.str_short()}"
    return "works across its rows, or is unknown here"


def _refuse(table: str, equation: Equation, why: str) -> None:
    name = equation.primitive.name
    raise TableError(
        f"tx, table `{table or 'params'}`",
        "an update that works row by row",
        f"operation `{name}`, which {why}",
        _ROW_WISE,
    )
