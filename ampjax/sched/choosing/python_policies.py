"""Policies that are asked in Python: what a worker takes next, and what if everybody wants to wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.choosing.backlog import WorkerQueues
from ampjax.sched.choosing.queue_views import Queue
from ampjax.sched.columns import Tables
from ampjax.sched.decisions.policy import Policy, backward_first
from ampjax.sched.diagnose.snapshot import Snapshot

NONE = -1
"""No queue."""


class Asking:
    """Asks a policy about the queues of workers.

    Args:
      plan: The plan.
      policy: The policy.
      snapshot: Gives the scheduler's parts.
      ready: The queues of a worker that have room for what they make; None if all have.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        snapshot: Callable[[], Snapshot],
        ready: Callable[[int], np.ndarray | None],
    ):
        self._policy, self._ready = policy, ready
        self._queues = [WorkerQueues(plan, policy, worker, snapshot) for worker in range(plan.workers)]

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy."""
        self._policy = policy
        for queues in self._queues:
            queues.decide_by(policy)

    def waiting_for(self, t: Tables, worker: int) -> list[Queue]:
        """A worker's queues that are not empty, in the order in which they ceased to be empty."""
        return self._queues[worker].look(t)

    def pick(self, t: Tables, worker: int, moves: bool) -> int:
        """The queue that the policy wants; `NONE` if it wants none, and something else moves.

        Args:
          t: The tables.
          worker: The worker.
          moves: Whether a dispatch is under way, or parameters are to be changed.
        """
        queues = self._with_room(t, worker)
        if not queues:
            return NONE
        choice = self._queues[worker].first()
        if choice not in queues:
            choice = self._policy(queues, int(t.clock[c.NOW]))
        return self.when_all_wait(t, worker, moves) if choice is None else choice.number

    def when_all_wait(self, t: Tables, worker: int, moves: bool) -> int:
        """The policy wants a worker to wait: if nothing else moves, the queue that `backward_first` takes; else `NONE`."""
        now = int(t.clock[c.NOW])
        others = (self._with_room(t, other) for other in range(len(self._queues)) if other != worker)
        if moves or any(queues and self._policy(queues, now) is not None for queues in others):
            return NONE
        return backward_first(self._with_room(t, worker), now).number

    def _with_room(self, t: Tables, worker: int) -> list[Queue]:
        """A worker's queues that can be dispatched."""
        queues, ready = self.waiting_for(t, worker), self._ready(worker)
        return queues if ready is None else [queue for queue in queues if queue.number in ready]
