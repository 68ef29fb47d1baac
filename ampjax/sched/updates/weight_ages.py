"""Ages: the number of versions since messages on their way back saw parameters, where weights are estimated or stale gradients are dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import BACKWARD, Dispatch
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.scheduler_tables import SchedulerTables


class WeightAges:
    """Looks up ages as dispatches are made, of which loops may have decided several together: then nodes have later versions already.

    Args:
      plan: The plan.
      estimated: Nodes whose adjoint uses an estimate of the forward pass's parameters.
      stalest: Nodes that drop gradients, and how stale these may be.
      tables: The tables.

    Attributes:
      stages: The stages, by number, that have such nodes.
    """

    def __init__(
        self,
        plan: Plan,
        estimated: Sequence[str],
        stalest: Mapping[str, int],
        tables: SchedulerTables,
    ):
        self._tables = tables
        self._now = np.zeros(0, np.int64)
        self._stalest = stalest
        numbers = {node: number for number, node in enumerate(plan.graph.parameterised)}
        self._places: dict[int, list[tuple[str, int, int]]] = {}
        self._estimating = set[int]()
        for stage in plan.stages:
            estimates = not set(estimated).isdisjoint(stage.params)
            if (
                stage.kind.is_dispatched
                and stage.outputs
                and (estimates or not stalest.keys().isdisjoint(stage.params))
            ):
                users = [node.params_name for node in stage.parameterised]
                self._places[stage.number] = [
                    (name, numbers[name], users.index(name)) for name in stage.params
                ]
                self._estimating |= {stage.number} if estimates else set()
        self.stages = frozenset(self._places)

    def begin(self, due: np.ndarray) -> None:
        """Goes back to the versions before some dispatches.

        Args:
          due: `[d, 4]`: the updates that are due after them, in order.
        """
        if self.stages:
            self._now = self._tables.t.nodes[:, c.VERSION].copy()
            for number, _, _, version in due[::-1].tolist():
                self._now[number] = version - 1

    def update(self, due: Sequence[Sequence[int]]) -> None:
        """Goes on behind the updates of a dispatch."""
        if self.stages:
            for number, _, _, version in due:
                self._now[number] = version

    def with_ages(self, d: Dispatch) -> Dispatch:
        """Adds to a dispatch how stale its messages are, and the nodes at which its gradients are dropped.

        Args:
          d: A dispatch of one of `stages`, whose turn it is.

        Returns:
          The dispatch; if it is none on the way back, or all its messages are fresh, as it is.
        """
        if d.direction != BACKWARD:
            return d
        seen = self._tables.t.live[d.messages, c.SEEN :]
        ages = {}
        for name, number, place in self._places[d.stage]:
            ages[name] = self._now[number] - seen[:, place]
        sums = [int(of_node.sum()) for of_node in ages.values()]
        if not any(sums):
            return d
        # All messages of a dispatch are alike in what is dropped (`loops.queues.are_alike`).
        dropped = tuple(
            [
                name
                for name, of_node in ages.items()
                if 0 <= self._stalest.get(name, c.NO_BUDGET) < of_node[0]
            ]
        )
        if d.stage not in self._estimating:
            return d._replace(dropped=dropped)
        return d._replace(
            staleness=tuple([each / d.n_messages for each in sums]),
            dropped=dropped,
        )
