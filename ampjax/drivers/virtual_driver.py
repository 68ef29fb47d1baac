"""The virtual-time driver: the same scheduler, with a cost model for a clock. Deterministic; with real numerics or none."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator

from ampjax.drivers.cost import Cost
from ampjax.drivers.run import Loop
from ampjax.drivers.tracer import Tracer, add_dispatch
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.trace.trace import Trace

STRIDE = 16
"""Dispatches between two looks at what other tasks there are."""


class VirtualDriver:
    """Drives a run in virtual time.

    A worker starts its next dispatch when its last one has ended; a dispatch's messages travel on when it has ended. Time is in
    integer nanoseconds, ties are broken by the order of issue.

    Args:
      loop: The run; without an executor only control runs.
      cost: Nanoseconds that each dispatch takes.
      trace: Where each worker's time goes.
      now_ns: The time at which it starts.
    """

    def __init__(self, loop: Loop, cost: Cost, trace: Trace | None = None, now_ns: int = 0):
        self._loop, self._cost, self._trace = loop, cost, trace
        self.now_ns = now_ns

    def run(self) -> int:
        """Runs until everything has ended; returns the time that has passed, in nanoseconds.

        Raises:
          DeadlockError: If nothing can move.
        """
        start_ns = self.now_ns
        for _ in self.steps():
            pass
        return self.now_ns - start_ns

    async def run_beside(self) -> None:
        """Runs until everything has ended, and lets other tasks of the event loop run now and then.

        Raises:
          DeadlockError: If nothing can move.
        """
        for n, _ in enumerate(self.steps()):
            if n % STRIDE == 0:
                await asyncio.sleep(0)

    def steps(self) -> Iterator[None]:
        """Runs until everything has ended; stops whenever a dispatch has.

        Raises:
          DeadlockError: If nothing can move.
        """
        tracer = Tracer(self._trace, self._loop, lambda: self.now_ns) if self._trace is not None else None
        idle = set(range(self._loop.scheduler.plan.workers))
        asked: Iterable[int] = sorted(idle)
        under_way: list[tuple[int, int, Dispatch]] = []
        self._loop.settle()
        while True:
            in_vain = self._ask(asked, idle, under_way, tracer)
            if not under_way:
                if self._loop.finished():
                    if tracer is not None:
                        tracer.finish()
                    return
                asked = sorted(idle)
                continue
            self.now_ns, _, dispatch = heapq.heappop(under_way)
            self._loop.done(dispatch)
            idle.add(dispatch.worker)
            # Who had nothing to do and for whom nothing has come need not be asked, but for a trace, which tells why it waits.
            stirred = {dispatch.worker, *in_vain} | self._loop.scheduler.stirred()
            asked = sorted(stirred & idle if tracer is None else idle)
            yield

    def _ask(
        self, workers: Iterable[int], idle: set[int], under_way: list[tuple[int, int, Dispatch]], tracer: Tracer | None
    ) -> list[int]:
        """Lets idle workers start what they want to; gives those that want to wait, or must, although something waits for them."""
        in_vain = []
        for worker in workers:
            dispatch = self._loop.issue(worker)
            if dispatch is not None:
                idle.remove(worker)
                end = self.now_ns + max(0, self._cost(dispatch))
                heapq.heappush(under_way, (end, dispatch.number, dispatch))
                if tracer is not None:
                    self._note(tracer, dispatch, end)
                continue
            if self._loop.scheduler.waiting_for(worker):
                in_vain.append(worker)
            if tracer is not None:
                tracer.idle(worker)
        return in_vain

    def _note(self, tracer: Tracer, dispatch: Dispatch, end_ns: int) -> None:
        """Adds a dispatch that starts now to the trace."""
        changes_ns = end_ns
        if dispatch.changes:
            kernels_ns = max(0, self._cost(dispatch._replace(changes=()))) if dispatch.stage >= 0 else 0
            changes_ns = min(self.now_ns + kernels_ns, end_ns)
        start_ns = tracer.begin(dispatch)
        add_dispatch(tracer.trace, tracer.note(dispatch), start_ns, changes_ns, changes_ns, end_ns)
