"""What the scheduler of integers says of a run: statistics, stories, who waits for what; beside what the one that routes messages says."""

import itertools

import numpy as np
import pytest
from support import graphs
from support.control import plan_for
from support.models import MODELS, model
from support.schedules import Integers, Routing, at_once, in_virtual_time, ways_meet
from support.words import (
    assert_same_description,
    assert_same_in_a_trace,
    assert_same_statistics,
    assert_same_stories,
    assert_same_waiting,
)

from ampjax.ir.instances import InstanceList
from ampjax.sched.affinity import assign
from ampjax.sched.plan import make_plan
from ampjax.sched.policy import POLICIES
from ampjax.sched.settings import SchedulerSettings
from ampjax.sched.updates import ReplicaSync
from ampjax.schedule.diagnose.story import describe
from ampjax.testing import random_case

NAMES = [name for name in MODELS if name != "tagger in replicas"]
EVERY = 23
"""Dispatches between two looks at a run."""


def side_by_side(graph, data, drive=at_once, workers=1, train=True, check=False, **options):
    """Runs both schedulers, and compares what they say while they run and afterwards; says how often the lists of who waits were the same to the letter.

    Where a payload decides, unfolding knows further ahead who waits for it; these lists are compared where nothing moves (`test_diagnose`).
    """
    plan = make_plan(graph, assign(graph, workers), tuple(range(workers)))
    settings = SchedulerSettings(intervals=dict.fromkeys(graph.parameterised, 7), **options)
    one, other = Routing(plan, settings, data, train), Integers(plan, settings, data, train, check=check)
    drives = (drive(side, len(data), workers) for side in (one, other))
    letters, grows = 0, any(node.kind == "RouteBy" for node in graph.nodes.values())
    for n, (told, same) in enumerate(itertools.zip_longest(*drives)):
        if told != same and ways_meet(plan):
            return letters, one.scheduler, other.scheduler
        assert told == same
        if n % EVERY == 0:
            assert_same_description(one.scheduler, other.scheduler)
            assert_same_in_a_trace(one.scheduler, other.scheduler, grows)
            letters += grows or assert_same_waiting(one.scheduler, other.scheduler)
    assert_same_statistics(one.scheduler, other.scheduler)
    assert_same_stories(one.scheduler, other.scheduler, range(0, len(data), 3))
    return letters, one.scheduler, other.scheduler


@pytest.mark.parametrize("name", NAMES)
def test_models(name):
    graph, data = model(name)
    policy = list(POLICIES.values())[NAMES.index(name) % len(POLICIES)]
    side_by_side(graph, data, in_virtual_time, 2, max_active_keys=4, max_dispatch_size=5, policy=policy)


def assert_random_graph_says_the_same(seed):
    """With laws checked after every event; the few cases whose messages come by two ways, in an order of their own, are left as soon as it shows."""
    case = random_case(seed, n_instances=4)
    workers, policy = 1 + seed % 2, list(POLICIES.values())[seed % 5]
    options = {"max_active_keys": 3, "max_dispatch_size": (1, 3, 5)[seed % 3], "policy": policy}
    drive = (at_once, in_virtual_time)[seed // 2 % 2]
    try:
        side_by_side(case.graph, case.instances, drive, workers, seed % 3 > 0, check=True, **options)
    except AssertionError as error:
        error.add_note(case.replay)
        raise


@pytest.mark.parametrize("seed", [1, 2, 5, 8, 21, 193])
def test_random_graphs(seed):
    assert_random_graph_says_the_same(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(600))
def test_many_random_graphs(seed):
    assert_random_graph_says_the_same(seed)


def test_who_waits_is_told_to_the_letter_where_keys_are_whole_states():
    graph, data = model("trees")
    letters, *_ = side_by_side(graph, data, max_active_keys=4, max_dispatch_size=5)
    assert letters > 3


@pytest.mark.parametrize("sync", [ReplicaSync("every_k", 2), ReplicaSync("message", 2)])
def test_replicas_that_meet(sync):
    graph, data = model("trees in replicas")
    side_by_side(graph, data, in_virtual_time, 2, max_active_keys=4, max_dispatch_size=5, sync=sync)


def test_stashed_weights_and_limits():
    graph, data = model("trees")
    side_by_side(graph, data, max_active_keys=4, stashed=tuple(graph.parameterised), limit=200)


def test_counting_starts_anew():
    """What has been counted before a reset is not in it; how long queues have been is, in both."""
    graph, data = model("sequences")
    _, *sides = side_by_side(graph, data, max_active_keys=4, max_dispatch_size=5)
    told = []
    for scheduler in sides:
        scheduler.reset_statistics()
        assert scheduler.stats.messages == scheduler.stats.updates == scheduler.stats.instances == 0
        scheduler.flush()
        while (d := scheduler.next(0)) is not None:
            scheduler.done(d)
        told.append(repr(scheduler.stats))
    assert told[0] == told[1] and "0 instances, 0 messages, 0 dispatches, " in told[0]
    assert sides[1].stats.updates > 0


def test_a_histogram_ends_with_all_that_is_staler():
    """All go forth before the first comes back, one by one with an update each: the last one's gradient is 139 updates old."""
    settings = SchedulerSettings(max_active_keys=140, max_dispatch_size=1, policy=forward_first)
    data = InstanceList(graphs.chain_data(140))
    sides = [side(plan_for(graphs.chain(1)), settings, data) for side in (Routing, Integers)]
    for side in sides:
        side.admit(np.arange(140))
        while (d := side.scheduler.next(0)) is not None:
            side.scheduler.done(d)
    assert_same_statistics(*(side.scheduler for side in sides))
    node = sides[1].scheduler.stats.nodes["f0"]
    assert node.staleness_max == 139 and node.histogram[126:].tolist() == [1, 13]


def test_dispatches_of_changes_are_described():
    graph = graphs.chain(1)
    told = []
    for side in (Routing, Integers):
        one = side(plan_for(graph), SchedulerSettings(intervals={"f0": 9}), InstanceList(graphs.chain_data(3)))
        list(at_once(one, 3))
        one.scheduler.flush()
        d = one.scheduler.next(0)
        told.append(one.scheduler.describe(d) if side is Routing else describe(one.scheduler.snapshot(), d))
        assert one.scheduler.updates.are_due_after(["f0"], 9) and not one.scheduler.updates.are_due_after(["f0"], 8)
    assert told[0] == told[1] == "in Dispatch 4 on worker 0: changes only, then " + str(d.changes[0])
    assert repr(d._replace(stage=3)).startswith(
        "Dispatch 4 on worker 0: update `stage 3` (0 messages, 0 rows), then Update("
    )


def forward_first(queues, now):
    return min(queues, key=lambda q: (q.backward, q.stage.number))
