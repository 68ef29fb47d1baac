"""Parts of a flat program as pure functions: the shared part, and the part of each table's rows.

A slice holds the equations that some results need. A table's slice stops at shared values, which come in as arguments; the
shared slice stops at reductions, whose totals come in as arguments. So each can run elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.jaxprs.dependence import Dependence
from ampjax.jaxprs.flat_program import Equation, FlatProgram, Var, is_literal
from ampjax.jaxprs.primitives import bind, needed_equations
from ampjax.jaxprs.rowwise import bind_rows


@dataclass(frozen=True)
class RowSlice:
    """Row-wise work on a table: from rows and shared values to rows, for any number of rows.

    Args:
      equations: In order.
      shared: The shared variables that it needs: their values are its first argument.
      results: What it gives: variables or literals.
      dependence: How the program's variables depend on tables.
      table: The table's name.
    """

    equations: tuple[Equation, ...]
    shared: tuple[Var, ...]
    results: tuple[Any, ...]
    dependence: Dependence
    table: str

    def __call__(
        self,
        shared: Sequence[Any],
        rows: dict[Var, Any],
    ) -> list[jax.Array]:
        """The results for some rows.

        Args:
          shared: Values of `self.shared`.
          rows: Values of the program's row inputs, each `[n, ...]`.
        """
        (n_rows,) = {value.shape[0] for value in rows.values()}
        values = dict(zip(self.shared, shared, strict=True)) | rows

        def read(atom: Any) -> Any:
            return atom.val if is_literal(atom) else values[atom]

        for equation in self.equations:
            (result,) = equation.outvars
            values[result] = bind_rows(
                equation,
                [read(atom) for atom in equation.invars],
                n_rows,
            )
        results = []
        for atom in self.results:
            results.append(jnp.asarray(read(atom), atom.aval.dtype))
        return results


@dataclass(frozen=True)
class SharedSlice:
    """The work on shared values: dense parameters, counts, schedules, functions of totals.

    Args:
      equations: In order.
      results: What it gives: variables or literals.
      constants: Arrays that the program closes over.
    """

    equations: tuple[Equation, ...]
    results: tuple[Any, ...]
    constants: dict[Var, Any]

    def __call__(
        self,
        inputs: dict[Var, Any],
    ) -> list[jax.Array]:
        """The results, given values of the program's shared inputs and of the totals that are needed."""
        values = self.constants | inputs

        def read(atom: Any) -> Any:
            return atom.val if is_literal(atom) else values[atom]

        for equation in self.equations:
            values.update(
                zip(
                    equation.outvars,
                    bind(equation, [read(atom) for atom in equation.invars]),
                    strict=True,
                )
            )
        result = []
        for atom in self.results:
            result.append(jnp.asarray(read(atom), atom.aval.dtype))
        return result


def row_slice(
    flat: FlatProgram, dependence: Dependence, table: str, results: Sequence[Any]
) -> RowSlice:
    """The part of a program that makes rows of one table.

    Args:
      flat: The program.
      dependence: How its variables depend on tables.
      table: The table's name.
      results: Variables with one entry per row of the table, or that are the same for all rows.
    """
    needed = _variables(results)
    shared = {}
    equations = []
    shared.update({var: None for var in needed if not dependence.is_aligned(var, table)})
    for equation in reversed(flat.equations):
        if not any(dependence.is_aligned(var, table) and var in needed for var in equation.outvars):
            continue
        equations.append(equation)
        operands = _variables(equation.invars)
        needed.update(operands)
        shared.update({var: None for var in operands if not dependence.is_aligned(var, table)})
    return RowSlice(
        tuple(reversed(equations)),
        tuple(shared),
        tuple(results),
        dependence,
        table,
    )


def shared_slice(
    flat: FlatProgram,
    dependence: Dependence,
    results: Sequence[Any],
) -> SharedSlice:
    """Cuts out the part of a program that makes shared values; reductions' results are inputs of that part.

    Args:
      flat: The program.
      dependence: How its variables depend on tables.
      results: Shared variables, or literals.
    """
    totals = {reduction.result for reduction in dependence.reductions}
    equations = needed_equations(flat.equations, results, totals)
    return SharedSlice(tuple(equations), tuple(results), flat.constants)


def _variables(atoms: Sequence[Any]) -> dict[Var, None]:
    return {atom: None for atom in atoms if not is_literal(atom)}
