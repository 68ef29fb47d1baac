"""The parts of an optax transform that was cut in two, and the step that they make together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from ampjax.jaxprs.flat_program import Var
from ampjax.jaxprs.program_slices import SharedSlice
from ampjax.optim.row_rule import RowRule, Values
from ampjax.optim.table_leaves import TableLeaves

Tree = Any
Totals = Sequence[Mapping[str, Values]]
"""For each round that is over, each table's reductions."""


@dataclass(frozen=True, eq=False)
class Split:
    """An optax transform for a tree of parameters, cut into rules for its tables' rows and a shared part.

    The trees that its functions take and return have None in place of tables: parameters and gradients without tables,
    and the state of `tx.init` without its row-wise leaves. One step of training is

    1. for each of `n_rounds`: `shared`; each table's `RowRule.partials` where its rows are; `RowRule.combine` of these;
    2. `update`: new dense parameters, new shared state, and shared values for each table;
    3. each table's `RowRule.update` where its rows are.

    All but `combine` are pure functions of arrays and may be jitted.

    Args:
      rules: For each table its rule.
      n_rounds: How many rounds of reductions there are: 0 for Adam, 1 with clipping by the global norm.
      params: The leaves of the parameters.
      state: The leaves of the optimizer's state.
      members: For each table the leaves of the parameters whose rows it holds, one after the other.
    """

    rules: dict[str, RowRule]
    n_rounds: int
    params: TableLeaves
    state: TableLeaves
    members: dict[str, tuple[str, ...]]
    _init: tuple[tuple[Var, ...], SharedSlice]
    _inputs: tuple[Var, ...]
    _rounds: tuple[SharedSlice, ...]
    _update: SharedSlice

    def init(self, params: Tree) -> Tree:
        """Makes the shared state, as `tx.init` does.

        Args:
          params: The dense parameters.

        Returns:
          A tree with None in place of row-wise leaves.
        """
        inputs, program = self._init
        return self.state.fill(
            program(
                dict(
                    zip(
                        inputs,
                        self.params.shared(
                            params,
                            "params",
                        ),
                        strict=True,
                    )
                )
            )
        )

    def shared(
        self,
        turn: int,
        params: Tree,
        state: Tree,
        grads: Tree,
        totals: Totals,
    ) -> dict[str, list[jax.Array]]:
        """Computes the values that each table's rule needs for the reductions of one round; usually none.

        Args:
          turn: The round.
          params: The dense parameters.
          state: The shared state.
          grads: The dense gradients.
          totals: The reductions of earlier rounds.

        Returns:
          By table, its values.
        """
        results = iter(
            self._rounds[turn](
                self._values(
                    params,
                    state,
                    grads,
                    totals,
                )
            )
        )
        result = {}
        for t, rule in self.rules.items():
            result[t] = [next(results) for _ in rule.rounds[turn][1].shared]
        return result

    def update(
        self,
        params: Tree,
        state: Tree,
        grads: Tree,
        totals: Totals,
    ) -> tuple[Tree, Tree, dict[str, list[jax.Array]]]:
        """Updates everything shared, and computes the values that each table's rule needs to update rows.

        Args:
          params: The dense parameters.
          state: The shared state.
          grads: The dense gradients.
          totals: The reductions of all rounds.

        Returns:
          New dense parameters, new shared state, and for each table its shared values.
        """
        results = iter(self._update(self._values(params, state, grads, totals)))
        new, changed = (
            [next(results) for _ in leaves.places(None)] for leaves in (self.params, self.state)
        )
        shared = {}
        for table, rule in self.rules.items():
            shared[table] = [next(results) for _ in rule.step.shared]
        return self.params.fill(new), self.state.fill(changed), shared

    @cached_property
    def jitted_shared(self) -> Callable[..., dict[str, list[jax.Array]]]:
        """`shared`, compiled once for all users of this split."""
        return jax.jit(self.shared, static_argnums=0)

    @cached_property
    def jitted_update(self) -> Callable[..., tuple[Tree, Tree, dict[str, list[jax.Array]]]]:
        """`update`, compiled once for all users of this split."""
        return jax.jit(self.update)

    def _values(
        self,
        params: Tree,
        state: Tree,
        grads: Tree,
        totals: Totals,
    ) -> dict[Var, Any]:
        dense = [
            self.params.shared(grads, "grads"),
            self.state.shared(state, "state"),
            self.params.shared(params, "params"),
        ]
        values = dict(zip(self._inputs, [leaf for leaves in dense for leaf in leaves], strict=True))
        for turn, tables in enumerate(totals):
            for table, results in tables.items():
                for place, reductions in enumerate(self.rules[table].rounds[turn][0]):
                    for reduction, total in zip(reductions, results, strict=True):
                        values[reduction.result] = total[place]
        return values
