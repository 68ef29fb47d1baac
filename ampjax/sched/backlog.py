"""Backlogs: what waits for a worker, and which of it goes first.

A policy with ranks (`policy.Ranked`) is asked for the ranks of queues that have changed; a heap keeps the others in order, so that a worker with a
thousand queues chooses as fast as one with ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ampjax.sched.policy import Policy, Rank, Ranked
from ampjax.sched.queues import Queue

SPARE = 64
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

    def taken(self, queue: Queue) -> None:
        """Notes that messages have been taken from a queue."""
        if queue.items:
            self._changed[queue] = None
            return
        del self._since[queue]
        self._changed.pop(queue, None)
        self._entered.pop(queue, None)

    def first(self) -> Queue | None:
        """What a policy with ranks takes, if it can be dispatched; None for other policies, and if nothing waits."""
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
        """Gives queues that have changed their new places; what the heap knew of them before no longer counts."""
        if len(self._heap) > 2 * len(self._since) + SPARE:
            self._heap, self._changed = [], dict.fromkeys(self._since)
        for queue in self._changed:
            self._clock += 1
            self._entered[queue] = self._clock
            heapq.heappush(self._heap, (policy.rank(queue), self._since[queue], self._clock, queue))
        self._changed.clear()
