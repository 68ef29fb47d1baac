"""Replicas that meet: which parameter changes follow when one of a group updates (`sched.decisions.parameter_changes.ReplicaSync` names the rules)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.decisions.parameter_changes import Average, Change, Contribute, Merge, ReplicaSync


@dataclass(slots=True)
class _Group:
    nodes: tuple[str, ...]
    since: dict[str, int]
    handed_in: dict[str, None] = field(default_factory=dict)
    triggered: bool = False


class ReplicaGroups:
    """The groups of replicas.

    Args:
      plan: The plan.
      sync: How they are kept together.
      nodes: `Tables.nodes`, in which meetings make new versions.
    """

    def __init__(self, plan: Plan, sync: ReplicaSync, nodes: np.ndarray):
        self._sync, self._nodes = sync, nodes
        self._numbers = {node: number for number, node in enumerate(plan.graph.parameterised)}
        self.groups: dict[str, list[str]] = {}
        for node in plan.graph.parameterised.values():
            if node.options.replica_of:
                self.groups.setdefault(node.options.replica_of, []).append(node.name)
        self._groups = {name: _Group(tuple(own), dict.fromkeys(own, 0)) for name, own in self.groups.items()}
        self._group_of = {node: name for name, own in self.groups.items() for node in own}
        # One worker flushes those that meet at their updates: nobody may merge what another has yet to hand in.
        meeting = self.groups.values() if sync.every else ()
        self.flushed_by = {node: plan.worker_of[own[0]] for own in meeting for node in own}

    def after(self, node: str) -> list[Change]:
        """Notes that a node has been updated.

        Args:
          node: Its name.

        Returns:
          The changes that follow, in order; none for a node that is no replica.
        """
        if node not in self._group_of or not self._sync.every:
            return []
        name = self._group_of[node]
        group = self._groups[name]
        group.since[node] += 1
        if self._sync.rule == "every_k" and group.since[node] >= self._sync.every:
            self._meet(group)
            return [Average(name, group.nodes)]
        if self._sync.rule != "message":
            return []
        group.triggered |= group.since[node] >= self._sync.every
        if not group.triggered or node in group.handed_in:
            return []
        group.handed_in[node] = None
        changes: list[Change] = [Contribute(name, node)]
        if len(group.handed_in) == len(group.nodes):
            changes.append(Merge(name, group.nodes))
            self._meet(group)
            group.handed_in, group.triggered = {}, False
        return changes

    def end_of_epoch(self) -> list[Change]:
        """Notes that an epoch has ended.

        Returns:
          The changes that follow: an average for each group, unless replicas are never averaged.
        """
        if self._sync.rule == "none":
            return []
        self.forget_handed_in()
        for group in self._groups.values():
            group.since = dict.fromkeys(group.nodes, 0)
        return [Average(name, group.nodes) for name, group in self._groups.items()]

    def forget_handed_in(self) -> None:
        """Lets replicas begin their next mean anew: what they have handed in for it is no longer there."""
        for group in self._groups.values():
            group.handed_in, group.triggered = {}, False

    def state(self) -> dict[str, dict[str, int]]:
        """Gives what another must know to go on.

        Returns:
          For each group, the updates of each replica since it last met the others.
        """
        return {name: group.since for name, group in self._groups.items()}

    def resume(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Goes on from another's `state`.

        Args:
          state: What `state` gave.
        """
        for name, group in self._groups.items():
            group.since = dict(state[name])
        self.forget_handed_in()

    def _meet(self, group: _Group) -> None:
        """Others' updates have changed these nodes' parameters: a new version, which must not be taken for the old one."""
        group.since = dict.fromkeys(group.nodes, 0)
        self._nodes[self._lines(group.nodes), c.VERSION] += 1

    def _lines(self, nodes: Sequence[str]) -> list[int]:
        return [self._numbers[node] for node in nodes]
