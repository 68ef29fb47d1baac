"""Replicas that meet: which parameter changes follow when one of a group updates (`sched.decisions.parameter_changes.ReplicaSync` names the rules)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.parameter_changes import Average, Change, Contribute, Merge, ReplicaSync
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables


@dataclass(slots=True)
class _Group:
    nodes: tuple[str, ...]
    since: dict[str, int]
    handed_in: dict[str, None] = field(default_factory=dict)
    triggered: bool = False
    is_late: bool = False


class ReplicaGroups:
    """The groups of replicas.

    A meeting makes a new version of each of them, so one that would make gradients in flight staler than their budgets allow is put off.

    Args:
      plan: The plan.
      sync: How they are kept together.
      t: The tables. Of these `nodes` and `clock` stay the same arrays.
    """

    def __init__(self, plan: Plan, sync: ReplicaSync, t: Tables):
        self._sync = sync
        self._nodes = t.nodes
        self._clock = t.clock
        self._numbers = {node: number for number, node in enumerate(plan.graph.parameterised)}
        self.groups: dict[str, list[str]] = {}
        for node in plan.graph.parameterised.values():
            if node.options.replica_of:
                self.groups.setdefault(node.options.replica_of, []).append(node.name)
        groups = {}
        for name, replicas in self.groups.items():
            groups[name] = _Group(
                tuple(replicas),
                dict.fromkeys(replicas, 0),
            )
        self._groups = groups
        group_of = {}
        for name, replicas in self.groups.items():
            for node in replicas:
                group_of[node] = name
        self._group_of = group_of
        # One worker flushes those that meet at their updates: nobody may merge what another has yet to hand in.
        meeting = self.groups.values() if sync.every else ()
        flushed_by = {}
        for replicas in meeting:
            for node in replicas:
                flushed_by[node] = plan.worker_of[replicas[0]]
        self.flushed_by = flushed_by

    def after(self, node: str) -> list[Change]:
        """Notes that a node has been updated.

        Returns:
          The changes that follow, in order; none for a node that is no replica.
        """
        if node not in self._group_of or not self._sync.every:
            return []
        name = self._group_of[node]
        group = self._groups[name]
        group.since[node] += 1
        group.triggered |= group.since[node] >= self._sync.every
        changes: list[Change] = []
        if self._sync.rule == "message" and group.triggered and node not in group.handed_in:
            group.handed_in[node] = None
            changes.append(Contribute(name, node))
        return changes + self._find_meeting(name)

    def catch_up(self) -> list[tuple[int, Change]]:
        """Makes the meetings that were put off; nothing may be in flight.

        Returns:
          The workers that are to make the changes that follow, and these.
        """
        late = [name for name, group in self._groups.items() if group.is_late]
        self._clock[c.CLOSED] = 0
        result = []
        for name in late:
            for change in self._find_meeting(name):
                result.append((self.flushed_by[self.groups[name][0]], change))
        return result

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
        result = []
        for name, group in self._groups.items():
            result.append(Average(name, group.nodes))
        return result

    def forget_handed_in(self) -> None:
        """Lets replicas begin their next mean anew, since the parameters handed in are lost. Nothing may be in flight."""
        for group in self._groups.values():
            group.handed_in = {}
            group.triggered = False
            group.is_late = False
        self._clock[[c.N_PUT_OFF, c.CLOSED]] = 0

    def state(self) -> dict[str, dict[str, int]]:
        """Gives the counts that another scheduler needs to go on.

        Returns:
          For each group, the updates of each replica since it last met the others.
        """
        return {name: group.since for name, group in self._groups.items()}

    def resume(
        self,
        state: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Goes on from another's `state`.

        Args:
          state: What `state` gave.
        """
        for name, group in self._groups.items():
            group.since = dict(state[name])
        self.forget_handed_in()

    def _find_meeting(self, name: str) -> list[Change]:
        """The meeting of a group, if that is due and need not be put off."""
        group = self._groups[name]
        averages = self._sync.rule == "every_k"
        if not group.triggered or not (averages or len(group.handed_in) == len(group.nodes)):
            return []
        lines = [self._numbers[node] for node in group.nodes]
        group.is_late = any(map(self._makes_too_stale, lines))
        self._clock[c.N_PUT_OFF] = sum(each.is_late for each in self._groups.values())
        if group.is_late:
            return []
        # Others' updates change these nodes' parameters: a new version, which must not be taken for the old one.
        self._nodes[lines, c.VERSION] += 1
        group.since = dict.fromkeys(group.nodes, 0)
        group.handed_in = {}
        group.triggered = False
        return [Average(name, group.nodes) if averages else Merge(name, group.nodes)]

    def _makes_too_stale(self, line: int) -> bool:
        """Whether another version of a node would make gradients in flight staler than its budget allows."""
        node = self._nodes[line]
        n_kept = int(node[c.BUDGET]) + 1
        return bool(n_kept and node[c.AWAITED + (int(node[c.VERSION]) + 1) % n_kept])
