"""Recordings: what they hold makes the same dispatches again."""

import asyncio
import random

import pytest
from support.models import model
from support.recorded import follow, in_turn, on_the_clock, record
from support.schedules import Scheduled, first_difference

from ampjax.errors import ReplayError
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.policy import balanced, largest
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings


def side_of(scheduler, name, workers, policy=balanced, **options):
    graph, data = model(name)
    plan = make_plan(
        graph,
        assign(graph, workers),
        tuple(range(workers)),
    )
    intervals = dict.fromkeys(graph.parameterised, 7)
    options = {"max_active_keys": 4, "max_dispatch_size": 4, **options}
    return scheduler(
        plan, SchedulerSettings(intervals=intervals, policy=policy, **options), data
    ), len(data)


def again(path, *args, **options):
    return asyncio.run(follow(path, *side_of(*args, **options)))


class Moody:
    """A policy that nobody can foresee."""

    def __call__(self, queues, now):
        return random.choice([None, *queues])


@pytest.mark.parametrize(
    ("name", "workers", "drive", "policy", "options"),
    [
        ("sequences in replicas", 2, in_turn, balanced, {}),
        ("trees", 1, on_the_clock, balanced, {}),
        ("trees", 1, on_the_clock, balanced, {"flush_every": 4}),
        ("questions, edge by edge", 1, on_the_clock, Moody(), {}),
        ("trees in replicas", 3, in_turn, Moody(), {"min_admission": 2}),
    ],
)
def test_the_same_dispatches(tmp_path, name, workers, drive, policy, options):
    """The policy is not asked again: the file has its choices. Dispatches that were decided ahead are decided one by one."""
    path = tmp_path / "run.trace"
    told = record(
        path,
        *side_of(Scheduled, name, workers, policy, **options),
        drive,
        workers,
    )
    assert first_difference(told, again(path, Scheduled, name, workers, largest, **options)) is None
    assert len(told) > 50


def test_a_run_that_departs(tmp_path):
    """The first decision that differs is named."""
    path = tmp_path / "run.trace"
    record(path, *side_of(Scheduled, "trees", 1), on_the_clock, 1)
    with pytest.raises(
        ReplayError, match=r"decision \d+: expected .*message\(s\) from instance \d+ on, .*, got "
    ):
        again(path, Scheduled, "trees", 1, max_dispatch_size=3)
    with pytest.raises(
        ReplayError,
        match=r"decision 2: expected 0 instance\(s\) ending and 4 admitted, got 0 instance\(s\) ending and 3 admitted",
    ):
        again(path, Scheduled, "trees", 1, max_active_keys=3)
