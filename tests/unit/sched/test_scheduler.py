"""The scheduler by itself: when Numba is imported, that loops do the same uncompiled, what it gives back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import graphs
from support.control import plan_for
from support.frozen import FROZEN_POLICIES, decided
from support.models import model
from support.schedules import Scheduled, admit, at_once, first_difference, in_virtual_time
from support.uncompiled import COMPILED, digests

from ampjax.ir.instances import InstanceList, Messages
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.choosing.policy_numbers import NUMBERS
from ampjax.sched.decisions.parameter_changes import Average
from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.scheduler import Scheduler

TESTS = Path(__file__).parents[2]


def test_which_policies_are_compiled():
    assert {*FROZEN_POLICIES} <= {*COMPILED}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_compiled_policy_decides_as_its_function_does(name):
    """A policy without a number is called with views of the queues, as a user's is."""
    policy = POLICIES[name]
    compiled = []
    for one in (policy, lambda queues, now: policy(queues, now)):
        for size in (2, 64):
            options = {
                "drive": in_virtual_time,
                "workers": 2,
                "max_active_keys": 5,
                "max_dispatch_size": size,
            }
            compiled.append(decided(Scheduled, "trees", policy=one, **options))
    assert compiled[:2] == compiled[2:]


@pytest.mark.nightly
@pytest.mark.slow
def test_loops_do_the_same_uncompiled():
    """In a process of its own, since Numba reads the variable when it is imported; which is not before a scheduler is made."""
    path = os.pathsep.join(
        [
            str(TESTS),
            str(TESTS.parent),
        ]
    )
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "support.uncompiled"]
    told = json.loads(
        subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert told == {"digests": digests(), "numba was imported early": False}


def test_replicas_are_averaged_at_the_end_of_an_epoch():
    graph, data = model("sequences in replicas")
    plan = make_plan(graph, assign(graph, 1))
    one = Scheduled(plan, SchedulerSettings(), data)
    list(at_once(one, len(data)))
    one.scheduler.rounds.end_of_epoch()
    d = one.scheduler.next(0)
    one.scheduler.done(d)
    assert one.scheduler.idle and d.direction == "update" and d.changes
    assert all(isinstance(change, Average) for change in d.changes)


def test_dispatches_are_capped():
    """A cap is only ever raised, and forgotten when arenas get other sizes."""
    settings = SchedulerSettings(max_active_keys=9, max_dispatch_size=5)
    one = Scheduled(
        plan_for(graphs.chain(2)),
        settings,
        InstanceList(graphs.chain_data(9)),
    )
    found = []
    s = one.scheduler
    for rows in (3, 2, 9, None):
        if rows is None:
            s.resize(settings)
        else:
            s.tables.cap(0, "forward", rows)
        told = [told for told in at_once(one, 9) if told[2:4] == (0, "forward")]
        found.append(
            (
                s.tables.cap_of(
                    0,
                    "forward",
                ),
                max(n_rows for *_, n_rows, _ in told),
            )
        )
    assert found == [(3, 3), (3, 3), (9, 5), (0, 5)]


def test_a_pass_that_may_not_update_counts_all_the_same():
    graph = graphs.chain(1)
    scheduler = Scheduler(plan_for(graph), SchedulerSettings(max_active_keys=9))
    data = InstanceList(graphs.chain_data(4))
    changes = []
    for may_update in (False, True):
        handles = scheduler.open(np.arange(2), "train", may_update)
        scheduler.pump(handles, data.gather(np.arange(2)))
        scheduler.close(handles)
        while (d := scheduler.next(0)) is not None:
            scheduler.done(d)
            changes += d.changes
        scheduler.admission.take_ended()
        if not may_update:
            scheduler.rounds.flush()
            assert (
                not changes
                and scheduler.updates.versions == {"f0": 0}
                and scheduler.next(0) is None
            )
    assert [(change.node, change.count) for change in changes] == [("f0", 4)]


def test_who_waits_for_what():
    """Workers, as drivers ask for them: who can move, who has got something, what holds one up."""
    graph, data = model("sequences in replicas")
    plan = make_plan(graph, assign(graph, 2), (0, 1))
    side = Scheduled(plan, SchedulerSettings(max_active_keys=2, max_dispatch_size=2), data)
    s = side.scheduler
    held = set()
    assert not s.can_move()
    assert s.idle
    assert s.queues.why_blocked(0) is None
    assert s.queues.take_woken() == set()
    side.admit(np.arange(2))
    assert s.queues.take_woken()
    while s.can_move():
        for worker in range(2):
            can = s.can_move(worker)
            waits = s.queues.waiting_for(worker)
            assert s.queues.lengths(worker) == (
                [queue.number for queue in waits],
                [queue.items for queue in waits],
            )
            d = s.next(worker)
            assert can == bool(waits) == (d is not None)
            held.add(s.queues.why_blocked(worker))
            if d is not None:
                s.done(d)
    assert held >= {None, "join"}
    assert (
        s.can_move(),
        s.idle,
        s.queues.why_blocked(0),
    ) == (False, True, None)
    assert len(s.admission.take_ended()) == 2


def test_flush_takes_what_has_accumulated():
    settings = SchedulerSettings(
        intervals={"f0": 4, "f1": 5}, max_active_keys=7, max_dispatch_size=1
    )
    one = Scheduled(
        plan_for(graphs.chain(2)),
        settings,
        InstanceList(graphs.chain_data(7)),
    )
    list(at_once(one, 7))
    one.scheduler.rounds.flush()
    d = one.scheduler.next(0)
    one.scheduler.done(d)
    assert [(change.node, change.count) for change in d.changes] == [("f0", 3), ("f1", 2)]


def shy(queues, now):
    """A user's policy that likes to wait."""
    return None if now % 4 == 0 else queues[-1]


@pytest.mark.first_case
@pytest.mark.parametrize("policy", [*POLICIES.values(), shy])
def test_decided_ahead_or_one_by_one(policy):
    """Several dispatches that are done as they are decided are those that come one by one; it stops where an instance ends."""
    graph, data = model("tagger")
    plan = make_plan(graph, assign(graph, 1))
    intervals = dict.fromkeys(graph.parameterised, 7)
    settings = SchedulerSettings(
        intervals=intervals, max_active_keys=3, max_dispatch_size=4, policy=policy
    )
    expected = list(
        at_once(
            Scheduled(plan, settings, data),
            len(data),
        )
    )
    one = Scheduled(plan, settings, data)
    s = one.scheduler
    left = np.arange(len(data))
    told = []
    most = 0
    while len(left) or not s.idle:
        left, _ = admit(one, left)
        found = s.ahead(0, 16)
        most = max(most, len(found))
        told += [one.tell(d) for d in found]
    assert most == (16 if policy in NUMBERS else 1)
    assert first_difference(expected, told) is None


@pytest.mark.parametrize("name", ["pondering", "experts"])
def test_ahead_stops_where_payloads_are_read(name):
    graph, data = model(name)
    plan = make_plan(graph, assign(graph, 1))
    settings = SchedulerSettings(max_active_keys=2, max_dispatch_size=4)
    one = Scheduled(plan, settings, data)
    told = []
    left = np.arange(len(data))
    s = one.scheduler
    while len(left) or not s.idle:
        left, _ = admit(one, left)
        found = s.ahead(0, 16)
        assert not any(s.contents.reads(d) for d in found[:-1])
        told += [one.tell(d) for d in found]
        if s.contents.reads(found[-1]):
            s.done(found[-1])
    assert first_difference(list(at_once(Scheduled(plan, settings, data), len(data))), told) is None


def test_a_dispatch_is_data():
    graph, data = model("trees")
    plan = make_plan(graph, assign(graph, 1))
    one = Scheduled(plan, SchedulerSettings(), data)
    one.admit(np.arange(2))
    d = one.scheduler.next(0)
    stage = plan.stages[d.stage]
    assert len(d.rows) == d.n_sections == len(stage.ports) + len(stage.outputs)
    assert [len(rows) for rows in d.rows] == [d.n_rows] * d.n_sections
    assert len(d.messages) == len(d.lines) == d.n_messages
    assert set(d.ids.tolist()) == {0, 1}
    assert d.pack.dtype == np.int32
    assert all(isinstance(x, (int, str, tuple, np.ndarray, type(None))) for x in d)


def test_instances_are_admitted_again_and_again_in_the_same_tables():
    """Programs are known once; what tables give out is given back."""
    graph, data = model("tagger")
    plan = make_plan(graph, assign(graph, 1))
    one = Scheduled(plan, SchedulerSettings(max_active_keys=3, max_dispatch_size=4), data)
    lengths = []
    tops = []
    for _ in range(4):
        list(at_once(one, len(data)))
        lengths.append([table.shape for table in one.scheduler.tables.t])
        tops.append(one.scheduler.tables.t.clock[[c.LIVE_TOP, c.ROWS_TOP]].tolist())
    assert tops[0] == tops[3] and lengths[1] == lengths[3]


def test_an_instance_for_which_nothing_is_pumped_ends_at_once():
    class Empty(InstanceList):
        def gather(self, ids):
            return {
                "x": Messages(
                    np.zeros(0, np.float32),
                    np.zeros(0, np.int64),
                )
            }

    one = Scheduled(
        plan_for(graphs.chain(1)),
        SchedulerSettings(),
        Empty([{}, {}]),
    )
    one.admit(np.arange(2))
    assert one.scheduler.admission.take_ended() == [(0, True), (1, True)]
    assert one.scheduler.idle and one.scheduler.next(0) is None
