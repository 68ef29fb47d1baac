"""When parameters change: intervals, versions, staleness, and the synchronisation of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.sched.dispatch import Average, Change, Contribute, Dispatch, Merge, Update
from ampjax.sched.stats import NodeStats, Statistics


@dataclass(frozen=True)
class ReplicaSync:
    """How replicas are kept together.

    Args:
      rule: `epoch`: average at the end of each epoch (the paper's); `every_k`: all average when one has made `every` updates since
        the last time; `message`: the asynchronous protocol of the arXiv version's §5: the first that has made `every` updates
        triggers, each member hands in its parameters at its next update, and when all have, each takes the mean plus what it has
        learnt since it handed in; nobody waits.
      every: Updates between synchronisations.
    """

    rule: str = "epoch"
    every: int = 0


@dataclass(slots=True)
class _Replicas:
    nodes: tuple[str, ...]
    since: dict[str, int] = field(default_factory=dict)
    handed_in: dict[str, None] = field(default_factory=dict)
    triggered: bool = False


NOTHING = np.zeros(0, np.int64)


class _Staleness:
    """The summed staleness of gradient rows. Sums over messages are put off: one over many dispatches costs what one over few does."""

    def __init__(self) -> None:
        self._sum, self._forward = 0, list[np.ndarray]()

    def add(self, version: int, forward_versions: np.ndarray, sizes: np.ndarray | None) -> int:
        """Counts messages, as `Updates.gradients` gets them; returns their rows."""
        rows = len(forward_versions) if sizes is None else int(sizes.sum())
        self._sum += version * rows
        self._forward.append(forward_versions if sizes is None else forward_versions * sizes)
        if len(self._forward) > 512:
            self.start(self.total)
        return rows

    def take(self) -> int:
        """The sum so far; it starts anew."""
        total = self.total
        self.start(0)
        return total

    @property
    def total(self) -> int:
        """The sum so far."""
        return self._sum - int(np.concatenate([NOTHING, *self._forward]).sum())

    def start(self, total: int) -> None:
        """Starts with a sum."""
        self._sum, self._forward = total, []


class Updates:
    """Counts gradients and decides on parameter changes.

    Args:
      intervals: The `min_update_interval` of each node; nodes update by themselves only if `local`.
      groups: Replica groups: name to nodes.
      sync: How replicas are kept together.
      local: False if only the controller triggers updates (synchronous and pipeline modes).

    Attributes:
      may_update: Whether parameters change; gradients are counted all the same.
    """

    def __init__(
        self, intervals: Mapping[str, int], groups: Mapping[str, Sequence[str]], sync: ReplicaSync, local: bool
    ):
        self._intervals, self._sync, self._local = dict(intervals), sync, local
        self.may_update = True
        self._group_of = {node: group for group, nodes in groups.items() for node in nodes}
        self._groups = {group: _Replicas(tuple(nodes), dict.fromkeys(nodes, 0)) for group, nodes in groups.items()}
        self.versions = dict.fromkeys(intervals, 0)
        self.counts = dict.fromkeys(intervals, 0)
        self._staleness = {node: _Staleness() for node in intervals}

    def gradients(
        self, node: str, forward_versions: np.ndarray, sizes: np.ndarray | None, stats: NodeStats
    ) -> list[Change]:
        """Counts gradient rows of a node, one per message or `sizes` of them; returns the changes that are due."""
        version = self.versions[node]
        stats.add(version, forward_versions, sizes)
        rows = self._staleness[node].add(version, forward_versions, sizes)
        count = self.counts[node] = self.counts[node] + rows
        due = self._local and count >= self._intervals[node] and self.may_update
        return self._update(node, stats) if due else []

    def are_due_after(self, nodes: Iterable[str], rows: int) -> bool:
        """Whether so many gradient rows make all of these nodes update by themselves, whatever they hold."""
        return self._local and all(rows >= self._intervals[node] for node in nodes)

    def flush(self, stats: Statistics) -> dict[str, list[Change]]:
        """Updates every node that holds gradients, whatever its interval; by node."""
        if not self.may_update:
            return {}
        return {node: self._update(node, stats.nodes[node]) for node, count in self.counts.items() if count}

    def state(self) -> dict[str, Any]:
        """What another must know to go on: versions, what has been counted since the last updates. JSON can hold it.

        What replicas have handed in for their next mean is not in it: they begin that anew.
        """
        staleness = {node: own.total for node, own in self._staleness.items()}
        since = {name: group.since for name, group in self._groups.items()}
        return {"versions": self.versions, "counts": self.counts, "staleness": staleness, "since": since}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on from another's `state`."""
        self.versions, self.counts = dict(state["versions"]), dict(state["counts"])
        for node, total in state["staleness"].items():
            self._staleness[node].start(total)
        for name, group in self._groups.items():
            group.since = dict(state["since"][name])
        self.forget_handed_in()

    def take_back(self, dispatches: Iterable[Dispatch]) -> None:
        """Uncounts the gradients and updates of the latest dispatches, in order, which were never carried out: nodes have counted what they have accumulated.

        Versions stay what they are, so that none means two things.
        """
        brought: dict[str, int] = {}
        held: dict[str, tuple[int, float]] = {}
        for dispatch in dispatches:
            if dispatch.stage is not None and dispatch.brings_gradients:
                for node in dispatch.stage.params:
                    brought[node] = brought.get(node, 0) + dispatch.rows_at(node)
            for change in dispatch.changes:
                if isinstance(change, Update):
                    held.setdefault(change.node, (change.count - brought.get(change.node, 0), change.mean_staleness))
        for node, rows in brought.items():
            count = self.counts[node]
            held.setdefault(node, (count - rows, self._staleness[node].total / max(count, 1)))
        for node, (count, mean) in held.items():
            self.counts[node] = count
            self._staleness[node].start(round(mean * count))

    def forget_handed_in(self) -> None:
        """Lets replicas begin their next mean anew: what they have handed in for it is no longer there."""
        for group in self._groups.values():
            group.handed_in, group.triggered = {}, False

    def end_of_epoch(self) -> list[Change]:
        """What the end of an epoch asks of the replicas."""
        if self._sync.rule == "none":
            return []
        changes: list[Change] = []
        for name, group in self._groups.items():
            group.since = dict.fromkeys(group.nodes, 0)
            changes.append(Average(name, group.nodes))
        self.forget_handed_in()
        return changes

    def _update(self, node: str, stats: NodeStats) -> list[Change]:
        count = self.counts[node]
        changes: list[Change] = [Update(node, count, self._staleness[node].take() / count)]
        self.counts[node] = 0
        self.versions[node] += 1
        stats.updates += 1
        if node in self._group_of:
            changes += self._synchronise(node)
        return changes

    def _synchronise(self, node: str) -> list[Change]:
        name = self._group_of[node]
        group = self._groups[name]
        group.since[node] += 1
        if self._sync.rule == "every_k" and group.since[node] >= self._sync.every:
            group.since = dict.fromkeys(group.nodes, 0)
            self._changed(group.nodes)
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
            self._changed(group.nodes)
            group.since = dict.fromkeys(group.nodes, 0)
            group.handed_in, group.triggered = {}, False
        return changes

    def _changed(self, nodes: Sequence[str]) -> None:
        """Other nodes' updates have changed these nodes' parameters: a new version, which must not be taken for the old one."""
        for node in nodes:
            self.versions[node] += 1
