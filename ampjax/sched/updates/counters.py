"""Versions and gradient counts of parameterised nodes: saved in checkpoints, rolled back after an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import Dispatch, brings_gradients
from ampjax.sched.decisions.parameter_changes import updates_in
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.plan_tables import n_edge_types
from ampjax.sched.updates.rounds import UpdateRounds


class UpdateCounters:
    """Versions of the parameterised nodes, and the gradient rows that wait for their next updates.

    Args:
      plan: The plan.
      table: `Tables.nodes`, which stays the same array.
      rounds: The updates by the controller, with the examples that wait for the next one, and how replicas meet.

    Attributes:
      overdue: The nodes that have enough gradient rows for an update that has not come, and their versions then: it was taken back, or these were
        counted while nodes did not update. The next gradient brings it.
    """

    def __init__(self, plan: Plan, table: np.ndarray, rounds: UpdateRounds):
        self._stages = plan.stages
        self._names = list(plan.graph.parameterised)
        self._table = table
        self._rounds = rounds
        self.overdue: dict[str, int] = {}

    @property
    def versions(self) -> dict[str, int]:
        """The number of updates of each node so far."""
        return self._column(c.VERSION)

    @property
    def counts(self) -> dict[str, int]:
        """Gradient rows of each node since its last update."""
        return self._column(c.COUNT)

    def are_due_after(self, nodes: Iterable[str], rows: int) -> bool:
        """Tells whether so many gradient rows alone make each of some nodes update.

        Args:
          nodes: Names of nodes; a name may be there twice.
          rows: How many gradient rows each of them gets.

        Returns:
          Whether all of them update.
        """
        intervals = self._column(c.INTERVAL)
        return all(0 <= intervals[node] <= n * rows for node, n in Counter(nodes).items())

    def state(self) -> dict[str, Any]:
        """Gives the numbers that another scheduler needs to go on: versions, and counts since the last updates. JSON can hold the dictionary.

        What replicas have handed in for their next mean is not in it: they begin that anew.

        Returns:
          A dictionary for `resume`.
        """
        return {
            "versions": self.versions,
            "counts": self.counts,
            "staleness": self._column(c.STALENESS),
            "since": self._rounds.replicas.state(),
            "examples": self._rounds.examples,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on from another's `state`.

        Args:
          state: What `state` gave.
        """
        for column, part in (
            (c.VERSION, "versions"),
            (c.COUNT, "counts"),
            (c.STALENESS, "staleness"),
        ):
            self._table[:, column] = [state[part][name] for name in self._names]
        self._rounds.replicas.resume(state["since"])
        self._rounds.examples = state["examples"]
        self.note_overdue()

    def take_back(self, dispatches: Iterable[Dispatch]) -> None:
        """Uncounts gradients and updates of the latest dispatches, which were never carried out, so that nodes count their accumulated gradients.

        Versions stay what they are, so that none means two things.

        Args:
          dispatches: The dispatches, in order.
        """
        brought: dict[str, int] = {}
        held: dict[str, tuple[int, float]] = {}
        examples = 0
        for dispatch in dispatches:
            for node, n in gradient_rows(self._stages[dispatch.stage], dispatch).items():
                brought[node] = brought.get(node, 0) + n
            for change in dispatch.changes:
                for update in updates_in(change):
                    held.setdefault(
                        update.node,
                        (update.count - brought.get(update.node, 0), update.mean_staleness),
                    )
                    examples = max(examples, update.examples)
        self._rounds.examples += examples
        for number, node in enumerate(self._names):
            count, stale = self._table[number, [c.COUNT, c.STALENESS]].tolist()
            if node in brought:
                held.setdefault(
                    node,
                    (count - brought[node], stale / max(count, 1)),
                )
            if node in held:
                count, mean = held[node]
                self._table[number, [c.COUNT, c.STALENESS]] = count, round(mean * count)
        self.note_overdue(held)

    def note_overdue(self, nodes: Iterable[str] | None = None) -> None:
        """Notes which nodes have as many gradient rows as their intervals ask for, so that the next gradient brings an update.

        Args:
          nodes: Names of nodes; by default all.
        """
        for node in self._names if nodes is None else nodes:
            line = self._table[self._names.index(node)]
            if 0 <= line[c.INTERVAL] <= line[c.COUNT]:
                self.overdue[node] = int(line[c.VERSION])

    def _column(self, column: int) -> dict[str, int]:
        return dict(zip(self._names, self._table[:, column].tolist(), strict=True))


def edge_columns(plan: Plan) -> dict[int, slice]:
    """Finds the columns of `Tables.edges` that belong to each chain.

    Returns:
      For each stage that is a chain, by its number, a slice of columns.
    """
    columns = {}
    begin = 0
    for stage in plan.stages:
        if n_edge_types(stage):
            columns[stage.number] = slice(begin, begin + n_edge_types(stage))
            begin += n_edge_types(stage)
    return columns


def gradient_rows(stage: Stage, d: Dispatch) -> dict[str, int]:
    """Counts the gradient rows that a dispatch brings. A backward dispatch does, and that of a loss in training.

    Returns:
      Rows by the node that has the parameters; none for other dispatches.
    """
    return d.gradient_rows(stage) if brings_gradients(stage, d) else {}
