"""What waits for a worker, as a user's policy sees it.

Loops keep queues as lines of a table. A policy in Python gets an object for each, which is brought up to date only when its line has changed; a policy
with ranks (`sched.policy.Ranked`) is asked for the ranks of these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampjax.sched.backlog import Backlog
from ampjax.sched.plan import Plan
from ampjax.sched.policy import Policy
from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.diagnose.inflight import InFlight
from ampjax.schedule.diagnose.snapshot import Snapshot
from ampjax.schedule.dispatch import DIRECTIONS

SHOWN = c.UNDER_WAY, c.ITEMS, c.WAITING, c.MAX_ROWS, c.LONGEST, c.SINCE
"""The columns of a queue that views show; then follows when it began to wait. All but the first change only when messages come or go."""


class QueueView:
    """A queue as policies see it: what `sched.queues.Queue` tells. It holds until the next event.

    Args:
      plan: The plan.
      q: The queue's line.
      snapshot: The scheduler's parts, where the messages are looked up.

    Attributes:
      stage, direction: What it waits for.
      backward: Whether dispatching it answers messages: it holds backward messages, or a loss's, which start the way back.
      items: Messages that wait.
      rows: Their rows.
      max_rows: Rows from which on a dispatch is full.
      ready: Rows that one dispatch can take.
      born: When it began to wait: the number of the dispatch that made the first message ready.
      longest: The most messages that have waited.
      under_way: Forward: messages that have been dispatched and whose gradients have not.
    """

    def __init__(self, plan: Plan, q: int, snapshot: Callable[[], Snapshot]):
        self.stage, self.direction = plan.stages[q // 3], DIRECTIONS[q % 3]
        self.backward = q % 3 == c.BACKWARD or (q % 3 == c.FORWARD and self.stage.kind == "loss")
        self.number, self._snapshot = q, snapshot
        self.items = self.rows = self.max_rows = self.longest = self.under_way = self.ready = self.born = 0

    def update(self, shown: Sequence[int]) -> None:
        """Takes what the queue's line says (`SHOWN`), and when it began to wait."""
        self.under_way, self.items, self.rows, self.max_rows, self.longest, _, self.born = shown
        self.ready = min(self.rows, self.max_rows)

    @property
    def states(self) -> np.ndarray:
        """`[items, width]`: the states of the messages that wait, in the order in which they stand."""
        s = self._snapshot()
        found = InFlight(s)
        return found.states(found.place[found.queued[self.number]])

    def __repr__(self) -> str:
        return f"Queue({self.direction} of `{self.stage.name}`: {self.items} messages, {self.rows} rows)"


class WorkerQueues:
    """A worker's queues.

    Args:
      plan: The plan.
      policy: Which queue goes next.
      worker: The worker.
      snapshot: Gives the scheduler's parts.
    """

    def __init__(self, plan: Plan, policy: Policy, worker: int, snapshot: Callable[[], Snapshot]):
        self._plan, self._worker, self._snapshot = plan, worker, snapshot
        self._backlog = Backlog(policy)
        self._views: dict[int, QueueView] = {}
        self._own = np.zeros(0, np.int32)
        self._seen = np.zeros((3 * len(plan.stages), len(SHOWN) + 1), np.int64)

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy."""
        self._backlog.decide_by(policy)

    def first(self) -> QueueView | None:
        """What a policy with ranks takes of what `look` has found; None for other policies, and if nothing waits."""
        return self._backlog.first()  # type: ignore[return-value]

    def look(self, t: Tables) -> list[QueueView]:
        """The queues that are not empty now, in the order in which they ceased to be empty."""
        own = t.active_queues(self._worker).copy()
        lines = t.queues[own]
        born = np.where(lines[:, c.N_SORTED] > 0, lines[:, c.SORTED_BORN], t.live[lines[:, c.HEAD], c.BORN])
        shown = np.column_stack([lines[:, SHOWN], born])
        entered = self._seen[own, SHOWN.index(c.SINCE)] != lines[:, c.SINCE]
        changed = shown != self._seen[own]
        moved = changed[:, 1:].any(axis=1)
        self._leave([*np.setdiff1d(self._own, own).tolist(), *own[entered].tolist()])
        self._own, self._seen[own] = own, shown
        order = np.argsort(lines[:, c.SINCE])
        for k in order[changed.any(axis=1)[order]].tolist():
            view = self._view(int(own[k]))
            view.update(shown[k].tolist())
            if moved[k]:
                self._backlog.add(view)  # type: ignore[arg-type]
        return list(self._backlog)  # type: ignore[return-value]

    def _leave(self, queues: list[int]) -> None:
        """Takes queues out that are empty, or have been in the meantime."""
        for q in queues:
            view = self._views.get(q)
            if view is not None and view.items:
                view.items = 0
                self._backlog.taken(view)  # type: ignore[arg-type]

    def _view(self, q: int) -> QueueView:
        if q not in self._views:
            self._views[q] = QueueView(self._plan, q, self._snapshot)
        return self._views[q]
