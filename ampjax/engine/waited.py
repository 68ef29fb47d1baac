"""Times of every dispatch on its device, each of which is waited for before its messages travel on: exact, and slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import jax

from ampjax.engine.executor import Executor
from ampjax.engine.streaks import Streak
from ampjax.engine.tracing import Note, Tracer, add_dispatch, tell
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.scheduler import Scheduler


class Waited:
    """Watches a run in wall-clock time, and times every dispatch (`engine.loop.Watch`).

    Args:
      tracer: Records the run.
      executor: Marks what has been issued; None if only control runs.
    """

    def __init__(self, tracer: Tracer, executor: Executor | None):
        self._tracer, self._executor = tracer, executor
        self._start_ns = 0
        self._kernels: list[jax.Array] = []

    def decided(self, dispatch: Dispatch) -> bool:
        """The scheduler has chosen a dispatch, which is issued at once."""
        self._start_ns, self._kernels = self._tracer.begin(dispatch), []
        return False

    def alone(self, dispatch: Dispatch) -> bool:
        """All are: each is issued before the next is decided on."""
        return True

    def issue(self, streak: Streak, scheduler: Scheduler) -> None:
        """Issues a dispatch, since no second one is decided before, and marks the end of its kernels; `wait` follows, before anything else is issued by this worker."""
        assert self._executor is not None
        self._executor.run(streak, scheduler)
        self._kernels = self._executor.kernel_marks(streak[-1])
        self._executor.change(streak[-1])

    def carried_out(self) -> None:
        """All has been issued."""

    async def wait(self, dispatch: Dispatch) -> None:
        """Waits for the kernels of a dispatch that has just been issued, then for its parameter changes, while other workers go on."""
        start, kernels = self._start_ns, self._kernels
        changes = self._executor.change_marks(dispatch) if self._executor is not None else []
        changes_ns = end_ns = await self._ended(kernels)
        if changes:
            end_ns = await self._ended(changes)
        add_dispatch(self._tracer.trace, Note(*tell(dispatch)), start, changes_ns, changes_ns, end_ns)

    async def _ended(self, marks: list[jax.Array]) -> int:
        """The time when all of them are ready."""
        return await asyncio.get_running_loop().run_in_executor(None, _wait, marks, self._tracer.clock)


def _wait(marks: list[jax.Array], clock: Callable[[], int]) -> int:
    jax.block_until_ready(marks)
    return clock()
