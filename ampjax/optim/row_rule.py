"""The part of an optimizer that works on the rows of one table: pure functions of any selection of rows.

`split_by_rows.split_rows` makes rules from an optax transform. Nothing in here knows which optimizer it was, or where rows are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.jaxprs.dependence import RowReduction
from ampjax.jaxprs.flat_program import Var
from ampjax.jaxprs.program_slices import RowSlice
from ampjax.jaxprs.rowwise import combine, reduce_rows
from ampjax.jaxprs.zero_gradient import zero_gradient_is_noop

Values = Sequence[Any]
"""Arrays in an order that the split fixes: row state, shared values, reductions."""


@dataclass(frozen=True)
class RowState:
    """One array of a table's row-wise optimizer state.

    Args:
      name: Its path in the optimizer state.
      shape: The shape of one row's entry.
      dtype: Its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


class RowTypes(NamedTuple):
    """The dtypes and shapes of a table's rows and row state: all of an optimizer that a keeper of rows needs.

    Args:
      shape: The shape of one row.
      dtype: The rows' dtype.
      state: The row-wise optimizer state.
      starts: The first row of each parameter whose rows the table holds; one after the other, if there are several.
      check_finite: Whether gradients that are not finite are refused; if not, new rows are that are not.
      parameters: The names of those parameters, for messages.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    state: tuple[RowState, ...]
    starts: tuple[int, ...] = (0,)
    check_finite: bool = True
    parameters: tuple[str, ...] = ()

    def row_name(self, row: int) -> str:
        """Names a row of the table, for messages.

        Args:
          row: Its number.
        """
        if len(self.parameters) < 2:
            return f"row {row}"
        place = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"row {row - self.starts[place]} of `{self.parameters[place]}`"

    @property
    def arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """The shape of one row and the dtype of each array: parameters, then states."""
        return [
            (self.shape, self.dtype),
            *((state.shape, state.dtype) for state in self.state),
        ]


@dataclass(frozen=True, eq=False)
class RowRule:
    """The part of an optimizer that works on the rows of one table: pure functions of any number of rows.

    Args:
      table: The table's name.
      shape: The shape of one row.
      dtype: The rows' dtype.
      state: The row-wise optimizer state.
      first: The rows' input to `tx.init`, and the slice that makes their state.
      rounds: For each round the reductions of each parameter's rows, and the slice that makes what they fold.
      step: The slice of the update.
      variables: The update's row inputs: parameters, gradients, states.
      parameters: The parameters whose rows the table holds, one after the other.
      starts: The first row of each of them.
      check_finite: Whether the table refuses gradients that are not finite; if not, the optimizer gets them, as `optax.apply_if_finite` needs.
    """

    table: str
    shape: tuple[int, ...]
    dtype: np.dtype
    state: tuple[RowState, ...]
    first: tuple[Var, RowSlice]
    rounds: tuple[tuple[tuple[tuple[RowReduction, ...], ...], RowSlice], ...]
    step: RowSlice
    variables: tuple[Var, Var, tuple[Var, ...]]
    parameters: tuple[str, ...]
    starts: tuple[int, ...]
    check_finite: bool = True

    @property
    def types(self) -> RowTypes:
        """The types of rows and their state."""
        return RowTypes(
            self.shape,
            self.dtype,
            self.state,
            self.starts,
            self.check_finite,
            self.parameters,
        )

    @cached_property
    def zero_gradient_is_noop(self) -> bool:
        """Tells whether an update changes no row whose gradient is zero. Then `lazy` and `faithful` tables are the same."""
        rows, gradient, state = self.variables
        return zero_gradient_is_noop(
            self.step,
            gradient,
            dict(zip((rows, *state), self.step.results, strict=True)),
        )

    @property
    def operations(self) -> list[str]:
        """The names of an update's operations on rows, in order: Adam and NAdam differ in operations, not in state."""
        return [equation.primitive.name for equation in self.step.equations]

    def row_name(self, row: int) -> str:
        """Names a row of the table, for messages.

        Args:
          row: Its number.
        """
        return self.types.row_name(row)

    def init(self, rows: Any) -> list[jax.Array]:
        """Makes the state of some rows, each `[n, *shape]`, as `tx.init` would.

        Args:
          rows: The rows' parameters, `[n, *row]`.

        Returns:
          The states in the rule's order.
        """
        var, program = self.first
        result = []
        for x, s in zip(
            program(
                (),
                {var: rows},
            ),
            self.state,
            strict=True,
        ):
            result.append(jnp.broadcast_to(x, (len(rows), *s.shape)))
        return result

    def partials(
        self,
        turn: int,
        shared: Values,
        grads: Any,
        weights: Any,
        parameters: Any = None,
    ) -> list[jax.Array]:
        """Computes a round's reductions over some rows.

        Rows that were not touched count, too: pass one zero gradient for all those of a parameter, with their number as its weight.

        Args:
          turn: The round.
          shared: As `Split.shared` made them for this table and round.
          grads: Row gradients, `[n, *row]`.
          weights: How often each row counts, `[n]`, int32.
          parameters: By row which of the table's parameters it belongs to, `[n]`, int32; None if there is one.

        Returns:
          The reductions, in the order of the round's, each with a leading axis of parameters.
        """
        reductions, program = self.rounds[turn]
        operands = program(shared, {self.variables[1]: grads})
        if parameters is None:
            groups = None
        else:
            groups = (parameters, len(self.starts))
        result = []
        for r, rows in zip(reductions[0], operands, strict=True):
            result.append(reduce_rows(r.equation, rows, weights, groups))
        return result

    def combine(
        self,
        turn: int,
        parts: Sequence[Values],
    ) -> list[np.ndarray]:
        """Combines the reductions over several groups of rows, on the host.

        Args:
          turn: The round.
          parts: At least one result of `partials`.

        Returns:
          The reductions over all rows.
        """
        totals = [np.asarray(part) for part in parts[0]]
        equations = [reduction.equation for reduction in self.rounds[turn][0][0]]
        for part in parts[1:]:
            totals = [combine(e, a, b) for e, a, b in zip(equations, totals, part, strict=True)]
        return totals

    def update(
        self, shared: Values, rows: Any, state: Values, grads: Any
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Computes the new parameters and state of some rows.

        Args:
          shared: As `Split.update` made them for this table.
          rows: Parameters, `[n, *row]`.
          state: Their state, each `[n, ...]`.
          grads: Their gradients, `[n, *row]`, in the table's dtype.

        Returns:
          Parameters `[n, *row]` and states, each `[n, ...]`.
        """
        row_var, grad_var, state_vars = self.variables
        values = {row_var: rows, grad_var: grads} | dict(zip(state_vars, state, strict=True))
        new, *changed = self.step(shared, values)
        return new, changed
