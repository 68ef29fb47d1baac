"""Parameter updates that belong to no dispatch (the controller's, and averages of replicas), queued until their worker asks for work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.parameter_changes import Change, JointUpdate, Update
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.updates.replica_sync import ReplicaGroups

EMPTY_PACK = np.zeros(0, np.int32)


class PendingChanges:
    """The parameter changes that wait for workers.

    Args:
      nodes: The parameterised nodes, by number.
      worker_of: Whose each node is.
      replicas: Which replicas meet when.
      joint: The nodes of each group that is updated in one step, by the group's name.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        worker_of: Mapping[str, int],
        replicas: ReplicaGroups,
        joint: Mapping[str, Sequence[str]],
    ):
        self._nodes = nodes
        self._worker_of = worker_of
        self._replicas = replicas
        group_of = {}
        for group, nodes_of_group in joint.items():
            for node in nodes_of_group:
                group_of[node] = group
        self._group_of = group_of
        self._waiting: dict[int, deque[tuple[Change, ...]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, worker: object) -> bool:
        return worker in self._waiting

    def add(
        self,
        t: Tables,
        worker: int,
        changes: Sequence[Change],
    ) -> None:
        """Adds changes that wait for a worker.

        Args:
          t: The tables.
          worker: The worker.
          changes: The changes, in order.
        """
        if changes:
            self._waiting.setdefault(worker, deque()).append(tuple(changes))
            t.clock[c.WOKEN + worker] = 1

    def flush(
        self,
        t: Tables,
        nodes: np.ndarray,
        examples: int = 0,
    ) -> None:
        """Updates nodes from their accumulated gradients, whether or not an interval is full.

        Args:
          t: The tables.
          nodes: `[n]`: nodes, by number. Those of joint groups must all be there.
          examples: The examples that means are taken over; 0 for the nodes' gradient rows.
        """
        by_worker: dict[int, list[Change]] = {}
        joint: dict[str, list[Update]] = {}
        for number in map(int, nodes):
            name = self._nodes[number]
            node = t.nodes[number]
            node[c.VERSION] += 1
            mean = float(node[c.STALENESS] / max(node[c.COUNT], 1))
            version = int(node[c.VERSION])
            update = Update(
                name,
                int(node[c.COUNT]),
                mean,
                version,
                examples,
            )
            node[c.COUNT] = node[c.STALENESS] = 0
            node[c.UPDATES] += 1
            if name in self._group_of:
                joint.setdefault(self._group_of[name], []).append(update)
                continue
            worker = self._replicas.flushed_by.get(name, self._worker_of[name])
            by_worker.setdefault(
                worker,
                [],
            ).extend((update, *self._replicas.after(name)))
        for group, updates in joint.items():
            by_worker.setdefault(self._worker_of[updates[0].node], []).append(
                _together(group, updates, examples)
            )
        for worker, changes in by_worker.items():
            self.add(t, worker, changes)

    def next(self, t: Tables, worker: int) -> Dispatch:
        """Takes the oldest changes that wait for a worker.

        Returns:
          A dispatch of these changes.
        """
        waiting = self._waiting[worker]
        changes = waiting.popleft()
        if not waiting:
            del self._waiting[worker]
        t.clock[c.NOW] += 1
        return _dispatch(int(t.clock[c.NOW]), worker, changes)

    def abandon(self) -> list[Dispatch]:
        """Forgets all changes.

        Returns:
          Dispatches of them, whose number is 0.
        """
        due = []
        for worker, waiting in self._waiting.items():
            for changes in waiting:
                due.append(_dispatch(0, worker, changes))
        self._waiting.clear()
        return due


def _together(
    group: str,
    updates: Sequence[Update],
    examples: int,
) -> JointUpdate:
    nodes = tuple(update.node for update in updates)
    counts = tuple(update.count for update in updates)
    versions = tuple(update.version for update in updates)
    return JointUpdate(group, nodes, examples, counts, versions)


def _dispatch(
    number: int,
    worker: int,
    changes: tuple[Change, ...],
) -> Dispatch:
    return Dispatch(
        number,
        worker,
        -1,
        "update",
        0,
        0,
        0,
        EMPTY_PACK,
        changes=changes,
    )
