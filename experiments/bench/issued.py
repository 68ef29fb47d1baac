"""What executors were asked to issue, kept and issued again: kernels without a scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from ampjax.engine.executor import Executor
from ampjax.engine.streaks import Streak
from ampjax.sched.scheduler import Scheduler

Call = tuple[Executor, Streak, Scheduler]
"""A call of `Executor.issue`."""


@contextmanager
def keeping(calls: list[Call]) -> Iterator[None]:
    """Adds what executors are asked to issue meanwhile to a list, call by call."""
    issue = Executor.issue

    def keep(self: Executor, streak: Streak, scheduler: Scheduler) -> None:
        calls.append((self, streak, scheduler))
        issue(self, streak, scheduler)

    with mock.patch.object(Executor, "issue", keep):
        yield


def repeat(calls: Sequence[Call]) -> None:
    """Issues the same dispatches again, and waits until they are done."""
    for executor, streak, scheduler in calls:
        executor.issue(streak, scheduler)
    calls[0][0].wait()
