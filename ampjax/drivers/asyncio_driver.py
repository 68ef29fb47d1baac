"""The asyncio driver: one task per worker, on real devices.

Routing depends on decisions only, so the loop runs ahead of the devices and never blocks on one: when a worker is too far
ahead, its task waits in a helper thread for an earlier dispatch to end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial

import jax

from ampjax.drivers.host_order import has_expected_order, in_expected_order
from ampjax.drivers.hosted_timer import HostedTimer
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.sampling_timer import SamplingTimer
from ampjax.drivers.tracer import Tracer
from ampjax.drivers.waiting_timer import WaitingTimer
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.layout import columns as c
from ampjax.trace.trace import Trace
from ampjax.utils.wait_with_warning import wait_with_warning

FENCE_EVERY = 16
"""Dispatches between two fences on a worker's device."""

HOSTS_FENCE_EVERY = 64
HOSTS_AHEAD = 320
"""The same where workers are on hosts, and how many a worker may be sent before it has done them: several batches, so that no host runs out of work while
the driver waits for another one or for a core; but fewer than a host's window holds, so that it is here that the driver waits."""

HOSTS_HEARD_EVERY = 256
"""Dispatches after which a driver of many workers on hosts lets others in its event loop go on, at the latest."""


class AsyncioDriver:
    """Drives a run in the current event loop.

    Args:
      loop: The run.
      run_ahead: About how many dispatches a worker may have issued before the device has done them.
      trace: Filled with where each worker's time goes; one dispatch in `Trace.every` is waited for.
    """

    def __init__(
        self,
        loop: DriverLoop,
        run_ahead: int = 64,
        trace: Trace | None = None,
    ):
        least = (
            HOSTS_AHEAD
            if loop.executor is not None and loop.executor.is_remote
            else 2 * FENCE_EVERY
        )
        self._loop = loop
        self._run_ahead = max(run_ahead, least)
        self._trace = trace
        self._fences: list[deque[tuple[jax.Array, str]]] = [
            deque() for _ in range(loop.scheduler.plan.workers)
        ]
        self._fence_every = FENCE_EVERY
        self._moved = asyncio.Event()
        self._over = False
        self._tracer: Tracer | None = None
        self._watch: SamplingTimer | HostedTimer | WaitingTimer | None = None
        self._readers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until all sources are exhausted and everything has ended.

        Raises:
          DeadlockError: If nothing can move.
          Exception: What a worker raised first, with node and state attached.
        """
        if self._trace is not None:
            self._start_trace(self._trace)
        try:
            async with asyncio.TaskGroup() as self._group:
                if has_expected_order(self._loop):
                    self._group.create_task(self._all_workers(), name="ampjax workers")
                else:
                    self._loop.settle()
                    for worker in range(self._loop.scheduler.plan.workers):
                        self._group.create_task(
                            self._worker(worker), name=f"ampjax worker {worker}"
                        )
            if isinstance(self._watch, SamplingTimer | HostedTimer):
                await asyncio.get_running_loop().run_in_executor(None, self._watch.wait)
        except* Exception as errors:
            raise _first(errors) from None
        finally:
            self._end_trace()

    async def _all_workers(self) -> None:
        """Decides for the workers of all hosts in the order in which their dispatches are expected to end."""
        clock = self._loop.scheduler.tables.t.clock
        workers = range(self._loop.scheduler.plan.workers)
        fenced = heard = int(clock[c.NOW])
        self._fence_every = HOSTS_FENCE_EVERY
        for _ in in_expected_order(self._loop, self._trace is not None):
            now = int(clock[c.NOW])
            if now - fenced >= self._fence_every * len(workers):
                fenced = heard = now
                for worker in workers:
                    await self._keep_pace(worker, f"what was decided last for worker {worker}")
            elif now - heard >= HOSTS_HEARD_EVERY:
                heard = now
                await asyncio.sleep(0)  # so that others can do something, too

    async def _worker(self, worker: int) -> None:
        issued = 0
        while not self._over:
            dispatches = self._take(worker, issued)
            if not dispatches:
                # Nothing to decide: what waits is issued, and then it is asked whether anything can
                # still move.
                self._loop.queue.carry_out()
                if self._loop.settle():  # what has been pumped may be for a worker that is waiting
                    self._moved.set()
                    continue
                if self._loop.is_finished():
                    self._over = True
                    self._moved.set()
                    return
                # The event is cleared before the last look: whoever moves after it sets it again.
                if self._loop.scheduler.plan.workers > 1 or self._readers:
                    self._moved.clear()
                    if not self._loop.scheduler.can_move(worker):
                        self._loop.idle(worker)
                        await self._moved.wait()
                continue
            last = dispatches[-1]
            if isinstance(self._watch, WaitingTimer):
                self._loop.queue.carry_out()
                await self._watch.wait(last)
            # A dispatch whose payloads decide is waited for by a task of its own; this worker goes
            # on.
            if self._loop.executor is not None and self._loop.reads(last):
                self._loop.queue.carry_out()
                reader = self._group.create_task(self._read(self._loop.executor, last))
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
            else:
                if self._trace is not None:
                    self._loop.done(last)
                self._moved.set()
            issued += len(dispatches)
            if issued % FENCE_EVERY == 0:
                await self._keep_pace(worker, self._words(last))

    def _take(self, worker: int, issued: int) -> list[Dispatch]:
        """Takes the worker's next dispatches until the next fence, each done as soon as decided.

        With a trace it is one, which is not done: the trace notes at each decision what waits.
        """
        if self._trace is None:
            return self._loop.ahead(worker, FENCE_EVERY - issued % FENCE_EVERY)
        dispatch = self._loop.decide(worker)
        return [] if dispatch is None else [dispatch]

    async def _read(self, executor: AnyExecutor, dispatch: Dispatch) -> None:
        """Waits for the payloads that a dispatch reads back, while workers go on; then its messages travel on."""
        reading = executor.readings[dispatch.number]
        await wait_with_warning(
            partial(jax.block_until_ready, reading), f"what {self._words(dispatch)} reads back"
        )
        self._loop.done(dispatch)
        self._moved.set()

    async def _keep_pace(self, worker: int, last: str) -> None:
        """Puts a fence into the device's queue, and waits for an old one if too many are not reached."""
        # A fence stands behind everything that has been decided.
        self._loop.queue.carry_out()
        executor = self._loop.executor
        fences = self._fences[worker]
        if executor is not None:
            fence = executor.fences.of_worker(worker)
            if fence is not None:
                fences.append((fence, last))
        # Fences that have been reached cost nothing.
        while (
            fences and getattr(fences[0][0], "is_ready", bool)()
        ):  # jax.Array's type does not list it
            fences.popleft()
        if len(fences) * self._fence_every > self._run_ahead:
            oldest, last = fences.popleft()
            await wait_with_warning(
                oldest.block_until_ready,
                f"{last}, or one of the {self._fence_every - 1} before it on this worker,",
            )
        else:
            await asyncio.sleep(0)

    def _words(self, dispatch: Dispatch) -> str:
        """A dispatch in words."""
        return dispatch.describe(self._loop.scheduler.plan.stages[dispatch.stage].name)

    def _start_trace(self, trace: Trace) -> None:
        executor = self._loop.executor
        timing = None if executor is None else executor.timing
        if executor is not None and timing is None and trace.every == 1:
            executor.fences.warm()
        tracer = self._tracer = Tracer(trace, self._loop, time.perf_counter_ns)
        if executor is not None and timing is not None:
            self._watch = HostedTimer(tracer, executor, timing, trace.every)
        elif executor is None or trace.every == 1:
            self._watch = WaitingTimer(tracer, executor)
        else:
            self._watch = SamplingTimer(tracer, executor, trace.every)
        self._loop.instruments.add(self._watch)

    def _end_trace(self) -> None:
        if isinstance(self._watch, SamplingTimer | HostedTimer):
            self._watch.finish()
        if self._tracer is not None:
            self._tracer.finish()
        if self._watch is not None:
            self._loop.instruments.remove(self._watch)


def _first(errors: BaseExceptionGroup) -> BaseException:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
