"""Queues as user-written policies see them, and explanations of what is chosen."""

import numpy as np
import pytest
from support import graphs
from support.control import plan_for
from support.models import model
from support.schedules import Scheduled, admit, at_once, first_difference, in_virtual_time

from ampjax.ir.instances import InstanceList
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.choosing.explain_choice import explain
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.decisions.policy import Ranked, backward_first, balanced
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c


class Watching:
    """A policy that sees to it that it is shown what there is, and waits now and then."""

    def __init__(self):
        self.asked = 0
        self.side = None

    def __call__(self, queues, now):
        self.asked += 1
        lines = self.side.scheduler.tables.t.queues
        for q in queues:
            line = lines[3 * q.stage.number + DIRECTIONS.index(q.direction)]
            shown = q.items, q.rows, q.max_rows, q.longest, q.under_way
            assert shown == tuple(
                line[[c.ITEMS, c.ITEM_ROWS, c.MAX_ROWS, c.LONGEST, c.UNDER_WAY]].tolist()
            )
            assert q.items > 0
            assert q.ready == min(q.rows, q.max_rows)
            assert q.born <= now
            assert q.backward == (q.direction == "backward" or q.stage.kind.starts_backward)
        if now % 5 == 0:
            return None
        return min(
            queues,
            key=lambda q: (-q.rows, q.stage.number, q.direction),
        )


@pytest.mark.parametrize("drive", [at_once, in_virtual_time])
@pytest.mark.parametrize("name", ["trees in replicas", "questions, edge by edge"])
def test_a_policy_is_shown_what_there_is(name, drive):
    """All that may be read of queues, in the same order, whenever it is asked."""
    graph, data = model(name)
    plan = make_plan(graph, assign(graph, 2), (0, 1))
    policy = Watching()
    intervals = dict.fromkeys(graph.parameterised, 7)
    settings = SchedulerSettings(
        intervals=intervals, max_active_keys=4, max_dispatch_size=4, policy=policy
    )
    policy.side = Scheduled(plan, settings, data)
    assert len(list(drive(policy.side, len(data), 2))) > 50
    assert policy.asked > 50


@pytest.mark.parametrize("workers", [1, 2])
def test_a_users_ranks_are_asked_for_what_has_changed(workers):
    """The same schedule as if all ranks were compared each time, and fewer questions."""
    graph, data = model("tagger")
    plan = make_plan(
        graph,
        assign(graph, workers),
        tuple(range(workers)),
    )
    asked = []
    told = []
    for ranked in (True, False):
        n = []

        def rank(q, n=n):
            n.append(q.items)
            return q.stage.number % 3, -q.ready, not q.backward

        def lowest(queues, now, rank=rank):
            return min(queues, key=rank)

        intervals = dict.fromkeys(graph.parameterised, 7)
        policy = Ranked(rank) if ranked else lowest
        settings = SchedulerSettings(
            intervals=intervals, max_active_keys=4, max_dispatch_size=4, policy=policy
        )
        told.append(
            list(
                at_once(
                    Scheduled(plan, settings, data),
                    len(data),
                    workers,
                )
            )
        )
        asked.append(len(n))
    assert first_difference(*told) is None
    assert asked[0] < asked[1]


def test_a_policy_may_look_at_states():
    """One that wants the instance of the highest number first."""
    looked = []

    def latest(queues, now):
        states = [q.states for q in queues]
        looked.append([own.shape for own in states])
        assert all(len(own) == q.items for own, q in zip(states, queues, strict=True))
        return max(
            queues,
            key=lambda q: (
                q.states[:, 0].max(),
                q.stage.number,
            ),
        )

    settings = SchedulerSettings(max_active_keys=3, max_dispatch_size=1, policy=latest)
    side = Scheduled(
        plan_for(graphs.chain(2)),
        settings,
        InstanceList(graphs.chain_data(3)),
    )
    told = list(at_once(side, 3))
    assert [d[4][0][0] for d in told[:3]] == [0, 1, 2] and looked[0] == [
        (3, 2)
    ]  # it is the last of its queue


