"""What executors were asked to issue, kept and issued again: kernels without a scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from ampjax.drivers.issue_queue import IssueQueue
from ampjax.engine.executor import Executor
from ampjax.engine.kernels.launch import Launch
from ampjax.sched.decisions.dispatch import Dispatch


class Call(NamedTuple):
    """Launches that an executor was asked to carry out together, and the dispatches that they were made of."""

    executor: Executor
    launches: Sequence[Launch]
    dispatches: Sequence[Dispatch]


@contextmanager
def keeping(calls: list[Call]) -> Iterator[None]:
    """Adds what executors are asked to carry out meanwhile to a list, call by call."""
    run = IssueQueue.run

    def keep(
        self: IssueQueue,
        executor: Executor,
        dispatches: Sequence[Dispatch],
        launches: Sequence[Launch],
    ) -> None:
        calls.append(Call(executor, launches, dispatches))
        run(self, executor, dispatches, launches)

    with mock.patch.object(IssueQueue, "run", keep):
        yield


def repeat(calls: Sequence[Call]) -> None:
    """Issues the same again, and waits until it is done."""
    for executor, launches, _ in calls:
        executor.issue(launches)
    calls[0].executor.fences.wait()
