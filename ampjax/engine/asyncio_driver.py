"""The asyncio driver: one task per worker, on real devices.

Routing depends on issued dispatches only, so the loop runs ahead of the devices and never blocks on one: when a worker is too far
ahead, its task waits in a helper thread for an earlier dispatch to end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial

import jax

from ampjax.engine.executor import Executor
from ampjax.engine.loop import Loop, add_to_trace
from ampjax.engine.trace import Trace
from ampjax.sched.dispatch import Dispatch

STRIDE = 16
"""Dispatches between two marks on a worker's device."""


class AsyncioDriver:
    """Drives a run in the current event loop.

    Args:
      loop: The run.
      run_ahead: Dispatches that a worker may have issued before the device has done them, about.
      trace: Where each dispatch's time goes. Tracing waits for every dispatch to end before its messages travel on, so it slows the
        run down.
    """

    def __init__(self, loop: Loop, run_ahead: int = 64, trace: Trace | None = None):
        self._loop, self._run_ahead, self._trace = loop, max(run_ahead, 2 * STRIDE), trace
        self._marks: list[deque[jax.Array]] = [deque() for _ in range(loop.scheduler.plan.workers)]
        self._moved = asyncio.Event()
        self._over = False
        self._readers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until all sources are exhausted and everything has ended.

        Raises:
          DeadlockError: If nothing can move.
          Exception: What a worker raised first, with node and state attached.
        """
        if self._trace is not None and self._loop.executor is not None:
            self._loop.executor.warm_marks()
        self._loop.settle()
        try:
            async with asyncio.TaskGroup() as self._group:
                for worker in range(self._loop.scheduler.plan.workers):
                    self._group.create_task(self._worker(worker), name=f"ampjax worker {worker}")
        except* Exception as errors:
            raise _first(errors) from None

    async def _worker(self, worker: int) -> None:
        issued = 0
        while not self._over:
            start = time.perf_counter_ns()
            marks: list[jax.Array] = []
            dispatch = self._loop.issue(worker, partial(self._mark_kernels, marks) if self._trace is not None else None)
            if dispatch is None:
                if self._loop.settle():  # what has been pumped may be for a worker that is waiting
                    self._moved.set()
                    continue
                if self._loop.finished():
                    self._over = True
                    self._moved.set()
                    return
                if self._loop.scheduler.plan.workers > 1 or self._readers:
                    self._moved.clear()
                    if not self._loop.scheduler.can_move_on(worker):
                        await self._moved.wait()
                continue
            if self._trace is not None:
                await self._traced(self._trace, dispatch, start, marks)
            if dispatch.reads and self._loop.executor is not None:
                reader = self._group.create_task(self._read(self._loop.executor, dispatch))
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
            else:
                self._loop.done(dispatch)
                self._moved.set()
            issued += 1
            if issued % STRIDE == 0:
                await self._keep_pace(worker)

    async def _read(self, executor: Executor, dispatch: Dispatch) -> None:
        """Waits for the payloads that a dispatch reads back, while workers go on; then its messages travel on."""
        await _ended([executor.reading(dispatch)])
        self._loop.done(dispatch)
        self._moved.set()

    async def _keep_pace(self, worker: int) -> None:
        """Marks the device's queue, and waits for an old mark if too many are not reached."""
        executor = self._loop.executor
        marks = self._marks[worker]
        if executor is not None:
            mark = executor.mark(worker)
            if mark is not None:
                marks.append(mark)
        while marks and getattr(marks[0], "is_ready", bool)():  # jax.Array's type does not list it
            marks.popleft()
        if len(marks) * STRIDE > self._run_ahead:
            oldest = marks.popleft()
            await asyncio.get_running_loop().run_in_executor(None, oldest.block_until_ready)
        else:
            await asyncio.sleep(0)

    def _mark_kernels(self, marks: list[jax.Array], dispatch: Dispatch) -> None:
        if self._loop.executor is not None:
            marks += self._loop.executor.kernel_marks(dispatch)

    async def _traced(self, trace: Trace, dispatch: Dispatch, start: int, kernels: list[jax.Array]) -> None:
        """Waits for a dispatch's kernels to end, then for its parameter changes, while other workers go on."""
        executor = self._loop.executor
        changes = executor.change_marks(dispatch) if executor is not None else []
        changes_ns = end_ns = await _ended(kernels)
        if changes:
            end_ns = await _ended(changes)
        add_to_trace(trace, dispatch, start, changes_ns, end_ns)


async def _ended(marks: list[jax.Array]) -> int:
    """The time when all of them are ready."""
    await asyncio.get_running_loop().run_in_executor(None, jax.block_until_ready, marks)
    return time.perf_counter_ns()


def _first(errors: BaseExceptionGroup) -> BaseException:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
