"""Backlogs: the queues in which messages wait for a worker, and the queue that goes first.

A policy with ranks (`policy.Ranked`) is asked for the ranks of queues that have changed; a heap keeps the others in order, so that a worker with a
thousand queues chooses as fast as one with ten. Queues are brought up to date only when their lines in the loops' table have changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.choosing.queue_views import VIEW_COLUMNS, Queue
from ampjax.sched.decisions.policy import Policy, Rank, Ranked
from ampjax.sched.diagnose.inflight import MessagesInFlight
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables

MOST_OLD_ENTRIES = 64
"""Entries of queues that have changed since, beyond twice the queues, from which on a heap is cleared of them."""


class Backlog:
    """A worker's queues that are not empty.

    Args:
      policy: Which queue goes next.

    Attributes:
      queues: The queues, in the order in which they ceased to be empty.
    """

    def __init__(self, policy: Policy):
        self._since: dict[Queue, int] = {}
        self.queues = self._since.keys()
        self._clock = 0
        self.decide_by(policy)

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy; its ranks are asked for anew."""
        self._policy = policy if isinstance(policy, Ranked) else None
        self._heap: list[tuple[Rank, int, int, Queue]] = []
        self._entered: dict[Queue, int] = {}
        self._changed: dict[Queue, None] = dict.fromkeys(self._since)

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, queue: object) -> bool:
        return queue in self._since

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.queues)

    def add(self, queue: Queue) -> None:
        """Notes that messages have come to a queue."""
        if queue not in self._since:
            self._clock += 1
            self._since[queue] = self._clock
        self._changed[queue] = None

    def note_taken(self, queue: Queue) -> None:
        """Notes that messages have been taken from a queue.

        Args:
          queue: The queue, which shows what is left.
        """
        if queue.items:
            self._changed[queue] = None
            return
        del self._since[queue]
        self._changed.pop(queue, None)
        self._entered.pop(queue, None)

    def first(self) -> Queue | None:
        """Gives the queue that a policy with ranks takes.

        Returns:
          The queue of the lowest rank, whether or not it has room for a dispatch; None for other policies, and if nothing waits.
        """
        if self._policy is None:
            return None
        if len(self._since) < 2:
            return next(iter(self._since), None)
        self._enter(self._policy)
        while True:
            _, _, entry, queue = self._heap[0]
            if self._entered.get(queue) == entry:
                return queue
            heapq.heappop(self._heap)

    def _enter(self, policy: Ranked) -> None:
        """Pushes the queues that have changed onto the heap anew; older entries no longer count."""
        if len(self._heap) > 2 * len(self._since) + MOST_OLD_ENTRIES:
            self._heap = []
            self._changed = dict.fromkeys(self._since)
        for queue in self._changed:
            self._clock += 1
            self._entered[queue] = self._clock
            heapq.heappush(
                self._heap,
                (
                    policy.rank(queue),
                    self._since[queue],
                    self._clock,
                    queue,
                ),
            )
        self._changed.clear()


class WorkerQueues:
    """A worker's queues.

    Args:
      plan: The plan.
      policy: Which queue goes next.
      worker: The worker.
      snapshot: Gives the scheduler's parts.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        worker: int,
        snapshot: Callable[[], Snapshot],
    ):
        self._plan = plan
        self._worker = worker
        self._snapshot = snapshot
        self._backlog = Backlog(policy)
        self._views: dict[int, Queue] = {}
        self._own = np.zeros(0, np.int32)
        self._seen = np.zeros(
            (c.N_DIRECTIONS * len(plan.stages), len(VIEW_COLUMNS) + 1),
            np.int64,
        )

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy."""
        self._backlog.decide_by(policy)

    def forget_all(self) -> None:
        """Notes that all queues are empty, and that the counters behind their ages may begin anew."""
        self._leave(self._own.tolist())
        self._own = np.zeros(0, np.int32)
        self._seen[:] = 0

    def first(self) -> Queue | None:
        """Gives the queue that a policy with ranks takes, among the queues that `look` has found.

        Returns:
          The queue; None for other policies, and if nothing waits.
        """
        return self._backlog.first()

    def look(self, t: Tables) -> list[Queue]:
        """Brings the queues up to date.

        Returns:
          The queues that are not empty now, in the order in which they ceased to be empty.
        """
        active = t.active_queues(self._worker).copy()
        lines = t.queues[active]
        born = np.where(
            lines[:, c.N_SORTED] > 0,
            lines[:, c.SORTED_BORN],
            t.live[lines[:, c.HEAD], c.BORN],
        )
        shown = np.column_stack([lines[:, VIEW_COLUMNS], born])
        entered = self._seen[active, VIEW_COLUMNS.index(c.SINCE)] != lines[:, c.SINCE]
        changed = shown != self._seen[active]
        moved = changed[:, 1:].any(axis=1)
        self._leave(
            [
                *np.setdiff1d(
                    self._own,
                    active,
                ).tolist(),
                *active[entered].tolist(),
            ]
        )
        self._own = active
        self._seen[active] = shown
        order = np.argsort(lines[:, c.SINCE])
        for k in order[changed.any(axis=1)[order]].tolist():
            view = self._view(int(active[k]))
            view.update(shown[k].tolist())
            if moved[k]:
                self._backlog.add(view)
        return list(self._backlog)

    def _leave(self, queues: list[int]) -> None:
        """Takes queues out that are empty, or have been in the meantime."""
        for q in queues:
            view = self._views.get(q)
            if view is not None and view.items:
                view.items = 0
                self._backlog.note_taken(view)

    def _view(self, q: int) -> Queue:
        if q not in self._views:
            self._views[q] = Queue(self._plan, q, self._states_of)
        return self._views[q]

    def _states_of(self, q: int) -> np.ndarray:
        messages = MessagesInFlight(self._snapshot())
        return messages.states(messages.place[messages.queued[q]])
