"""A dry run: control alone, without numbers, to see how large dispatches are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.policy import largest
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.statistics import Statistics
from ampjax.sched.scheduler import Scheduler

DECIDED_TOGETHER = 256
"""Dispatches that are decided together."""


def dry_run(
    plan: Plan,
    batches: Sequence[Mapping[str, Messages]],
    ids: Sequence[int] | np.ndarray,
    purpose: str = "train",
    max_dispatch_size: int = 1 << 30,
) -> Statistics:
    """Runs some instances that are all in flight at once, with unlimited arenas, the largest dispatch first.

    Args:
      plan: The plan.
      batches: The instances' messages, as `Instances.gather` gives them; several batches are pumped one after the other.
      ids: The instances' numbers.
      purpose: What they are run for, one of `passes.PURPOSES`.
      max_dispatch_size: Rows in one dispatch at most.

    Returns:
      What the scheduler has counted.

    Raises:
      MessageError, DeadlockError: As `Scheduler.pump` and `Scheduler.done` do.
    """
    settings = SchedulerSettings(
        max_active_keys=len(ids), max_dispatch_size=max_dispatch_size, policy=largest, history=1
    )
    scheduler = Scheduler(plan, settings)
    handles = scheduler.open(
        np.asarray(ids),
        purpose,
        grows=len(batches) > 1,
    )
    for batch in batches:
        scheduler.pump(handles, batch)
        _drain(scheduler)
    scheduler.close(handles)
    return scheduler.counts.read()


def _drain(scheduler: Scheduler) -> None:
    """Does all that can be done."""
    moved = True
    while moved:
        moved = False
        for worker in range(scheduler.plan.workers):
            while dispatches := scheduler.ahead(worker, DECIDED_TOGETHER):
                moved = True
                if scheduler.contents.reads(dispatches[-1]):
                    scheduler.done(dispatches[-1])
