"""One update by a split transform: dense parameters, shared state and the rows of tables change together, or not at all.

This is the one place that knows the order of an update's parts. It knows neither devices nor servers: these are behind two protocols,
one for what all variables share and one for the row gradients of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from ampjax.optim.row_rule import Values
from ampjax.optim.split_transform import Split, Totals
from ampjax.utils.interrupts import uninterrupted

Tree = Any


class Proposal(NamedTuple):
    """An update of the part that all variables share, before anybody sees the new values.

    Args:
      params: New dense parameters, None in place of tables.
      state: The optimizer's new shared state.
      shared: By table, the values that its rule needs to update rows.
    """

    params: Tree
    state: Tree
    shared: Mapping[str, Values]


class SharedPart(Protocol):
    """Dense parameters and shared optimizer state, on whatever devices."""

    def shared(
        self,
        turn: int,
        grads: Tree,
        totals: Totals,
    ) -> Mapping[str, Values]:
        """Computes, by table, the values that one round of reductions needs.

        Returns:
          By table, its values.
        """
        ...

    def propose(self, grads: Tree, totals: Totals) -> Proposal:
        """Computes the update and changes nothing.

        Returns:
          The update, for `adopt`.
        """
        ...

    def adopt(self, proposal: Proposal) -> None:
        """Replaces parameters and state by the proposed ones.

        Args:
          proposal: What `propose` gave.
        """
        ...


class PendingRows(Protocol):
    """The row gradients of one table that wait for one update."""

    def partials(self, turn: int, shared: Values) -> Values:
        """Reduces the gradients over the whole table, for one round.

        Args:
          turn: The round.
          shared: The values that `SharedPart.shared` gave for this table.

        Returns:
          The reductions, in the order of the rule's.

        Raises:
          TableError: If the gradients can't be applied.
        """
        ...

    def prepare(self, shared: Values) -> Callable[[], Any]:
        """Computes new rows and changes nothing.

        Args:
          shared: The values that `SharedPart.propose` gave for this table.

        Returns:
          The function that writes the new rows.

        Raises:
          TableError: If the gradients can't be applied.
        """
        ...


@dataclass
class SharedVariables:
    """Dense parameters and shared optimizer state in this process: the simplest `SharedPart`.

    Args:
      split: The transform.
      params: Dense parameters, None in place of tables.
      state: Shared optimizer state, None in place of row-wise leaves.
    """

    split: Split
    params: Tree
    state: Tree

    def shared(
        self,
        turn: int,
        grads: Tree,
        totals: Totals,
    ) -> Mapping[str, Values]:
        """Computes, by table, the values that one round of reductions needs.

        Returns:
          By table, its values.
        """
        return self.split.jitted_shared(
            turn,
            self.params,
            self.state,
            grads,
            totals,
        )

    def propose(self, grads: Tree, totals: Totals) -> Proposal:
        """Computes the update and changes nothing.

        Returns:
          The update, for `adopt`.
        """
        return Proposal(*self.split.jitted_update(self.params, self.state, grads, totals))

    def adopt(self, proposal: Proposal) -> None:
        """Replaces parameters and state by the proposed ones.

        Args:
          proposal: What `propose` gave.
        """
        self.params = proposal.params
        self.state = proposal.state


MakeCalls = Callable[[Sequence[Callable[[], Any]]], list[Any]]
"""Makes some calls that do not depend on each other, and gives what they return."""


def one_by_one(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Makes calls in their order.

    Args:
      calls: Functions without arguments.
    """
    return [call() for call in calls]


def prepare_update(
    n_rounds: int,
    part: SharedPart,
    grads: Tree,
    tables: Mapping[str, PendingRows],
    make_calls: MakeCalls = one_by_one,
) -> Callable[[], None]:
    """Computes one update of everything; nothing changes before a call of the returned function.

    Tables reduce their gradients, round by round; the shared part is updated once; then each table's rows are.

    Args:
      n_rounds: Rounds of reductions, `Split.n_rounds`.
      part: Dense parameters and shared state.
      grads: Dense gradients, in the form that `part` takes.
      tables: For each of the split's tables, its row gradients.
      make_calls: Makes the calls of all tables, perhaps at the same time.

    Returns:
      The function that writes new rows, parameters and state, to be called once and before anything else changes them.

    Raises:
      TableError: If a table's gradients can't be applied.
    """
    totals: list[Mapping[str, Values]] = []
    for turn in range(n_rounds):
        shared = part.shared(turn, grads, totals)
        of_tables = make_calls(
            [partial(rows.partials, turn, shared[name]) for name, rows in tables.items()]
        )
        totals.append(dict(zip(tables, of_tables, strict=True)))
    proposal = part.propose(grads, totals)
    writes = make_calls(
        [partial(rows.prepare, proposal.shared[name]) for name, rows in tables.items()]
    )

    def commit() -> None:
        with uninterrupted():
            make_calls(writes)
            part.adopt(proposal)

    return commit
