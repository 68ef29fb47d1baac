"""Diagnoses: laws that are counted anew, errors that say who waits for what, in flight and before anything is admitted."""

import re

import numpy as np
import pytest
from support import graphs
from support.control import columns, plan_for
from support.hangs import HANGS
from support.models import model
from support.random_graphs.random_case import random_case
from support.schedules import Scheduled, admit, at_once, in_virtual_time

import ampjax.graphs as ag
from ampjax.errors import DeadlockError, InvariantError, LimitError
from ampjax.ir.instances import InstanceList
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.deadlock import report, standstill, waiting
from ampjax.sched.diagnose.invariants import check
from ampjax.sched.diagnose.never_ends import require_ends
from ampjax.sched.diagnose.story import describe, story
from ampjax.sched.layout import columns as c
from ampjax.sched.scheduler import Scheduler
from ampjax.unfold.incomplete import find_waiting
from ampjax.unfold.unfolder import Unfolder

# Laws


@pytest.mark.parametrize(
    "name", ["sequences in replicas", "trees", "questions, edge by edge", "pondering", "experts"]
)
def test_laws_hold_after_every_event(name):
    graph, data = model(name)
    plan = make_plan(graph, assign(graph, 2), (0, 1))
    intervals = dict.fromkeys(graph.parameterised, 7)
    settings = SchedulerSettings(intervals=intervals, max_active_keys=3, max_dispatch_size=16)
    n = 2
    for train in (True, False):
        assert list(
            in_virtual_time(
                Scheduled(plan, settings, data, train, check=True),
                n,
                2,
            )
        )


@pytest.mark.parametrize("seed", [1, 11, 21])
def test_laws_hold_on_random_graphs(seed):
    case = random_case(seed, n_instances=3)
    plan = make_plan(case.graph, assign(case.graph, 1))
    policy = list(POLICIES.values())[seed % len(POLICIES)]
    settings = SchedulerSettings(
        max_active_keys=2, max_dispatch_size=8, policy=policy, flush_every=2
    )
    assert list(
        at_once(
            Scheduled(plan, settings, case.instances, check=True),
            3,
        )
    )


def half_way(n_dispatches=9):
    """Trees of which some messages wait, some are in queues, one dispatch is under way, and some are owed gradients."""
    graph, data = model("trees")
    plan = make_plan(graph, assign(graph, 1))
    intervals = dict.fromkeys(graph.parameterised, 1000)
    budgets = dict.fromkeys(graph.parameterised, 1)
    settings = SchedulerSettings(
        intervals=intervals, budgets=budgets, max_active_keys=4, max_dispatch_size=4, history=7
    )
    side = Scheduled(plan, settings, data)
    admit(side, np.arange(4))
    for k in range(n_dispatches):
        d = side.scheduler.next(0)
        if k < n_dispatches - 1:
            side.scheduler.done(d)
    check(side.scheduler.snapshot())
    return side.scheduler


def spoil_queue(t):
    t.queues[t.active_queues(0)[0], c.ITEM_ROWS] += 1


def spoil_list(t):
    """A queue that goes in a circle."""
    q = t.queues[t.active_queues(0)]
    head = q[q[:, c.ITEMS].argmax(), c.HEAD]
    t.live[t.live[head, c.NEXT], c.NEXT] = head


def spoil_inputs(t):
    v = np.flatnonzero(t.live[:, c.N_MISSING] > 0)[0]
    t.live[v, c.N_MISSING] += 1


def spoil_gradients(t):
    v = np.flatnonzero((t.live[:, c.N_OWED] > 0) & (t.live[:, c.N_MISSING] == 0))[0]
    t.live[v, c.N_OWED] += 1


def spoil_alive(t):
    t.instances[t.instances[:, c.N_ALIVE] > 0, c.N_ALIVE] += 2


def spoil_under_way(t):
    t.queues[t.queues[:, c.UNDER_WAY] > 0, c.UNDER_WAY] = 0


def spoil_slots(t):
    arena = np.flatnonzero(t.n_free)[0]
    t.free[arena, c.FREE] = t.free[arena, c.FREE + 1]


def spoil_throttle(t):
    t.clock[c.N_TRAIN] += 1


def spoil_interval(t):
    t.nodes[0, c.COUNT] = 1000


