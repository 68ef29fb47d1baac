"""Policies: pure functions over ready queues."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs
from support.control import WaitingQueue, admit, drain, plan_for, scheduler_for, tell

from ampjax.errors import SettingsError
from ampjax.plan.stage_kinds import TRANSFER
from ampjax.sched.decisions.dispatch import BACKWARD, DIRECTIONS, FORWARD, INFER
from ampjax.sched.decisions.policy import (
    POLICIES,
    backward_first,
    balanced,
    find_policy,
    largest,
    one_forward_one_backward,
    wavefront,
)
from ampjax.sched.layout import columns as c

PLAN = plan_for(graphs.chain(1))
STAGE = PLAN.stages[0]
COPY = replace(STAGE, kind=TRANSFER)


def queue(direction, rows, born=0, max_rows=64, stage=STAGE):
    q = WaitingQueue(
        PLAN,
        3 * STAGE.number + DIRECTIONS.index(direction),
        max_rows,
    )
    q.stage = stage
    q.show(rows, born)
    return q


QUEUES = st.lists(
    st.builds(
        queue,
        st.sampled_from([FORWARD, BACKWARD, INFER]),
        st.integers(1, 200),
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=6,
)


@given(
    QUEUES,
    st.integers(50, 100),
    st.sampled_from(sorted(POLICIES)),
)
def test_a_policy_chooses_one_of_the_queues_and_changes_none(queues, now, name):
    before = []
    for q in queues:
        before.append((q.items, q.rows, q.born))
    assert find_policy(name)(queues, now) in queues
    assert [(q.items, q.rows, q.born) for q in queues] == before


@given(QUEUES, st.integers(50, 100))
def test_backward_first_is_the_papers(queues, now):
    chosen = backward_first(queues, now)
    assert chosen.backward or not any(q.backward for q in queues)
    assert chosen.born == min(q.born for q in queues if q.backward == chosen.backward)


@given(QUEUES, st.sampled_from([FORWARD, BACKWARD]))
def test_copies_to_another_device_go_first(queues, direction):
    """Whatever waits here, another worker may be waiting for them."""
    copy = queue(direction, 1, born=50, stage=COPY)
    assert backward_first([*queues, copy], 60) is copy


@given(QUEUES, st.integers(50, 100))
def test_largest_fills_the_dispatch(queues, now):
    assert largest(queues, now).ready == max(q.ready for q in queues)


def test_largest_counts_only_what_one_dispatch_takes():
    many = queue(FORWARD, 500, born=3)
    few = queue(BACKWARD, 64, born=5)
    assert largest([many, few], 9) is few  # both fill a dispatch: backward goes first


def test_balanced_weighs_rows_direction_and_age():
    assert (
        balanced(
            [queue(FORWARD, 10), back := queue(BACKWARD, 7)],
            0,
        )
        is back
    )
    assert (
        balanced(
            [ahead := queue(FORWARD, 11), queue(BACKWARD, 7)],
            0,
        )
        is ahead
    )
    assert (
        balanced(
            [
                old := queue(INFER, 1, born=0),
                queue(FORWARD, 64, born=300),
            ],
            300,
        )
        is old
    )


@given(st.integers(2, 64))
def test_balanced_starves_nobody(rows):
    """A single message beside a queue that is always full goes after a bounded number of dispatches."""
    lonely = queue(FORWARD, 1, born=0)
    waited = next(
        now
        for now in range(10_000)
        if balanced([lonely, queue(BACKWARD, rows, born=now)], now) is lonely
    )
    assert waited <= 4 * 1.5 * rows


def test_wavefront_goes_forward_from_the_pumps_and_back_from_the_losses():
    """Four instances, of which two enter late, are in step at the second stage, and stay so."""
    s = scheduler_for(graphs.chain(3), policy=wavefront, fuse=False)
    admit(s, graphs.chain_data(2))
    first = s.next(0)
    admit(s, graphs.chain_data(2), ids=[2, 3])
    s.done(first)
    assert [tell(d).split(";")[0] for d in drain(s)] == [
        "forward f0 [2, 3]",
        "forward f1 [0, 1, 2, 3]",
        "forward f2 [0, 1, 2, 3]",
        "forward loss [0, 1, 2, 3]",
        "backward f2 [0, 1, 2, 3]",
        "backward f1 [0, 1, 2, 3]",
        "backward f0 [0, 1, 2, 3]",
    ]


def on_three_workers(policy):
    workers = {"f0": 0, "f1": 1, "f2": 2, "loss": 2}
    return scheduler_for(
        graphs.chain(3),
        workers,
        (0, 0, 0),
        policy=policy,
        max_dispatch_size=1,
        max_active_keys=8,
    )


def open_messages(s, stage):
    return s.tables.t.queues[3 * stage + c.FORWARD, c.UNDER_WAY]


def test_one_forward_one_backward_sends_no_more_than_keeps_the_workers_busy():
    s = on_three_workers(one_forward_one_backward)
    assert [stage.workers_ahead for stage in s.plan.stages] == [3, 2, 1, 1]
    admit(s, graphs.chain_data(8))
    most = dict.fromkeys((0, 1), 0)
    while not s.idle:
        under_way = []
        for d in (s.next(worker) for worker in range(3)):
            if d is not None:
                under_way.append(d)
        assert under_way, "somebody can always move"
        for stage in most:
            most[stage] = max(most[stage], open_messages(s, stage))
        for dispatch in under_way:
            s.done(dispatch)
    assert most == {0: 3, 1: 2}
    assert all(open_messages(s, stage) == 0 for stage in most)


def test_backward_first_sends_all_ahead():
    s = on_three_workers(backward_first)
    admit(s, graphs.chain_data(8))
    for _ in range(8):
        s.done(s.next(0))
    assert open_messages(s, 0) == 8


def test_where_everybody_would_wait_the_papers_policy_decides():
    s = scheduler_for(graphs.chain(2), policy=lambda queues, now: None)
    admit(s, graphs.chain_data(2))
    assert s.can_move()
    drain(s)
    assert s.idle


def test_policies_by_name_or_function():
    assert find_policy("backward_first") is backward_first
    assert find_policy(min) is min
    text = f"setting `policy`: expected one of {list(POLICIES)}, or a function, got 'fifo'. Choose one of these names."
    with pytest.raises(SettingsError, match=re.escape(text)):
        find_policy("fifo")


def test_a_users_policy_decides():
    def youngest(queues, now):
        return max(queues, key=lambda q: q.born)

    g = graphs.chain(2)
    s = scheduler_for(g, max_dispatch_size=1, policy=youngest)
    admit(s, graphs.chain_data(2))
    assert [tell(d).split(";")[0] for d in drain(s)][:3] == [
        "forward f0 [0]",
        "forward f1 [0]",
        "forward loss [0]",
    ]