def test_views_hold_no_longer_than_their_queue():
    """A queue that was empty in the meantime is the last one again."""
    side = Scheduled(
        plan_for(graphs.chain(2)),
        SchedulerSettings(max_active_keys=9),
        InstanceList(graphs.chain_data(9)),
    )
    s = side.scheduler
    admit(side, np.arange(2))
    before = s.queues.waiting_for(0)
    assert [(q.direction, q.items) for q in before] == [("forward", 2)]
    s.done(s.next(0))
    side.admit(np.arange(2, 5))
    assert [(q.stage.name, q.items) for q in s.queues.waiting_for(0)] == [("f1", 2), ("f0", 3)]
    assert repr(s.queues.waiting_for(0)[1]) == "Queue(forward of `f0`: 3 messages, 3 rows)"
    assert before[0].items == 3


# Explanations


def running(policy, n=3, steps=1, homes=None):
    plan = plan_for(graphs.chain(2), homes, (0, 1))
    side = Scheduled(
        plan,
        SchedulerSettings(max_dispatch_size=2, policy=policy),
        InstanceList(graphs.chain_data(n)),
    )
    admit(side, np.arange(n))
    for _ in range(steps):
        side.scheduler.done(side.scheduler.next(0))
    return side.scheduler


def explained(s, worker=0):
    return explain(s.snapshot(), worker, s.queues.waiting_for(worker))


def test_why_a_dispatch_is_chosen():
    assert explained(running(balanced)) == [
        "worker 0 takes forward of `f1` next: `balanced` puts it first",
        "  forward of `f1`: 2 message(s), 2 of 2 row(s) in one dispatch, since dispatch 1, rank (-7, True, 1)",
        "  forward of `f0`: 1 message(s), 1 of 1 row(s) in one dispatch, since dispatch 0, rank (-4, True, 0)",
        *[
            f"  node `loss` has State(instance={i}) on port label and waits for the same key on port f1"
            for i in range(3)
        ],
    ]


def test_a_long_list_is_cut():
    told = explained(running(balanced, n=12, steps=0))
    assert len(told) == 2 + 8 + 1 and told[-1] == "  4 more wait there"


def test_every_choice_is_explained_as_it_is_made():
    graph, data = model("trees")
    plan = make_plan(graph, assign(graph, 1))
    side = Scheduled(plan, SchedulerSettings(max_active_keys=4, max_dispatch_size=4), data)
    left = np.arange(len(data))
    s = side.scheduler
    while len(left) or not s.idle:
        left, _ = admit(side, left)
        told = explained(s)
        d = s.next(0)
        name = plan.stages[d.stage].name
        assert told[0] == f"worker 0 takes {d.direction} of `{name}` next: `balanced` puts it first"
        assert told[1].startswith(f"  {d.direction} of `{name}`: ")
        s.done(d)


def patient(queues, now):
    return None


def test_a_policy_that_waits():
    s = running(patient, steps=0)
    assert s.queues.why_blocked(0) == "policy"
    assert explained(s)[0].startswith(
        "`patient` lets worker 0 wait; if nothing else moves, it takes forward of `"
    )


def test_a_worker_that_has_nothing():
    s = running(backward_first, steps=0, homes={"f1": 1})
    assert explained(s, 1) == ["worker 1 has nothing to take"]
    assert s.queues.why_blocked(1) is None


def test_a_worker_whose_messages_lack_partners():
    """It is told who waits there, and a trace calls it a join."""
    graph, data = model("trees")
    plan = make_plan(graph, assign(graph, 1))
    side = Scheduled(plan, SchedulerSettings(max_active_keys=1), data)
    admit(side, np.arange(1))
    s = side.scheduler
    d = s.next(0)
    while s.queues.why_blocked(0) != "join":
        s.done(d)
        d = s.next(0)
    told = explained(s)
    assert told[0] == "worker 0 has nothing to take" and "waits for the same key on port" in told[1]
