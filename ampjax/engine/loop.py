"""What all drivers share: ask the scheduler, run the dispatch, admit instances, notice the end or a standstill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ampjax.engine.executor import Executor
from ampjax.engine.source import Source
from ampjax.engine.trace import Trace
from ampjax.ir.state import INSTANCE, State
from ampjax.sched.dispatch import Dispatch, Update
from ampjax.sched.scheduler import Scheduler

Progress = Callable[[int, bool], None]
"""`progress(n, train)`: `n` more instances have ended."""


class Loop:
    """One run over some sources.

    Args:
      scheduler: The state machine.
      executor: Runs the dispatches; None if only control runs.
      sources: What is pumped; training and inference sources may run at the same time.
      progress: Told of instances that have ended.
      on_dispatch: Told of every dispatch, in order of issue.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor | None,
        sources: Sequence[Source],
        progress: Progress | None = None,
        on_dispatch: Callable[[Dispatch], None] | None = None,
    ):
        self.scheduler, self.executor, self.sources = scheduler, executor, list(sources)
        self._progress, self._on_dispatch = progress, on_dispatch

    def issue(self, worker: int, before_changes: Callable[[Dispatch], None] | None = None) -> Dispatch | None:
        """Takes the worker's next action and runs it; `before_changes` is called between kernels and parameter changes."""
        dispatch = self.scheduler.next(worker)
        if dispatch is None:
            return None
        if self._on_dispatch is not None:
            self._on_dispatch(dispatch)
        if self.executor is not None:
            try:
                self.executor.run(dispatch, self.scheduler)
                if before_changes is not None:
                    before_changes(dispatch)
                self.executor.change(dispatch)
            except Exception as error:
                error.add_note(describe(dispatch, self.scheduler))
                raise
        return dispatch

    def done(self, dispatch: Dispatch) -> None:
        """Lets its messages travel on, with what was read from their payloads, and admits what there is room for."""
        if dispatch.reads and self.executor is not None:
            dispatch.choices = self.executor.choices(dispatch)
        self.scheduler.done(dispatch)
        self.settle()

    def settle(self) -> bool:
        """Reports instances that have ended and admits new ones; says whether any was admitted."""
        for instance, train in self.scheduler.finished:
            for source in self.sources:
                if source.train == train:
                    source.ended(instance)
            if self._progress is not None:
                self._progress(1, train)
        admitted = 0
        for source in self.sources:
            if not source.exhausted:
                admitted += source.admit()
        return admitted > 0

    def finished(self) -> bool:
        """Whether everything is done; call it when no worker has an action.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
          LimitError: If that is for want of memory.
        """
        if self.settle() or self.scheduler.can_move:
            return False
        if not all(source.exhausted for source in self.sources):
            raise self.scheduler.diagnose()
        self.scheduler.end_of_data()
        if self.scheduler.can_move:
            return False
        if not self.scheduler.idle:
            raise self.scheduler.diagnose()
        return True


def add_to_trace(trace: Trace, dispatch: Dispatch, start_ns: int, changes_ns: int, end_ns: int) -> None:
    """Adds a dispatch to a trace: a slice for its stage, and from `changes_ns` on one for the parameter changes that follow."""
    stage = dispatch.stage
    if stage is not None:
        kind = "transfer" if stage.kind == "transfer" else dispatch.direction
        instances = tuple(dict.fromkeys(dispatch.states[:, INSTANCE].tolist()))
        trace.add(dispatch.worker, stage.name, kind, start_ns, changes_ns, instances)
    if dispatch.changes:
        names = "+".join(dict.fromkeys(change.node for change in dispatch.changes if isinstance(change, Update)))
        trace.add(dispatch.worker, names or "replicas", "update", changes_ns if stage is not None else start_ns, end_ns)


def describe(dispatch: Dispatch, scheduler: Scheduler) -> str:
    """Where an error happened: node, direction, states, and the story of the first message."""
    if dispatch.stage is None or not len(dispatch.states):
        return f"ampjax: in {dispatch!r}"
    state = State(dispatch.states[:1], scheduler.plan.layout, dispatch.stage.ports[0].type.fields)
    story: list[Any] = scheduler.story(int(dispatch.states[0, 0]))[-6:]
    return "\n".join(
        [f"ampjax: in {dispatch!r}; first message {state!r}; its story:", *(f"  {line}" for line in story)]
    )
