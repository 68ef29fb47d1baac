"""How replicas are kept together, and what staleness counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs
from support.control import admit, drain, plan_for, scheduler_for

import ampjax.graphs as ag
from ampjax.sched.decisions.parameter_changes import Average, Contribute, Merge, ReplicaSync, Update
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.replica_sync import ReplicaGroups


def copies(n):
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("g", graphs.times, params=graphs.one()),
            n,
        )(x)
        ag.loss("loss", graphs.square)(y, label)
    return g


COPIES = copies(3)
GROUP = list(COPIES.parameterised)
AVERAGE = Average("g", tuple(GROUP))


def replicas(rule="epoch", every=0):
    plan = plan_for(COPIES)
    return ReplicaGroups(
        plan, ReplicaSync(rule, every), SchedulerTables(plan, SchedulerSettings()).t
    )


# Staleness


def test_rows_of_ragged_messages_weigh_their_number():
    """Messages of one, three and no rows; the second ones have seen parameters that were updated since."""
    s = scheduler_for(
        graphs.repeating(),
        intervals={"scale": 1},
        max_dispatch_size=64,
    )
    admit(
        s,
        [graphs.repeating_instance(n) for n in (1, 3, 0)],
    )
    drain(s)
    assert s.counts.read().nodes["scale"].histogram[:2].tolist() == [3, 0]
    assert s.counts.read().nodes["scale"].gradients == 3


def test_the_histogram_counts_every_row_once():
    """What goes forth before and back after many updates is staler than the last bin says."""
    s = scheduler_for(graphs.chain(1), max_dispatch_size=1)
    admit(s, graphs.chain_data(1))
    s.done(s.next(0))
    s.tables.t.nodes[:, c.VERSION] += 200  # updates meanwhile
    drain(s)
    node = s.counts.read().nodes["f0"]
    assert node.histogram[-1] == node.histogram.sum() == node.gradients == 1
    assert node.staleness_sum == 200
    assert node.staleness_max == 200
    assert node.staleness_mean == 200.0


def test_nodes_count_for_themselves():
    s = scheduler_for(
        graphs.chain(2),
        intervals={"f0": 2, "f1": 3},
        max_dispatch_size=1,
    )
    admit(s, graphs.chain_data(6))
    changes = []
    for d in drain(s):
        for change in d.changes:
            changes.append(change)
    assert [change.count for change in changes if change.node == "f0"] == [2, 2, 2]
    assert [change.count for change in changes if change.node == "f1"] == [3, 3]
    assert s.updates.versions == {"f0": 3, "f1": 2}


# Replicas


def test_by_default_replicas_meet_at_the_end_of_an_epoch():
    group = replicas()
    assert group.after(GROUP[0]) == []
    assert group.end_of_epoch() == [AVERAGE]


def test_replicas_may_never_meet():
    assert replicas("none").end_of_epoch() == []


def test_every_k_updates_of_one_replica_all_average():
    group = replicas("every_k", 2)
    averaged = []
    for i in (0, 1, 2, 1, 0, 0, 1):
        averaged.append(AVERAGE in group.after(GROUP[i]))
    assert averaged == [False, False, False, True, False, True, False]
    assert group.end_of_epoch() == [AVERAGE]


def test_the_message_protocol():
    """arXiv version, §5: one triggers, each hands in at its next update, nobody waits."""
    group = replicas("message", 2)
    a, b, d = GROUP
    steps = [
        (a, []),
        (b, []),
        (a, [Contribute("g", a)]),  # the second update of the first triggers
        (a, []),  # it goes on meanwhile
        (b, [Contribute("g", b)]),
        (b, []),
        (
            d,
            [
                Contribute("g", d),
                Merge(
                    "g",
                    (a, b, d),
                ),
            ],
        ),
        (d, []),
        (d, [Contribute("g", d)]),  # counting starts anew
    ]
    for node, expected in steps:
        assert group.after(node) == expected


def test_the_end_of_an_epoch_ends_a_round_of_the_message_protocol():
    group = replicas("message", 1)
    a, b, d = GROUP
    assert group.after(a) == [Contribute("g", a)]
    assert group.end_of_epoch() == [AVERAGE]
    assert group.after(b) == [Contribute("g", b)]
    assert group.after(a) == [Contribute("g", a)]
    assert group.after(d) == [
        Contribute("g", d),
        Merge("g", (a, b, d)),
    ]


@given(
    st.lists(st.sampled_from(GROUP), max_size=80),
    st.integers(1, 4),
)
def test_every_merge_has_one_contribution_of_each(order, every):
    group = replicas("message", every)
    handed_in = []
    for node in order:
        for change in group.after(node):
            if isinstance(change, Contribute):
                handed_in.append(change.node)
            else:
                assert sorted(handed_in) == GROUP
                handed_in = []
    assert len(handed_in) == len(set(handed_in))


@pytest.mark.parametrize("rule", ["every_k", "message"])
def test_a_flush_counts_as_an_update(rule):
    s = scheduler_for(
        COPIES,
        intervals=dict.fromkeys(GROUP, 10),
        sync=ReplicaSync(rule, 1),
        max_active_keys=9,
    )
    admit(s, graphs.chain_data(3))
    drain(s)
    s.rounds.flush()
    changes = []
    for d in drain(s):
        for change in d.changes:
            changes.append(change)
    assert changes[0] == Update(GROUP[0], 1, 0.0)
    assert [type(change).__name__ for change in changes[:2]] == [
        "Update",
        "Average" if rule == "every_k" else "Contribute",
    ]
