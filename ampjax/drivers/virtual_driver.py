"""The virtual-time driver: the same scheduler, with a cost model for a clock. Deterministic; with real numerics or none."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterable, Iterator

from ampjax.drivers.cost import Cost, FlopsCost
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.tracer import Tracer, add_dispatch
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.layout.columns import DispatchRates
from ampjax.sched.virtual_time import VirtualClock
from ampjax.trace.trace import Trace

YIELD_EVERY = 16
"""Dispatches after which other tasks of the event loop may run."""


class VirtualDriver:
    """Drives a run in virtual time.

    A worker starts its next dispatch when its last one has ended; a dispatch's messages travel on when it has ended. Time is in
    integer nanoseconds, ties are broken by the order of issue.

    Args:
      loop: The run; without an executor only control runs.
      cost: Nanoseconds that each dispatch takes.
      trace: Filled with where each worker's time goes.
      now_ns: The time at which it starts.

    Attributes:
      now_ns: The time now.
    """

    def __init__(
        self,
        loop: DriverLoop,
        cost: Cost,
        trace: Trace | None = None,
        now_ns: int = 0,
    ):
        self._loop = loop
        self._cost = cost
        self._trace = trace
        self.now_ns = now_ns
        self._overlapping = cost.overlapping if isinstance(cost, FlopsCost) else frozenset[int]()

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
        for _ in self.steps():
            await asyncio.sleep(0)

    def steps(self, one_by_one: bool = False) -> Iterator[None]:
        """Runs until everything has ended; stops now and then, so that others can do something, too.

        Args:
          one_by_one: Whether instruments are told of each dispatch before the next one is decided, and of workers that have nothing to do.

        Raises:
          DeadlockError: If nothing can move.
        """
        self._loop.settle()
        cost = self._cost
        if one_by_one:
            return self._one_by_one()
        if self._trace is None and type(cost) is FlopsCost and self._loop.advances:
            return self._by_table(cost.rates())
        if (
            self._trace is None
            and self._loop.scheduler.plan.workers == 1
            and not self._loop.tells_of_ends
        ):
            return self._in_turn()
        return self._one_by_one()

    def _by_table(self, rates: DispatchRates) -> Iterator[None]:
        """Runs with costs in a table, so that the scheduler can run over many dispatches in one call."""
        time = VirtualClock(rates, self._loop.scheduler.plan.workers, self.now_ns)
        while True:
            moved = self._loop.advance(time)
            self.now_ns = time.now_ns
            if not moved:
                self._loop.queue.carry_out()
                if self._loop.is_finished():
                    return
                time.ask_all()
            yield

    def _in_turn(self) -> Iterator[None]:
        """Runs one worker: how long its dispatches take changes nothing but the time."""
        while True:
            dispatches = self._loop.ahead(0, YIELD_EVERY)
            for dispatch in dispatches:
                self.now_ns += max(0, self._cost(dispatch))
            self._loop.queue.carry_out()
            if dispatches and self._loop.reads(dispatches[-1]):
                self._loop.done(dispatches[-1])
            if not dispatches and self._loop.is_finished():
                return
            yield

    def _one_by_one(self) -> Iterator[None]:
        """Runs any number of workers with any cost model, one dispatch at a time, and with a trace, which is told of each."""
        if self._trace is not None:
            tracer = Tracer(self._trace, self._loop, lambda: self.now_ns)
        else:
            tracer = None
        idle = set(range(self._loop.scheduler.plan.workers))
        asked: Iterable[int] = sorted(idle)
        under_way: list[tuple[int, int, Dispatch]] = []
        for n in itertools.count(1):
            # Idle workers start first; then time goes to the next end.
            blocked = self._ask(asked, idle, under_way, tracer)
            if not under_way:
                if self._loop.is_finished():
                    if tracer is not None:
                        tracer.finish()
                    return
                asked = sorted(idle)
                continue
            # Ends at one time are taken in the order of decision.
            self.now_ns, _, dispatch = heapq.heappop(under_way)
            self._loop.done(dispatch)
            ended = set() if dispatch.stage in self._overlapping else {dispatch.worker}
            idle |= ended
            # A worker that had nothing to do, and for which nothing has come, need not be asked. A trace asks all, to tell why they wait.
            woken = ended.union(blocked) | self._loop.scheduler.queues.take_woken()
            asked = sorted(woken & idle if tracer is None else idle)
            if n % YIELD_EVERY == 0:
                yield

    def _ask(
        self,
        workers: Iterable[int],
        idle: set[int],
        under_way: list[tuple[int, int, Dispatch]],
        tracer: Tracer | None,
    ) -> list[int]:
        """Lets idle workers start dispatches; returns the workers that want to wait, or must, although messages are ready."""
        blocked = []
        for worker in workers:
            while (dispatch := self._loop.issue(worker)) is not None:
                end = self.now_ns + max(0, self._cost(dispatch))
                heapq.heappush(under_way, (end, dispatch.number, dispatch))
                if tracer is not None:
                    self._note(tracer, dispatch, end)
                # A transfer that overlaps leaves its worker idle, so the worker is asked again.
                if dispatch.stage not in self._overlapping:
                    idle.remove(worker)
                    break
            else:
                if self._loop.scheduler.queues.waiting_for(worker):
                    blocked.append(worker)
                if tracer is not None:
                    tracer.idle(worker)
                self._loop.idle(worker)
        return blocked

    def _note(self, tracer: Tracer, dispatch: Dispatch, end_ns: int) -> None:
        """Adds a dispatch that starts now to the trace."""
        changes_ns = end_ns
        if dispatch.changes:
            if dispatch.stage >= 0:
                kernels_ns = max(
                    0,
                    self._cost(dispatch._replace(changes=())),
                )
            else:
                kernels_ns = 0
            changes_ns = min(self.now_ns + kernels_ns, end_ns)
        start_ns = tracer.begin(dispatch)
        if dispatch.stage in self._overlapping:
            return  # rows on their way keep no worker busy
        add_dispatch(
            tracer.trace,
            tracer.note(dispatch),
            start_ns,
            changes_ns,
            changes_ns,
            end_ns,
        )