def spoil_budget(t):
    """Nobody notes that updates were made meanwhile."""
    t.nodes[t.nodes[:, c.AWAITED] > 0, c.VERSION] += 3


def spoil_awaited(t):
    t.nodes[0, c.AWAITED + 1] += 1


SPOILT = {
    spoil_queue: r"\w+ queue of `.*`: expected messages, rows, all of this stage, workers: \((\d+), \d+, True, \[0\]\), got \(\1, \d+, True, \[0\]\)\.",
    spoil_list: r"\w+ queue of `.*`: expected messages, rows, all of this stage, workers: \(2, 2, True, \[0\]\), got \((?!2)\d+, (?!2)\d+, True, \[0\]\)\.",
    spoil_inputs: r"`.*` with State\(instance=\d, .*\): expected \d inputs that are missing, got \d\.",
    spoil_gradients: r".* with State\(instance=\d.*\): expected \d gradients that are owed, got \d\.",
    spoil_alive: r"instance \d: expected \d+ messages that have not ended, at least one, or one more, got \d+\.",
    spoil_under_way: r"`.*`: expected \d+ messages under way, got 0\.",
    spoil_slots: r"arena \d: expected each of \d+ slots free or one row's, got \d+ different ones, \d+ in all\.",
    spoil_throttle: r"throttle: expected \(4, 0\) training and inference instances in flight, at most 4 of each, got \(5, 0\)\.",
    spoil_interval: r"node `.*`: expected fewer than 1000 gradient rows, its interval, got 1000\.",
    spoil_budget: r"node `.*`: expected messages at most 1 versions old, got 3\.",
    spoil_awaited: r"staleness budgets: expected messages that owe gradients, of `.*`, by version: \[\d+, 0\], got \[\d+, 1\]\.",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_counts_that_are_off_are_found(spoil):
    s = half_way().snapshot()
    spoil(s.tables)
    with pytest.raises(InvariantError) as error:
        check(s)
    first, *lines = str(error.value).splitlines()
    assert re.fullmatch(SPOILT[spoil] + r" This is a mistake in ampjax: please report it\.", first)
    if spoil in (spoil_inputs, spoil_gradients):
        instance = int(re.search(r"instance=(\d)", first)[1])
        assert lines[0] == "  Its instance's story:"
        assert [line.strip() for line in lines[1:]] == story(s, instance, {})[-6:] != []


# Before anything is admitted

CASES = {name: case for name, case in HANGS.items() if case[1] is not None}


def refused(graph, data, fuse=False, ids=None):
    plan = plan_for(graph, fuse=fuse)
    unfolder = Unfolder(plan_for(graph, fuse=fuse))
    unfolding = unfolder.unfold(
        [columns(graph, data)],
        np.arange(len(data)) if ids is None else ids,
    )
    with pytest.raises(DeadlockError) as error:
        require_ends(plan, unfolding, unfolder.programs(unfolding))
    space = unfolding.workspace
    return str(error.value), [str(one) for one in find_waiting(plan, space.joins, space.groups)]


@pytest.mark.parametrize(
    ("graph", "data", "settings", "text"),
    CASES.values(),
    ids=CASES,
)
def test_who_would_wait_for_ever(graph, data, settings, text):
    """The list of who waits for what and from where it should come is that of a scheduler that stands still; what has run is what would run."""
    told, who = refused(graph, data, settings.get("fuse", False))
    then = text.splitlines()
    now = told.splitlines()
    assert now[0] == re.sub(
        r"^1 instance\(s\) in flight: expected messages that can move, got none: ",
        f"before instance {len(data) - 1} is admitted: expected messages that all find their partners, got some that wait for ever: ",
        then[0],
    )
    assert "; ".join(who) in now[0]
    fed = []
    for line in then:
        if "is fed by" in line or "do not meet" in line:
            fed.append(line.split("; it ")[0])
    assert [
        line.split("; it ")[0] for line in now if "is fed by" in line or "do not meet" in line
    ] == fed
    then_runs = "it last ran" in text
    now_runs = "time(s) for it" in told
    assert now_runs == then_runs and ("it never runs for it" in told) == (
        "it has not run for it lately" in text
    )


def test_what_would_run_is_told():
    told, _ = refused(
        graphs.grouping(),
        [
            {
                **graphs.grouping_instance(2),
                "size": ag.messages([0.0], n=3),
            }
        ],
        True,
        [7],
    )
    assert told.splitlines()[2:] == [
        "  port row of `back` is fed by PPT `row`: State(instance=7, i=0) and 1 more from it waits; it runs 2 time(s) for it, at last with State(instance=7, i=1)",
        "  instance 7 comes to:",
        "    `row`, State(instance=7, i=0)",
        "    `row`, State(instance=7, i=1)",
    ]


def test_many_instances_that_would_wait():
    good = {
        "x": np.float32(1),
        "label": np.float32(0),
    }
    bad = {"x": np.float32(1)}
    told, who = refused(
        graphs.chain(1),
        [good, *[bad] * 11],
    )
    assert told.startswith(
        "before instances 1, 2, 3, 4, 5, 6, 7, 8 and 3 more are admitted: expected "
    )
    assert "; and 3 more. Pump" in told and told.count("is fed by") == 3 and len(who) == 11


def test_who_ends_is_let_in():
    graph, data = model("tagger")
    plan = make_plan(graph, assign(graph, 1))
    unfolder = Unfolder(plan)
    unfolding = unfolder.unfold(
        [data.gather(np.arange(3))],
        np.arange(3),
    )
    require_ends(plan, unfolding, unfolder.end(unfolding))


# In flight


def ragged(graph):
    result = []
    for name, node in graph.pumps.items():
        if node.op.type.ragged:
            result.append(name)
    return result


@pytest.mark.parametrize("name", CASES)
def test_who_is_still_pumped_to_and_waits(name):
    """Where a controller pumps, or a payload decides, nobody knows beforehand who waits for ever. The list is that of a scheduler that stands still."""
    graph, data, options, text = CASES[name]
    plan = plan_for(graph, fuse=options.get("fuse", False))
    s = Scheduler(
        plan,
        SchedulerSettings(**{k: v for k, v in options.items() if k != "fuse"}),
        check=True,
    )
    slots = s.open(np.arange(len(data)), grows=True)
    s.pump(slots, columns(graph, data))
    s.close(slots)
    while (d := s.next(0)) is not None:
        s.done(d)
    error = standstill(s.snapshot())
    assert isinstance(error, DeadlockError)
    lines = str(error).splitlines()
    assert lines[0] == text.splitlines()[0]
    then, now = (
        [line.split("; it ")[0] for line in told] for told in (text.splitlines()[1:], lines[1:-1])
    )
    assert then == now
    assert report(s.snapshot()) == [line[2:] for line in lines[1:]]
    assert re.fullmatch(
        r"  of instance \d's \d+ invocations and pumped messages are (\d ended, )?\d+ owed gradients",
        lines[-1],
    )


def test_nobody_is_admitted_who_would_never_end():
    """Not even those beside it: the error comes before anything has run."""
    graph = graphs.chain(1)
    good = {
        "x": np.float32(1),
        "label": np.float32(0),
    }
    bad = {"x": np.float32(1)}
    s = Scheduler(plan_for(graph), SchedulerSettings())
    with pytest.raises(DeadlockError, match=r"^before instance 1 is admitted: "):
        s.admission.foresee(
            np.arange(2),
            columns(graph, [good, bad]),
        )
    slots = s.open(np.arange(2))
    with pytest.raises(DeadlockError, match=r"^before instance 1 is admitted: "):
        s.pump(slots, columns(graph, [good, bad]))
    assert s.next(0) is None
    assert s.counts.read().messages == 0
    s.abandon()
    check(s.snapshot())
    slots = s.open(np.arange(1))
    s.pump(slots, columns(graph, [good]))
    s.close(slots)
    while (d := s.next(0)) is not None:
        s.done(d)
    assert s.admission.take_ended() == [(0, True)] and s.idle


def test_where_what_is_missing_is():
    """Steps of a chain that wait for one another, down to what is in a queue and what is under way."""
    graph = graphs.chain(3)
    side = Scheduled(
        plan_for(graph),
        SchedulerSettings(max_dispatch_size=1),
        InstanceList(graphs.chain_data(2)),
    )
    admit(side, np.arange(2))
    s = side.scheduler
    first = s.next(0)
    told = report(s.snapshot())
    assert told[:2] == [
        "what `loss` lacks comes from `f2` with State(instance=0), which lacks what comes from `f1` with State(instance=0), which lacks what comes from `f0` with State(instance=0), which is under way",
        "what `loss` lacks comes from `f2` with State(instance=1), which lacks what comes from `f1` with State(instance=1), which lacks what comes from `f0` with State(instance=1), which waits in its queue",
    ]
    assert told[3] == "queues: forward of `f0` 1"
    s.done(first)
    assert "`f1` with State(instance=0), which waits in its queue" in report(s.snapshot())[0]
    assert report(s.snapshot())[-1] == (
        "of instance 0's 6 invocations and pumped messages are 3 owed gradients, 1 in queues, forward, 2 without all inputs"
    )


def test_groups_that_lack_members_or_their_opener():
    graph = graphs.grouping()
    data = InstanceList([graphs.grouping_instance(2)] * 2, ragged(graph))
    side = Scheduled(plan_for(graph), SchedulerSettings(max_dispatch_size=1), data)
    admit(side, np.arange(2))
    assert waiting(side.scheduler.snapshot())[0].startswith(
        "group `back` with State(instance=0, n=2) waits for 2 more of 2"
    )
    side.scheduler.done(side.scheduler.next(0))
    assert "group `back` with State(instance=0, n=2) waits for 1 more of 2 member(s)" in waiting(
        side.scheduler.snapshot()
    )


def test_a_story_ends_where_it_is_asked_to_and_goes_back_as_far_as_the_log():
    s = half_way().snapshot()
    lines = story(s, 0, {})
    assert len(lines) >= 3
    assert lines == story(s, 0, {}, until=9)
    assert story(s, 0, {}, until=4) == [line for line in lines if int(line.split()[1][:-1]) <= 4]
    assert [d.number for d in s.log] == list(range(3, 10))


def test_stories_of_programs_that_have_been_given_up():
    """The dispatches are still told of; what was in them is not known any more, or another's by now."""
    graph, data = model("trees")
    plan = make_plan(graph, assign(graph, 1))
    settings = SchedulerSettings(max_active_keys=1, max_dispatch_size=4, program_bytes=1)
    side = Scheduled(plan, settings, data, wave=0)
    list(at_once(side, 3))
    s = side.scheduler.snapshot()
    told = [story(s, i, {}) for i in range(3)]
    assert all(len(lines) > 4 for lines in told)
    assert all(
        line.endswith(f"State(instance={i})") or " more" in line for i in (0, 1) for line in told[i]
    )
    assert (
        story(
            s,
            0,
            {plan.layout.fields[0]: 0},
        )
        == []
    )
    assert re.search(
        r"; first message State\(instance=0\); its story:\n  dispatch 1: forward",
        describe(s, next(iter(s.log))),
    )


@pytest.mark.parametrize(
    ("n", "advice"), [(2, "lower `max_active_keys`"), (1, "split the instance")]
)
def test_when_nothing_fits_it_is_said_who_needs_what(n, advice):
    graph = graphs.chain(3)
    limits = {(0, (), "float32"): 3}
    side = Scheduled(
        plan_for(graph),
        SchedulerSettings(limits=limits),
        InstanceList(graphs.chain_data(n)),
    )
    admit(side, np.arange(n))
    s = side.scheduler
    while (d := s.next(0)) is not None:
        s.done(d)
    assert s.queues.why_blocked(0) == "memory"
    error = standstill(s.snapshot())
    assert isinstance(error, LimitError)
    assert re.fullmatch(
        r"instance 0, stage `f[12]`: expected room for its rows of shape \(\) float32, got 2 of at most 2 rows in use by "
        rf"{n} instance\(s\) in flight\. Raise `memory_limit`, or {advice}\.",
        str(error),
    )


def test_an_instance_that_is_still_pumped_to():
    s = Scheduler(
        plan_for(graphs.chain(1)),
        SchedulerSettings(),
        check=True,
    )
    s.open(np.array([7]), grows=True)
    text = HANGS["an instance that is still pumped to"][-1]
    assert str(standstill(s.snapshot())) == text
