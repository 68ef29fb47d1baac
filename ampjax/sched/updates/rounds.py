"""Updates by the controller: synchronous and pipeline training run instances in rounds, after each of which every node is updated."""

from __future__ import annotations

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.pending_changes import PendingChanges
from ampjax.sched.updates.replica_sync import ReplicaGroups


class UpdateRounds:
    """Tells when the controller updates nodes: never in asynchronous training, where nodes update alone.

    Args:
      plan: The plan.
      settings: How many instances make a round (`flush_every`), what is updated together, and how replicas are kept together.
      tables: The tables.

    Attributes:
      changes: The controller's parameter changes that wait for their workers.
      replicas: Which replicas are averaged when.
      examples: Instances whose gradients have been accumulated since the last update by the controller.
      may_update: Whether the training instances that were admitted last may change parameters.
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings, tables: SchedulerTables):
        self._every = settings.flush_every
        self._tables = tables
        self.replicas = ReplicaGroups(plan, settings.sync, tables.t)
        nodes = list(plan.graph.parameterised)
        self.changes = PendingChanges(nodes, plan.worker_of, self.replicas, settings.joint)
        self._makes_others_wait = bool(self.replicas.flushed_by or settings.joint)
        self.examples = 0
        self._intervals = tables.t.nodes[:, c.INTERVAL].copy()
        self._n_begun = 0
        self.may_update = True

    @property
    def room(self) -> int:
        """Training instances that the round still admits; without rounds any number.

        It is 0 while several workers' nodes are to be changed at once: one worker makes these changes, and the others would not wait for it.
        """
        if self._makes_others_wait and self.changes:
            return 0
        return c.UNLIMITED if self._every is None else self._every - self._n_begun

    def begin(self, n: int, may_update: bool) -> None:
        """Notes that training instances are admitted.

        Args:
          n: How many.
          may_update: Whether they may change parameters; gradients are counted all the same.
        """
        t = self._tables.t
        t.nodes[:, c.INTERVAL] = self._intervals if may_update else c.NEVER
        self.may_update = may_update
        self._n_begun += n
        if self._every is not None:
            self.examples += n

    def settle(self) -> None:
        """Ends a round when all of its instances have ended: updates every node after a full round, and lets replicas meet that have put a meeting off."""
        every = self._every
        t = self._tables.t
        if t.clock[c.N_TRAIN]:
            return
        if t.clock[c.N_PUT_OFF]:
            for worker, change in self.replicas.catch_up():
                self.changes.add(t, worker, [change])
        if every is None or self.changes or self._n_begun < every:
            return
        self._n_begun = 0
        self.flush()

    def flush(self) -> None:
        """Updates nodes from their accumulated gradients, whether or not an interval is full. `Scheduler.next` gives the updates.

        At the end of a round also those without gradients, as one optimizer's step for all parameters does.
        """
        if not self.may_update:
            return
        t = self._tables.t
        if self._every is None:
            self.changes.flush(
                t,
                np.flatnonzero(t.nodes[:, c.COUNT]),
            )
        else:
            self.changes.flush(
                t,
                np.arange(len(t.nodes)),
                self.examples,
            )
            self.examples = 0

    def end_of_data(self) -> bool:
        """Notes that no more training instances come in this epoch: a round that is not full is updated all the same.

        Returns:
          Whether there are updates; `Scheduler.next` gives them.
        """
        if self._every is not None and self._n_begun and not self._tables.t.clock[c.N_TRAIN]:
            self._n_begun = 0
            self.flush()
            return bool(self.changes)
        return False

    def end_of_epoch(self) -> None:
        """Averages replicas if that is due at the end of an epoch. `Scheduler.next` gives the changes."""
        self.changes.add(
            self._tables.t,
            0,
            self.replicas.end_of_epoch(),
        )

    def abandon(self) -> list[Dispatch]:
        """Ends the round that has begun, without an update by the controller.

        Returns:
          The parameter changes that were due but held back, or not yet given out.
        """
        nodes = self._tables.t.nodes
        self.changes.flush(
            self._tables.t,
            np.flatnonzero(nodes[:, c.HELD_SINCE]),
        )
        self.replicas.forget_handed_in()
        self._n_begun = 0
        return self.changes.abandon()
