"""The virtual-time driver: the same scheduler, with a cost model for a clock. Deterministic; with real numerics or none."""

from __future__ import annotations

import bisect
import dataclasses
import heapq

from ampjax.engine.cost import Cost
from ampjax.engine.loop import Loop, add_to_trace
from ampjax.engine.trace import Trace
from ampjax.sched.dispatch import Dispatch


class VirtualDriver:
    """Drives a run in virtual time.

    A worker starts its next dispatch when its last one has ended; a dispatch's messages travel on when it has ended. Time is in
    integer nanoseconds, ties are broken by the order of issue.

    Args:
      loop: The run; without an executor only control runs.
      cost: Nanoseconds that each dispatch takes.
      trace: Where each dispatch's time goes.
    """

    def __init__(self, loop: Loop, cost: Cost, trace: Trace | None = None):
        self._loop, self._cost, self._trace = loop, cost, trace
        self.now_ns = 0

    def run(self) -> int:
        """Runs until everything has ended; returns the time that has passed, in nanoseconds.

        Raises:
          DeadlockError: If nothing can move.
        """
        workers = self._loop.scheduler.plan.workers
        start_ns = self.now_ns
        idle = list(range(workers))
        under_way: list[tuple[int, int, Dispatch]] = []
        self._loop.settle()
        while True:
            for worker in idle[:]:
                dispatch = self._loop.issue(worker)
                if dispatch is not None:
                    idle.remove(worker)
                    end = self.now_ns + max(0, self._cost(dispatch))
                    heapq.heappush(under_way, (end, dispatch.number, dispatch))
                    if self._trace is not None:
                        changes_ns = end
                        if dispatch.changes:
                            changes_ns = self.now_ns + max(0, self._cost(dataclasses.replace(dispatch, changes=[])))
                        add_to_trace(self._trace, dispatch, self.now_ns, min(changes_ns, end), end)
            if not under_way:
                if self._loop.finished():
                    return self.now_ns - start_ns
                continue
            self.now_ns, _, dispatch = heapq.heappop(under_way)
            self._loop.done(dispatch)
            bisect.insort(idle, dispatch.worker)
