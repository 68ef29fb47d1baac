"""The queues of all workers, and the choice that a policy in Python makes among the queues."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.choosing.backlog import WorkerQueues
from ampjax.sched.choosing.policy_numbers import number_of
from ampjax.sched.choosing.queue_views import Queue
from ampjax.sched.decisions.policy import Policy, backward_first
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.scheduler_tables import SchedulerTables

NO_QUEUE = -1
"""No queue is taken."""


class ReadyQueues:
    """The queues of all workers, and the policy that chooses a queue.

    Args:
      plan: The plan.
      tables: The tables.
      policy: The policy.
      loops: The compiled loops.
      snapshot: Gives the scheduler's parts.
      moves: Tells whether a dispatch is under way, or parameters are to be changed.
      has_partial_inputs: Tells whether a message of a worker has some of its inputs and lacks others.

    Attributes:
      policy: The policy.
      number: Its number for compiled loops, or `BY_ASKING`.
    """

    def __init__(
        self,
        plan: Plan,
        tables: SchedulerTables,
        policy: Policy,
        loops: ModuleType,
        *,
        snapshot: Callable[[], Snapshot],
        moves: Callable[[], bool],
        has_partial_inputs: Callable[[int], bool],
    ):
        self._tables = tables
        self._loops = loops
        self._moves = moves
        self._has_partial_inputs = has_partial_inputs
        of_workers = []
        for worker in range(plan.workers):
            of_workers.append(WorkerQueues(plan, policy, worker, snapshot))
        self._of_workers = of_workers
        self.policy = policy
        self.number = number_of(policy)

    def forget_all(self) -> None:
        """Notes that nothing is in flight."""
        for queues in self._of_workers:
            queues.forget_all()

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy, also for messages that wait already."""
        self.policy = policy
        self.number = number_of(policy)
        for queues in self._of_workers:
            queues.decide_by(policy)

    def waiting_for(self, worker: int) -> list[Queue]:
        """Gives a worker's queues that are not empty.

        Returns:
          The queues, in the order in which they ceased to be empty.
        """
        return self._of_workers[worker].look(self._tables.t)

    def lengths(
        self,
        worker: int,
    ) -> tuple[list[int], list[int]]:
        """Counts the messages in each of a worker's queues that are not empty, ten times as fast as `Queue` objects are brought up to date.

        Returns:
          The queues' numbers, in the order in which they ceased to be empty, and the messages in each.
        """
        t = self._tables.t
        queues = t.active_queues(worker)
        lines = t.queues[queues]
        order = lines[:, c.SINCE].argsort()
        return queues[order].tolist(), lines[order, c.ITEMS].tolist()

    def take_woken(self) -> set[int]:
        """Gives the workers for whom something has come since this was last called.

        Returns:
          Their numbers. A worker that is not among them, had no action then, and has empty queues, has no action now.
        """
        woken = self._tables.t.clock[c.WOKEN :]
        workers = set(woken.nonzero()[0].tolist())
        woken[:] = 0
        return workers

    def why_blocked(self, worker: int) -> str | None:
        """Names the reason why a worker has no action.

        Returns:
          `policy`: its policy wants to wait; `memory`: there is no room for a result; `join`: a message of it lacks a partner, or members of
          its group; None: nothing waits for it.
        """
        if self._tables.t.active[worker, c.N_ACTIVE]:
            ready = self._with_room(worker)
            return "policy" if ready is None or len(ready) else "memory"
        return "join" if self._has_partial_inputs(worker) else None

    def pick(self, worker: int) -> int:
        """Gives the queue that the policy takes for a worker.

        Returns:
          The queue's number; `NO_QUEUE` if none can be dispatched, or if the policy wants to wait and something else moves.
        """
        queues = self._find_dispatchable(worker)
        if not queues:
            return NO_QUEUE
        choice = self._of_workers[worker].first()
        if choice not in queues:
            choice = self.policy(queues, self._now)
        return self.pick_if_all_wait(worker) if choice is None else choice.number

    def pick_if_all_wait(self, worker: int) -> int:
        """Gives the queue of a worker that is to wait: a policy can't let everybody wait.

        Returns:
          If nothing else moves, the queue that `backward_first` takes; else `NO_QUEUE`.
        """
        others = (
            self._find_dispatchable(other)
            for other in range(len(self._of_workers))
            if other != worker
        )
        if self._moves() or any(
            queues and self.policy(queues, self._now) is not None for queues in others
        ):
            return NO_QUEUE
        return backward_first(self._find_dispatchable(worker), self._now).number

    @property
    def _now(self) -> int:
        return int(self._tables.t.clock[c.NOW])

    def _find_dispatchable(self, worker: int) -> list[Queue]:
        """A worker's queues that can be dispatched."""
        queues = self.waiting_for(worker)
        ready = self._with_room(worker)
        if ready is None:
            return queues
        return [queue for queue in queues if queue.number in ready]

    def _with_room(self, worker: int) -> np.ndarray | None:
        """Lists a worker's queues that have room for their results; None if room is not limited."""
        if not self._tables.limited:
            return None
        ready = np.empty(
            len(self._tables.t.queues),
            np.int64,
        )
        return ready[: self._loops.list_ready(worker, self._tables.spare, ready, *self._tables.t)]
