"""Times every dispatch by waiting for its end: exact, and slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import jax

from ampjax.drivers.tracer import Tracer, add_dispatch
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.trace.instruments import Instrument


class WaitingTimer(Instrument):
    """Watches a run in wall-clock time, and times every dispatch.

    Args:
      tracer: Records the run.
      executor: Has fences behind what has been issued; None if only control runs.
    """

    def __init__(self, tracer: Tracer, executor: AnyExecutor | None):
        self._tracer = tracer
        self._executor = executor
        self._start_ns = 0
        self._kernels: list[jax.Array] = []

    def decided(self, dispatch: Dispatch) -> bool:
        """Notes that a worker has got a dispatch; `wait` must follow before anything else is issued by this worker.

        Returns:
          True: it is issued by itself.
        """
        self._start_ns = self._tracer.begin(dispatch)
        self._kernels = []
        return True

    def after_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Puts fences behind their kernels."""
        assert self._executor is not None
        self._kernels = self._executor.fences.of_kernels(dispatches[-1])

    def idle(self, worker: int) -> None:
        """Notes why a worker has got nothing to do."""
        self._tracer.idle(worker)

    async def wait(self, dispatch: Dispatch) -> None:
        """Waits for the kernels of a dispatch, then for its parameter changes, while other workers go on; adds the dispatch to the trace."""
        start = self._start_ns
        kernels = self._kernels
        if self._executor is not None:
            changes = self._executor.fences.of_changes(dispatch.changes)
        else:
            changes = []
        changes_ns = end_ns = await self._end_time(kernels)
        if changes:
            end_ns = await self._end_time(changes)
        add_dispatch(
            self._tracer.trace,
            self._tracer.note(dispatch),
            start,
            changes_ns,
            changes_ns,
            end_ns,
        )

    async def _end_time(self, fences: list[jax.Array]) -> int:
        """The time when all fences are ready."""
        return await asyncio.get_running_loop().run_in_executor(
            None, _wait, fences, self._tracer.clock
        )


def _wait(
    fences: list[jax.Array],
    clock: Callable[[], int],
) -> int:
    jax.block_until_ready(fences)
    return clock()
