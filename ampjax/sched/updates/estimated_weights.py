"""Estimated weights: how many versions ago messages saw the parameters of stages whose adjoint estimates these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import BACKWARD, Dispatch
from ampjax.sched.tables.scheduler_tables import SchedulerTables


class WeightAges:
    """Looks up ages as dispatches are made, of which loops may have decided several together: then nodes have later versions already.

    Args:
      plan: The plan.
      nodes: Nodes whose adjoint uses an estimate of the forward pass's parameters.
      tables: The tables.

    Attributes:
      stages: The stages, by number, that have such nodes.
    """

    def __init__(self, plan: Plan, nodes: Sequence[str], tables: SchedulerTables):
        self._tables, self._now = tables, np.zeros(0, np.int64)
        numbers = {node: number for number, node in enumerate(plan.graph.parameterised)}
        self._places: dict[int, list[tuple[int, int]]] = {}
        for stage in plan.stages:
            if stage.kind.is_dispatched and stage.outputs and not set(nodes).isdisjoint(stage.params):
                users = [node.params_name for node in stage.parameterised]
                self._places[stage.number] = [(numbers[name], users.index(name)) for name in stage.params]
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
        """Goes on behind the updates of a dispatch.

        Args:
          due: These.
        """
        if self.stages:
            for number, _, _, version in due:
                self._now[number] = version

    def with_staleness(self, d: Dispatch) -> Dispatch:
        """Adds to a dispatch how stale its messages are.

        Args:
          d: A dispatch of one of `stages`, whose turn it is.

        Returns:
          The dispatch; if it is none on the way back, or all its messages are fresh, as it is.
        """
        if d.direction != BACKWARD:
            return d
        seen = self._tables.t.live[d.messages, c.SEEN :]
        ages = [int((self._now[number] - seen[:, place]).sum()) for number, place in self._places[d.stage]]
        return d._replace(staleness=tuple([age / d.n_messages for age in ages])) if any(ages) else d
