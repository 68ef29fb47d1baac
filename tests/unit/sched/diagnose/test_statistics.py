"""Statistics are what was decided, counted; stories and descriptions tell it."""

from collections import Counter

import numpy as np
import pytest
from support import graphs
from support.control import plan_for
from support.models import MODELS, model
from support.schedules import Scheduled, at_once, in_virtual_time, planned, settings_for

from ampjax.ir.instances import InstanceList
from ampjax.sched.decisions.parameter_changes import ReplicaSync
from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.story import describe, story


def counted(side, told, plan):
    """Compares statistics with what was decided."""
    stats = side.scheduler.counts.read()
    names = [stage.name for stage in plan.stages]
    forth = Counter()
    dispatches = Counter()
    rows = Counter()
    updates = Counter()
    for _, _, number, direction, states, n_rows, changes in told:
        updates.update(change.split("'")[1] for change in changes if change.startswith("Update"))
        if number >= 0:
            forth[names[number], direction] += len(states)
            dispatches[names[number]] += 1
            rows[names[number]] += n_rows
    for name, own in stats.stages.items():
        directions = {
            "forward": own.forward,
            "backward": own.backward,
            "infer": own.infer,
        }
        assert directions == {direction: forth[name, direction] for direction in directions}
        assert own.dispatches == dispatches[name]
        assert own.rows == rows[name]
    assert {name: node.updates for name, node in stats.nodes.items() if node.updates} == updates
    for node in stats.nodes.values():
        assert (
            node.gradients == node.histogram.sum()
            and node.staleness_max * node.gradients >= node.staleness_sum
        )
    return stats


@pytest.mark.first_case
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_what_was_decided_is_counted(name, train):
    graph, data = model(name)
    policy = list(POLICIES.values())[list(MODELS).index(name) % len(POLICIES)]
    plan = planned(graph, 2)
    settings = settings_for(graph, max_active_keys=4, max_dispatch_size=5, policy=policy)
    side = Scheduled(plan, settings, data, train)
    told = list(in_virtual_time(side, len(data), 2))
    side.scheduler.admission.take_ended()
    stats = counted(side, told, plan)
    assert stats.instances == len(data) and 0 < stats.most_in_flight <= 4
    rows = sum(node.gradients for node in stats.nodes.values())
    held = sum(side.scheduler.updates.counts.values())
    counts = []
    for *_, changes in told:
        for change in changes:
            if "count=" in change:
                counts.append(int(change.split("count=")[1].split(",")[0]))
    assert rows == held + sum(counts)  # each is in an update, or waits for one


@pytest.mark.parametrize(
    "sync",
    [ReplicaSync("every_k", 2), ReplicaSync("message", 2)],
)
def test_replicas_that_meet(sync):
    graph, data = model("trees in replicas")
    plan = planned(graph, 2)
    settings = settings_for(graph, max_active_keys=4, max_dispatch_size=5, sync=sync)
    side = Scheduled(plan, settings, data)
    counted(
        side,
        list(in_virtual_time(side, len(data), 2)),
        plan,
    )


def test_a_story_has_every_dispatch_of_an_instance():
    graph, data = model("trees")
    plan = planned(graph)
    settings = settings_for(graph, max_active_keys=4, max_dispatch_size=5)
    side = Scheduled(plan, settings, data)
    told = list(at_once(side, len(data)))
    for instance in range(0, len(data), 3):
        own = []
        for d in told:
            if any(state[0] == instance for state in d[4]):
                own.append(d)
        lines = story(side.scheduler.snapshot(), instance, {})
        assert [line.split(":")[0] for line in lines] == [
            f"dispatch {number}" for number, *_ in own
        ]
        for line, (_, worker, stage, direction, states, *_) in zip(lines, own, strict=True):
            assert (
                f": {direction} `{plan.stages[stage].name}` on worker {worker}, State(instance={instance}"
                in line
            )
            n = sum(state[0] == instance for state in states)
            assert line.endswith(f" and {n - 1} more") == (n > 1)


def test_counting_starts_anew():
    """What has been counted before a reset is not in it."""
    graph, data = model("sequences")
    side = Scheduled(
        planned(graph), settings_for(graph, max_active_keys=4, max_dispatch_size=5), data
    )
    list(at_once(side, len(data)))
    s = side.scheduler
    s.admission.take_ended()
    s.counts.reset()
    assert s.counts.read().messages == s.counts.read().updates == s.counts.read().instances == 0
    s.rounds.flush()
    while (d := s.next(0)) is not None:
        s.done(d)
    assert (
        repr(s.counts.read()).startswith("0 instances, 0 messages, 0 dispatches, ")
        and s.counts.read().updates > 0
    )


def test_a_histogram_ends_with_all_that_is_staler():
    """All go forth before the first comes back, one by one with an update each: the last one's gradient is 139 updates old."""
    settings = SchedulerSettings(max_active_keys=140, max_dispatch_size=1, policy=forward_first)
    side = Scheduled(
        plan_for(graphs.chain(1)),
        settings,
        InstanceList(graphs.chain_data(140)),
    )
    side.admit(np.arange(140))
    while (d := side.scheduler.next(0)) is not None:
        side.scheduler.done(d)
    node = side.scheduler.counts.read().nodes["f0"]
    assert node.staleness_max == 139
    assert node.histogram[126:].tolist() == [1, 13]
    assert node.staleness_sum == sum(range(140))


def test_dispatches_of_changes_are_described():
    one = Scheduled(
        plan_for(graphs.chain(1)),
        SchedulerSettings(intervals={"f0": 9}),
        InstanceList(graphs.chain_data(3)),
    )
    list(at_once(one, 3))
    assert one.scheduler.updates.are_due_after(
        ["f0"], 9
    ) and not one.scheduler.updates.are_due_after(["f0"], 8)
    one.scheduler.rounds.flush()
    d = one.scheduler.next(0)
    assert (
        describe(one.scheduler.snapshot(), d)
        == f"in Dispatch 4 on worker 0: changes only, then {d.changes[0]}"
    )
    assert repr(d._replace(stage=3)).startswith(
        "Dispatch 4 on worker 0: update `stage 3` (0 messages, 0 rows), then Update("
    )


def forward_first(queues, now):
    return min(
        queues,
        key=lambda q: (q.backward, q.stage.number),
    )
