"""Backlogs: a heap of ranks chooses what the policy would choose among all queues."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import WaitingQueue, admit, plan_for, scheduler_for, step, tell

from ampjax.sched.choosing.backlog import Backlog
from ampjax.sched.decisions.policy import POLICIES, Ranked
from ampjax.sched.layout import columns as c

PLAN = plan_for(graphs.chain(3))
RANKED = sorted(name for name, policy in POLICIES.items() if isinstance(policy, Ranked))


class Waits(WaitingQueue):
    """A queue of messages of one row, of which the oldest are taken first."""

    def __init__(self, q):
        super().__init__(PLAN, q)
        self.since = []

    def put(self, n, now):
        self.since += [now] * n
        self.show(len(self.since), self.since[0])

    def take(self, n):
        del self.since[:n]
        self.show(
            len(self.since),
            self.since[0] if self.since else 0,
        )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 11),
            st.integers(1, 80),
        ),
        min_size=1,
        max_size=200,
    ),
    st.sampled_from(RANKED),
    st.integers(1, 4),
)
@settings(max_examples=80)
def test_the_heap_chooses_what_the_policy_chooses(steps, name, every):
    """Messages come to queues, and every few steps a dispatch is taken from the one that goes first."""
    policy = POLICIES[name]
    queues = []
    for q in range(3 * len(PLAN.stages)):
        queues.append(Waits(q))
    backlog = Backlog(policy)
    for now, (number, n) in enumerate(steps):
        queue = queues[number % len(queues)]
        queue.put(n, now)
        backlog.add(queue)
        if now % every:
            continue
        chosen = backlog.first()
        assert chosen is policy([*backlog], now)
        chosen.take(16)
        backlog.note_taken(chosen)
        assert (chosen in backlog) == (chosen.items > 0)
        assert len(backlog) == sum(q.items > 0 for q in queues)


def test_the_heap_stays_small():
    backlog = Backlog(POLICIES["balanced"])
    queues = [Waits(c.FORWARD) for _ in range(2)]
    for now in range(2000):
        for queue in queues:
            queue.put(1, now)
            backlog.add(queue)
        assert backlog.first() is queues[0]
    assert len(backlog._heap) < 100


def test_a_policy_without_ranks_is_asked_each_time():
    backlog = Backlog(lambda queues, now: None)
    backlog.add(Waits(c.FORWARD))
    assert backlog.first() is None and len(backlog) == 1


def test_workers_for_whom_something_has_come_are_told_once():
    s = scheduler_for(
        graphs.chain(2),
        {"f0": 0, "f1": 1, "loss": 1},
        (0, 0),
    )
    admit(s, graphs.chain_data(2))
    assert s.queues.take_woken() == {0}
    assert s.queues.take_woken() == set()
    first = s.next(0)
    assert s.queues.take_woken() == set(), "what it sends on has not come yet"
    s.done(first)
    assert s.queues.take_woken() == {1}
    assert s.next(0) is None
    assert tell(step(s, 1)).startswith("forward f1")


@pytest.mark.parametrize("name", RANKED)
def test_a_ranked_policy_keeps_its_name_and_text(name):
    policy = POLICIES[name]
    assert policy.__name__ == name and policy.__doc__


def test_another_policy_ranks_what_waits_already():
    few, many = (Waits(direction) for direction in (c.BACKWARD, c.FORWARD))
    backlog = Backlog(POLICIES["backward_first"])
    for queue, n in ((few, 1), (many, 60)):
        queue.put(n, 0)
        backlog.add(queue)
    assert backlog.first() is few
    backlog.decide_by(POLICIES["largest"])
    assert backlog.first() is many
    backlog.decide_by(lambda queues, now: None)
    assert backlog.first() is None
    backlog.decide_by(POLICIES["backward_first"])
    assert backlog.first() is few and len(backlog) == 2
