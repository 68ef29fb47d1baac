"""The scheduler as a state machine: events in, actions out."""

import re

import numpy as np
import pytest
from support import graphs
from support.control import (
    Shown,
    admit,
    assert_empty,
    columns,
    drain,
    field,
    instances_of,
    scheduler_for,
    step,
    tell,
)

import ampjax.graphs as ag
from ampjax.errors import DeadlockError, InvariantError, LimitError, MessageError
from ampjax.sched.decisions.parameter_changes import Average, ReplicaSync, Update
from ampjax.sched.decisions.policy import backward_first
from ampjax.sched.diagnose.deadlock import standstill, waiting
from ampjax.sched.diagnose.invariants import check
from ampjax.sched.diagnose.story import story
from ampjax.sched.layout import columns as c


def actions(graph, instances, purpose="train", ids=None, **settings):
    """All actions on some instances, in words; nothing may be left."""
    s = scheduler_for(graph, **{"max_active_keys": 100, **settings})
    admit(s, instances, ids, purpose)
    said = [tell(d) for d in drain(s)]
    assert_empty(s)
    return said


# Actions, graph by graph


def test_a_chain():
    assert actions(graphs.chain(2), graphs.chain_data(2)) == [
        "forward f0 [0, 1]",
        "forward f1 [0, 1]",
        "forward loss [0, 1]",
        "backward f1 [0, 1]; Update f1",
        "backward f0 [0, 1]; Update f0",
    ]


def test_a_fused_chain_is_one_dispatch():
    assert actions(
        graphs.chain(2),
        graphs.chain_data(2),
        fuse=True,
    ) == ["forward f0+f1+loss [0, 1]; Update f0; Update f1"]


def test_a_dispatch_size_of_1_is_the_papers_algorithm():
    said = actions(
        graphs.chain(1),
        graphs.chain_data(2),
        max_dispatch_size=1,
        policy=backward_first,
    )
    assert said == [
        "forward f0 [0]",
        "forward loss [0]",
        "backward f0 [0]; Update f0",
        "forward f0 [1]",
        "forward loss [1]",
        "backward f0 [1]; Update f0",
    ]


def test_a_loop_goes_round_as_often_as_the_state_says():
    g = graphs.rnn()
    s = scheduler_for(g, fuse=True, policy=backward_first)
    admit(s, graphs.rnn_data([1, 3]))
    seen = []
    for d in drain(s):
        if d.stage.name.startswith("embed"):
            seen.append(
                (
                    d.direction,
                    instances_of(d),
                    field(d, g, "t"),
                )
            )
    assert seen == [
        ("forward", [0, 1], [0, 0]),
        ("backward", [0], [0]),
        ("forward", [1], [1]),
        ("forward", [1], [2]),
        ("backward", [1], [2]),
        ("backward", [1], [1]),
        ("backward", [1], [0]),
    ]
    assert_empty(s)


def forward_first(queues, now):
    """Everything goes forward before anything comes back."""
    return max(
        queues,
        key=lambda queue: (not queue.backward, queue.ready, -queue.born),
    )


def test_a_cond_and_the_phi_behind_it():
    said = actions(
        graphs.diamond(),
        graphs.chain_data(4),
        policy=forward_first,
    )
    assert sorted(said) == sorted(
        [
            "forward first [0, 1, 2, 3]",
            "forward even [0, 2]",
            "forward odd [1, 3]",
            "forward loss [1, 3, 0, 2]",
            "backward even [0, 2]; Update even",
            "backward odd [1, 3]",
            "backward first [1, 3, 0, 2]; Update first",
        ]
    )


def test_fan_out_waits_for_every_gradient():
    said = actions(graphs.fan_out(), graphs.chain_data(1))
    assert said[-1] == "backward first [0]; Update first"
    assert sorted(said[7:-1]) == [f"backward b{i} [0]; Update b{i}" for i in range(3)]


def test_a_flatmap_may_emit_nothing():
    """Such a row is answered at once with a zero gradient, and counts towards the interval."""
    said = actions(
        graphs.flat(),
        [graphs.flat_instance(n) for n in (0, 2)],
        intervals={"first": 2},
    )
    assert said == [
        "forward first [0, 1]",
        "forward each [1, 1]",
        "forward loss [1, 1]",
        "backward each [1, 1]; Update each",
        "backward first [0, 1]; Update first",
    ]


def test_an_instance_whose_messages_all_end_at_once():
    assert actions(graphs.flat(), [graphs.flat_instance(0)]) == [
        "forward first [0]",
        "backward first [0]; Update first",
    ]


def test_an_empty_group_is_emitted_and_an_empty_ragged_message_ungrouped():
    said = actions(
        graphs.grouping(),
        [graphs.grouping_instance(n) for n in (0, 2)],
    )
    assert said == [
        "forward row [1, 1]",
        "forward total [0, 1]",
        "forward out [0, 1]",
        "forward loss [0, 1]",
        "backward out [0, 1]; Update out",
        "backward total [0, 1]",
        "backward row [1, 1]; Update row",
    ]


def test_distribute_and_collect_with_isolated_nodes():
    instances = [
        graphs.molecule_instance(
            3,
            [(0, 1, 0), (1, 0, 0)],
        ),
        graphs.molecule_instance(1, []),
    ]
    s = scheduler_for(graphs.molecule())
    admit(s, instances)
    done = {}
    for d in drain(s):
        done[(d.direction, d.stage.name)] = d
    assert_empty(s)
    forward = done["forward", "in"]
    assert instances_of(forward) == [0, 1]
    assert [r.tolist() for r in forward.scatter] == [
        [1, 0],
        [],
    ]  # where the two edges' rows go; kind 1 has none
    assert [len(r) for r in forward.out_rows] == [4]  # one row per atom
    assert done["backward", "edge1"].n_rows == 0
    assert instances_of(done["backward", "edge1"]) == [
        0,
        1,
    ]


def test_a_repeated_row_has_one_slot():
    s = scheduler_for(graphs.repeating())
    admit(
        s,
        [graphs.repeating_instance(n) for n in (3, 0)],
    )
    done = {}
    for d in drain(s):
        done[(d.direction, d.stage.name)] = d
    assert_empty(s)
    rows = done["forward", "multiply"].in_rows[0].tolist()
    assert len(rows) == 3 and len(set(rows)) == 1
    assert "Update scale" in tell(done["backward", "scale"]) and instances_of(
        done["backward", "scale"]
    ) == [0, 1]


def test_outputs_of_one_node_are_answered_together():
    said = actions(
        graphs.two_outputs(),
        graphs.two_outputs_data(2),
        ids=[0, 2],
    )
    assert said[-2:] == ["backward parts [0, 2]", "backward first [0, 2]; Update first"]
    assert sorted(said[2:-2]) == [
        "backward a [0, 2]; Update a",
        "forward a [0, 2]",
        "forward loss_a [0, 2]",
        "forward loss_b [0, 2]",
    ]


def test_a_sink_answers_with_a_zero_gradient_in_training():
    with ag.Graph() as g:
        ag.sink(
            "end",
            ag.ppt(
                "f",
                graphs.times,
                params=graphs.one(),
            )(ag.pump("x")),
        )
    assert actions(
        g,
        [{"x": 1.0}, {"x": 2.0}],
    ) == [
        "forward f [0, 1]",
        "backward f [0, 1]; Update f",
    ]
    assert actions(
        g,
        [{"x": 1.0}, {"x": 2.0}],
        purpose="both",
    ) == [
        "infer f [0, 1]",
        "infer end [0, 1]",
    ]


def test_a_pump_that_goes_to_a_sink():
    with ag.Graph() as g:
        ag.sink("end", ag.pump("x"))
    assert actions(g, [{"x": 1.0}]) == []
    assert actions(g, [{"x": 1.0}], purpose="both") == ["infer end [0]"]


def test_an_instance_without_messages_ends_when_it_is_closed():
    s = scheduler_for(graphs.chain(1))
    handles = s.open(np.arange(2))
    assert s.admission.in_flight == {True: 2, False: 0}
    assert s.admission.take_ended() == []
    s.close(handles)
    assert s.admission.take_ended() == [(0, True), (1, True)]
    assert s.admission.take_ended() == []
    assert_empty(s)


# Training and inference


def test_inference_keeps_nothing():
    """A row is freed as soon as its last consumer has been issued: a long chain needs the rows of two nodes."""
    s = scheduler_for(graphs.chain(6))
    key = (0, (), "float32")

    def most_rows(purpose):
        admit(s, graphs.chain_data(5), purpose=purpose)
        held = set()
        most = 0
        while (d := s.next(0)) is not None:
            if s.plan.stages[d.stage].outputs:
                held |= set(d.rows[-1].tolist())
            else:
                held |= set()
            most = max(most, len(held & used_slots(s, key)))
            s.done(d)
        return most

    assert most_rows("both") == 10
    assert most_rows("train") == 30  # in training all activations are kept
    assert_empty(s)


def used_slots(s, key):
    """The slots of an arena that somebody holds."""
    arena = s.tables.arenas.keys.index(key)
    free = s.tables.t.free[arena, : s.tables.t.n_free[arena]].tolist()
    return set(range(1, s.tables.capacity(key))) - set(free)


def test_training_and_inference_at_once_never_share_a_dispatch():
    s = scheduler_for(graphs.chain(1), max_active_keys=2)
    admit(s, graphs.chain_data(2), ids=[0, 1])
    admit(
        s,
        graphs.chain_data(2),
        ids=[0, 1],
        purpose="both",
    )
    assert (
        s.admission.in_flight == {True: 2, False: 2}
        and s.admission.room(True) == s.admission.room(False) == 0
    )
    assert sorted(tell(d) for d in drain(s)) == [
        "backward f0 [0, 1]; Update f0",
        "forward f0 [0, 1]",
        "forward loss [0, 1]",
        "infer f0 [0, 1]",
        "infer loss [0, 1]",
    ]
    assert sorted(s.admission.take_ended()) == [(0, False), (0, True), (1, False), (1, True)]
    assert_empty(s)


def test_without_losses_no_label_is_needed():
    """Nor is anything run that leads to losses alone, such as `a`."""
    s = scheduler_for(graphs.two_outputs())
    admit(
        s,
        [{"x": np.zeros(4, np.float32)}] * 2,
        ids=[0, 1],
        purpose="sinks",
    )
    assert sorted(tell(d) for d in drain(s)) == [
        "infer first [0, 1]",
        "infer left [1]",
        "infer parts [0, 1]",
    ]
    assert_empty(s)


def test_inference_for_several_things_at_once():
    s = scheduler_for(graphs.two_outputs())
    data = graphs.two_outputs_data(2)
    admit(s, data[:1], ids=[0], purpose="sinks")
    admit(s, data[:1], ids=[2], purpose="losses")
    assert s.admission.in_flight == {True: 0, False: 2}
    of = {}
    for d in drain(s):
        of[d.stage.name] = instances_of(d)
    assert of["first"] == [0, 2]
    assert of["loss_a"] == [2]
    assert of["loss_b"] == [2]
    assert_empty(s)


# The controller


def test_instances_are_admitted_together():
    s = scheduler_for(graphs.chain(1), max_active_keys=4, min_admission=3)
    assert s.admission.room() == s.admission.room(train=False) == 4
    handles = s.open(np.arange(2))
    assert s.admission.room() == 0, "two could enter, which is fewer than three"
    s.close(handles[:1])
    assert s.admission.room() == 3
    s.open(np.arange(2, 4))
    assert s.admission.room() == 0


def test_the_throttle():
    s = scheduler_for(graphs.chain(1), max_active_keys=3)
    assert s.admission.room() == 3
    handles = s.open(np.arange(3))
    assert s.admission.room() == 0
    assert s.admission.room(train=False) == 3
    s.close(handles[:1])
    assert s.admission.room() == 1
    assert s.counts.read().most_in_flight == 3
    with pytest.raises(
        InvariantError,
        match=r"throttle: expected \(5, 0\) training and inference instances in flight, at most 3 of each",
    ):
        s.open(np.arange(3, 6))
        check(s.snapshot())


def test_instance_slots_are_used_again():
    s = scheduler_for(graphs.chain(1), max_active_keys=4)
    seen = set()
    for start in range(0, 40, 4):
        seen |= set(
            admit(
                s,
                graphs.chain_data(4),
                ids=np.arange(start, start + 4),
            ).tolist()
        )
        drain(s)
        assert len(s.admission.take_ended()) == 4
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("every", "room"),
    [(1, 1), (3, 3)],
    ids=["sync", "pipeline"],
)
def test_the_controller_updates_when_a_round_has_ended(every, room):
    s = scheduler_for(
        graphs.chain(2),
        max_active_keys=3,
        flush_every=every,
        intervals={"f0": 100, "f1": 1},
    )
    for start in (0, every):
        assert s.admission.room() == room
        admit(
            s,
            graphs.chain_data(every),
            ids=np.arange(start, start + every),
        )
        assert s.admission.room() == 0
        said = drain(s)
        assert [change for d in said[:-1] for change in d.changes] == []
        assert said[-1].stage is None and said[-1].changes == [
            Update(name, every, examples=every) for name in ("f0", "f1")
        ]
    assert_empty(s)


def test_no_instance_of_the_next_round_starts_before_the_update():
    s = scheduler_for(graphs.chain(1), max_active_keys=4, flush_every=2)
    admit(s, graphs.chain_data(2))
    dispatches = [step(s) for _ in range(3)]
    assert tell(dispatches[-1]) == "backward f0 [0, 1]"
    admit(s, graphs.chain_data(2), ids=[2, 3])
    assert tell(step(s)) == "Update f0" and tell(step(s)) == "forward f0 [2, 3]"


def test_a_round_that_is_not_full_is_updated_at_the_end_of_the_data():
    s = scheduler_for(graphs.chain(1), max_active_keys=8, flush_every=5)
    admit(s, graphs.chain_data(2))
    drain(s)
    assert s.idle and s.admission.room() == 3
    s.rounds.end_of_data()
    assert not s.idle
    assert [tell(d) for d in drain(s)] == ["Update f0"]
    s.rounds.end_of_data()
    assert s.idle and s.admission.room() == 5


def test_intervals_and_a_flush_that_was_asked_for():
    s = scheduler_for(
        graphs.chain(2),
        intervals={"f0": 3, "f1": 2},
    )
    admit(s, graphs.chain_data(5))
    assert [tell(d) for d in drain(s)][-2:] == [
        "backward f1 [0, 1, 2, 3, 4]; Update f1",
        "backward f0 [0, 1, 2, 3, 4]; Update f0",
    ]
    admit(s, graphs.chain_data(1))
    drain(s)
    s.rounds.flush()
    assert not s.idle
    assert [tell(d) for d in drain(s)] == ["Update f0; Update f1"]


def test_the_end_of_an_epoch_averages_replicas():
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            2,
        )(x)
        ag.loss("loss", graphs.square)(y, label)
    s = scheduler_for(g, sync=ReplicaSync("epoch"))
    assert s.rounds.replicas.groups == {"f": ["f/0", "f/1"]}
    admit(s, graphs.chain_data(4))
    said = sorted(tell(d) for d in drain(s) if "f/" in tell(d))
    assert said == [
        f"{way} f/{i} [{i}, {i + 2}]" + f"; Update f/{i}" * (way == "backward")
        for way in ("backward", "forward")
        for i in range(2)
    ]
    s.rounds.end_of_epoch()
    (dispatch,) = drain(s)
    assert dispatch.changes == [Average("f", ("f/0", "f/1"))]


def test_a_flush_merges_replicas_when_all_have_handed_in():
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            3,
        )(x)
        ag.loss("loss", graphs.square)(y, label)
    s = scheduler_for(
        g,
        {"f/1": 1},
        (0, 1),
        flush_every=3,
        sync=ReplicaSync("message", 1),
    )
    admit(s, graphs.chain_data(3))
    changes = []
    for dispatch in drain(s):
        for change in dispatch.changes:
            changes.append(change)
    assert [type(change).__name__ for change in changes] == ["Update", "Contribute"] * 3 + ["Merge"]


def test_abandon_forgets_what_is_in_flight_and_nothing_else():
    s = scheduler_for(
        graphs.chain(2),
        intervals={"f0": 10, "f1": 10},
    )
    admit(s, graphs.chain_data(3))
    for _ in range(4):
        step(s)
    assert s.updates.counts == {"f0": 0, "f1": 3}
    s.abandon()
    assert_empty(s)
    assert s.updates.counts == {"f0": 0, "f1": 3}
    assert s.admission.room() == 16
    admit(s, graphs.chain_data(7))
    assert [tell(d) for d in drain(s)][-2] == "backward f1 [0, 1, 2, 3, 4, 5, 6]; Update f1"


def test_abandon_hands_over_the_updates_that_were_due():
    s = scheduler_for(
        graphs.chain(2),
        intervals={"f0": 10, "f1": 10},
    )
    admit(s, graphs.chain_data(3))
    drain(s)
    s.rounds.flush()
    assert [tell(Shown(s, d)) for d in s.abandon()] == ["Update f0; Update f1"]
    assert_empty(s)
    assert s.abandon() == []


# Dispatches


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_dispatches_are_cut_to_size(size):
    s = scheduler_for(graphs.chain(2), max_dispatch_size=size)
    admit(s, graphs.chain_data(5))
    dispatches = drain(s)
    assert max(d.n_rows for d in dispatches) == min(size, 5)
    assert sum(d.n_messages for d in dispatches) == 5 * 5
    assert_empty(s)


def test_a_node_can_have_a_dispatch_size_of_its_own():
    s = scheduler_for(graphs.chain(2, max_dispatch_size=2), max_dispatch_size=64)
    admit(s, graphs.chain_data(5))
    sizes = {}
    for d in drain(s):
        sizes.setdefault(d.stage.name, []).append(d.n_rows)
    assert max(sizes["f0"]) == max(sizes["f1"]) == 2


def test_a_ragged_message_is_never_cut():
    s = scheduler_for(graphs.repeating(), max_dispatch_size=2)
    admit(
        s,
        [graphs.repeating_instance(n) for n in (1, 5, 1, 1)],
    )
    sizes = []
    for d in drain(s):
        if d.stage.name == "multiply" and d.direction == "forward":
            sizes.append(d.sizes.tolist())
    assert sizes == [[1], [5], [1, 1]]


def test_dispatches_are_numbered_in_the_order_of_issue():
    s = scheduler_for(graphs.chain(2))
    admit(s, graphs.chain_data(2))
    assert [d.number for d in drain(s)] == [1, 2, 3, 4, 5]


def test_an_action_counts_as_issued_until_it_is_done():
    s = scheduler_for(graphs.chain(1))
    admit(s, graphs.chain_data(1))
    dispatch = s.next(0)
    assert s.next(0) is None
    assert s.can_move()
    assert not s.can_move(0)
    assert not s.idle
    s.done(dispatch)
    assert s.can_move(0)


def test_workers_have_their_own_actions():
    s = scheduler_for(
        graphs.chain(2),
        {"f1": 1},
        (0, 0),
    )
    admit(s, graphs.chain_data(1))
    assert s.next(1) is None and not s.can_move(1)
    assert tell(step(s, 0)) == "forward f0 [0]"
    assert s.next(0) is None
    assert tell(step(s, 1)) == "forward f1 [0]"


def test_a_dispatch_prints_what_it_does():
    s = scheduler_for(graphs.chain(1))
    admit(s, graphs.chain_data(2))
    said = [repr(d) for d in drain(s)]
    assert said[0] == "Dispatch 1 on worker 0: forward `f0` (2 messages, 2 rows)"
    assert (
        said[-1]
        == "Dispatch 3 on worker 0: backward `f0` (2 messages, 2 rows), then Update(node='f0', count=2, mean_staleness=0.0)"
    )


# Parameter versions


def test_stashed_weights_split_the_backward_dispatch_by_version():
    s = scheduler_for(
        graphs.chain(1),
        stashed=("f0",),
        max_dispatch_size=2,
        policy=backward_first,
    )
    admit(s, graphs.chain_data(2))
    drain(s)  # version 1
    admit(s, graphs.chain_data(1), ids=[2])
    first = step(s)
    s.tables.t.nodes[:, c.VERSION] += 1  # an update meanwhile
    admit(s, graphs.chain_data(1), ids=[3])
    second = step(s)
    assert (tell(first), first.versions) == ("forward f0 [2]", (1,))
    assert (tell(second), second.versions) == ("forward loss [2]", None)
    rest = [d for d in drain(s) if d.stage.name == "f0"]
    assert [(tell(d).split(";")[0], d.versions, d.drop) for d in rest] == [
        ("backward f0 [2]", (1,), ((1,),)),
        ("forward f0 [3]", (3,), ()),
        ("backward f0 [3]", (3,), ((3,),)),
    ]


# Limits


def test_at_the_limit_dispatches_wait_for_room():
    key = (0, (), "float32")
    s = scheduler_for(graphs.chain(1), limits={key: 3})  # the trash slot and two rows
    admit(s, graphs.chain_data(5))
    assert [tell(d) for d in drain(s)][:4] == [
        "forward f0 [0, 1]",
        "forward loss [0, 1]",
        "backward f0 [0, 1]; Update f0",
        "forward f0 [2, 3]",
    ]
    assert_empty(s)


def test_a_collect_whose_edges_are_none_still_needs_room_for_its_rows():
    """Messages without input rows must not come along for free."""
    s = scheduler_for(
        graphs.molecule(),
        limits={(0, (2,), "float32"): 1 + 4 * 3 + 7},
    )
    admit(
        s,
        [graphs.molecule_instance(3, [], seed=i) for i in range(4)],
    )
    (collected,) = [d for d in drain(s) if d.stage.name == "in"]
    assert collected.n_messages == 2 and len(collected.out_rows[0]) == 6


def test_a_reduce_of_empty_messages_still_needs_room_for_its_rows():
    s = scheduler_for(
        graphs.repeating(),
        limits={(0, (), "float32"): 1 + 6},
    )
    admit(s, [graphs.repeating_instance(0) for _ in range(4)])
    sizes = []
    for d in drain(s):
        if d.stage.name == "sum" and d.direction == "forward":
            sizes.append(d.n_messages)
    assert sizes == [2, 2]
    assert_empty(s)


def test_the_oldest_message_is_asked_whether_there_is_room():
    """A younger instance's small message came first; an older one's, which goes first, does not fit beside what others hold."""
    key = (0, (2,), "float32")
    s = scheduler_for(
        graphs.molecule(),
        check=False,
        max_dispatch_size=5,
        limits={key: 1 + 15},
    )
    older = s.open(np.array([0]))
    younger = s.open(np.array([1]))
    arena = s.tables.arenas.keys.index(key)
    s.tables.t.n_free[arena] -= 10
    for handles, n in ((younger, 3), (older, 10)):
        s.pump(
            handles,
            columns(
                s.plan.graph,
                [graphs.molecule_instance(n, [])],
            ),
        )
    assert s.next(0) is None
    s.tables.t.n_free[arena] += 10
    assert tell(step(s)) == "forward encode [0]"


@pytest.mark.parametrize(
    ("ids", "advice"),
    [([7], "split the instance"), ([7, 8], "lower `max_active_keys`")],
)
def test_when_nothing_fits_it_is_said_who_needs_what(ids, advice):
    s = scheduler_for(
        graphs.chain(3),
        limits={(0, (), "float32"): 3},
    )
    admit(s, graphs.chain_data(len(ids)), ids=ids)
    drain(s)
    assert not s.can_move()
    error = standstill(s.snapshot())
    assert isinstance(error, LimitError)
    assert re.fullmatch(
        r"instance 7, stage `f[12]`: expected room for its rows of shape \(\) float32, got 2 of at most 2 rows in use by "
        rf"{len(ids)} instance\(s\) in flight\. Raise `memory_limit`, or {advice}\.",
        str(error),
    )


# Explanations


def test_waiting_lists_who_waits_for_what():
    s = scheduler_for(graphs.fan_out(2))
    admit(
        s,
        [
            {"x": np.float32(0)},
            {"label": np.float32(0)},
        ],
        ids=[4, 5],
        grows=True,
    )
    drain(s)
    assert waiting(s.snapshot()) == [
        "node `loss` has State(instance=4) on port add and waits for the same key on port label",
        "node `loss` has State(instance=5) on port label and waits for the same key on port add",
    ]
    error = standstill(s.snapshot())
    assert isinstance(error, DeadlockError)
    assert str(error).split("\n")[0] == (
        "2 instance(s) in flight: expected messages that can move, got none: "
        + "; ".join(waiting(s.snapshot()))
        + ". Pump what the nodes wait for, or mend the conditions that route it."
    )


def test_waiting_tells_of_open_groups():
    s = scheduler_for(graphs.grouping())
    rows = np.zeros((2, 2), np.float32)
    admit(
        s,
        [
            {"rows": rows},
            {
                "rows": rows,
                "size": ag.messages([0.0], n=3),
            },
        ],
        ids=[0, 1],
        grows=True,
    )
    drain(s)
    assert sorted(waiting(s.snapshot())) == [
        "group `back` with State(instance=0, i=0) waits for its opener",
        "group `back` with State(instance=1, i=0) waits for 1 more of 3 member(s)",
    ]


def test_a_long_list_is_cut():
    s = scheduler_for(graphs.chain(1), max_active_keys=20)
    admit(
        s,
        [{"x": np.float32(0)}] * 12,
        grows=True,
    )
    drain(s)
    assert len(waiting(s.snapshot())) == 12
    assert "; and 4 more. Pump" in str(standstill(s.snapshot()))


def test_an_instance_that_is_still_pumped_to():
    s = scheduler_for(graphs.chain(1))
    s.open(np.arange(1))
    assert "got none: an instance whose pumping has not ended." in str(standstill(s.snapshot()))


def test_a_story_tells_what_happened_to_an_instance():
    g = graphs.rnn()
    s = scheduler_for(g, fuse=True, policy=backward_first)
    admit(
        s,
        graphs.rnn_data([1, 2]),
        ids=[3, 8],
    )
    drain(s)
    assert story(s.snapshot(), 3, {}) == [
        "dispatch 1: forward `feed h0→0` on worker 0, State(instance=3, t=0, length=1)",
        "dispatch 2: forward `embed+concat1+linear1+tanh` on worker 0, State(instance=3, t=0, length=1)",
        "dispatch 3: forward `linear2+xent` on worker 0, State(instance=3, t=1, length=1)",
        "dispatch 4: backward `embed+concat1+linear1+tanh` on worker 0, State(instance=3, t=0, length=1)",
        "dispatch 5: backward `feed h0→0` on worker 0, State(instance=3, t=0, length=1)",
    ]
    assert [line.split(",")[0] for line in story(s.snapshot(), 8, {"t": 1})] == [
        "dispatch 6: forward `embed+concat1+linear1+tanh` on worker 0",
        "dispatch 8: backward `embed+concat1+linear1+tanh` on worker 0",
    ]


def test_a_story_is_as_long_as_the_history():
    s = scheduler_for(graphs.chain(2), history=2)
    admit(s, graphs.chain_data(1))
    drain(s)
    assert [line.split(":")[0] for line in story(s.snapshot(), 0, {})] == [
        "dispatch 4",
        "dispatch 5",
    ]


# Statistics


def test_statistics():
    s = scheduler_for(graphs.chain(2), max_dispatch_size=2)
    admit(s, graphs.chain_data(3))
    drain(s)
    admit(s, graphs.chain_data(1), purpose="both")
    drain(s)
    _ = s.admission.take_ended()
    stats = s.counts.read()
    f0 = stats.stages["f0"]
    assert (f0.forward, f0.backward, f0.infer, f0.rows, f0.dispatches) == (3, 3, 1, 7, 5)
    assert f0.largest_dispatch == 2
    assert f0.longest_queue == 3
    assert f0.mean_dispatch == 7 / 5
    assert stats.messages == 3 * 5 + 3
    assert stats.instances == 4
    assert stats.most_in_flight == 3
    assert stats.nodes["f0"].gradients == 3
    assert stats.updates == sum(n.updates for n in stats.nodes.values()) == 4
    assert (
        repr(stats).splitlines()[0]
        == f"4 instances, 18 messages, {stats.dispatches} dispatches, 4 updates"
    )
    s.counts.reset()
    assert s.counts.read().messages == s.counts.read().updates == 0
    assert s.counts.read().staleness_mean == 0.0


def test_staleness_counts_the_updates_between_forward_and_backward():
    s = scheduler_for(graphs.chain(1), max_dispatch_size=1, policy=forward_first)
    admit(s, graphs.chain_data(3))
    drain(s)
    node = s.counts.read().nodes["f0"]
    assert (node.staleness_sum, node.staleness_max) == (
        0 + 1 + 2,
        2,
    ) and s.counts.read().staleness_mean == 1.0


# What users may get wrong


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        (
            {"y": 1.0},
            r"pump `y`: expected one of the graph's pumps \['label', 'x'\], got an unknown name\. Name the pumps of the graph in the instance\.",
        ),
        (
            {"x": ag.messages([1.0], t=0)},
            r"pump `x`: expected messages with the state fields \[\], got \['t'\]\. Pump each declared field, and no other\.",
        ),
        (
            {"x": ag.messages([1.0, 2.0]), "label": 0.0},
            r"node `loss`, port f0: expected one message per key, got a second one with State\(instance=0\)\. Make states unique with an isu, or join on more fields\.",
        ),
    ],
)
def test_mistakes_in_what_is_pumped(instance, text):
    s = scheduler_for(graphs.chain(1))
    with pytest.raises(MessageError, match=text):
        admit(s, [instance])
        drain(s)


def test_a_refused_batch_leaves_nothing_behind():
    s = scheduler_for(graphs.chain(1), check=False)
    handles = s.open(np.arange(1))
    with pytest.raises(MessageError):
        s.pump(
            handles,
            {
                **columns(s.plan.graph, graphs.chain_data(1)),
                "y": columns(s.plan.graph, graphs.chain_data(1))["x"],
            },
        )
    s.close(handles)
    assert s.idle
    check(s.snapshot())


def test_ragged_inputs_that_do_not_fit_each_other():
    s = scheduler_for(graphs.repeating())
    instance = {
        **graphs.repeating_instance(3),
        "rows": ag.messages(
            np.zeros(2, np.float32),
            sizes=[2],
            n=3,
        ),
    }
    text = r"node `multiply`, port rows: expected 3 rows, as on port copies, got 2 rows with State\(instance=0, n=3\)\. Give both messages the same rows\."
    with pytest.raises(MessageError, match=text):
        admit(s, [instance])
        drain(s)


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (
            None,
            r"node `out`: expected a topology on pump `maps` before the message, got none for this instance\. Pump the topology with the instance\.",
        ),
        (
            ag.Topology(
                ([0],),
                ([0],),
                2,
            ),
            r"node `out`, topology `maps`: expected 2 gather maps, one per output, got 1\. Make the Topology with one map per wire\.",
        ),
        (
            ag.Topology(
                ([0], [2]),
                ([0], [0]),
                2,
            ),
            r"node `out`, topology `maps`: expected row numbers below 2, the rows of the message, got 2\. Give the message a row for each node of the topology\.",
        ),
        (
            ag.Topology(
                ([0], [1]),
                ([0], []),
                2,
            ),
            r"node `in`, topology `maps`: expected a scatter map of 1 places for port edge1, got 0 places\. Make the Topology with one place per row\.",
        ),
        (
            ag.Topology(
                ([0], [1]),
                ([0],),
                2,
            ),
            r"node `in`, topology `maps`: expected a scatter map of 1 places for port edge1, got 1 maps\. Make the Topology with one place per row\.",
        ),
    ],
    ids=["none", "too few maps", "row outside", "too few places", "too few scatter maps"],
)
def test_topologies_that_do_not_fit(topology, text):
    s = scheduler_for(graphs.molecule())
    instance = {
        "atoms": np.zeros((2, 2), np.float32),
        "label": np.float32(0),
    }
    with pytest.raises(MessageError, match=text):
        admit(
            s,
            [instance if topology is None else {**instance, "maps": topology}],
        )
        drain(s)


def bad(make):
    """A graph whose cond, isu or flatmap goes wrong for instances above 50 only."""
    with ag.Graph() as g:
        make(
            ag.npt("f", lambda x: x)(
                ag.pump(
                    "x",
                    fields=("t",),
                )
            )
        )
    return g


def late(good, wrong):
    """A state function that is right on the samples that are tried when the graph is built."""
    return lambda s, *i: wrong(s, *i) if len(s) and s.t.max() > 50 else good(s, *i)


def ends(wires):
    for i, wire in enumerate(wires):
        ag.sink(f"end{i}", wire)


def fail(s, *i):
    raise KeyError("what")


STATE_MISTAKES = {
    "a function that raises": (
        lambda w: ends(
            ag.cond(
                w,
                late(lambda s: s.t < 9, fail),
                name="c",
            )
        ),
        r"node `c`, condition: expected a state function that works for every state, got KeyError: 'what', for State\(instance=0, t=99\)\. Let the function give a result for this state: it is called for all states that reach the node\.",
    ),
    "an output outside": (
        lambda w: ends(
            ag.cond(
                w,
                late(
                    lambda s: s.t * 0,
                    lambda s: s.t * 0 + 2,
                ),
                name="c",
            )
        ),
        r"node `c`, condition: expected an output's number in \[0, 2\), got 2 for State\(instance=0, t=99\)\. Mend the condition, or give the cond more outputs\.",
    ),
    "floats": (
        lambda w: ends(
            ag.cond(
                w,
                late(
                    lambda s: s.t * 0,
                    lambda s: s.t / 2,
                ),
                name="c",
            )
        ),
        r"node `c`, condition: expected integers or truth values, got float64\. States are integers: use `//` instead of `/`, or cast\.",
    ),
    "another length": (
        lambda w: ends(
            ag.cond(
                w,
                late(
                    lambda s: s.t * 0,
                    lambda s: np.zeros(3, int),
                ),
                name="c",
            )
        ),
        r"node `c`, condition: expected a scalar or 1 values, one per message, got shape \(3,\)\. Return one value per message\.",
    ),
    "a negative count": (
        lambda w: ends(
            [
                ag.flatmap(
                    w,
                    late(
                        lambda s: s.t * 0,
                        lambda s: s.t * 0 - 1,
                    ),
                    lambda s, i: s.replace(i=i),
                    name="m",
                )
            ]
        ),
        r"node `m`, count: expected a count of at least 0, got -1 for State\(instance=0, t=99\)\. Let `count` give 0 for messages that need no copies\.",
    ),
    "other fields": (
        lambda w: ends(
            [
                ag.isu(
                    w,
                    late(
                        lambda s: s.replace(u=s.t),
                        lambda s: s,
                    ),
                    lambda s: s.drop("u"),
                    name="u",
                )
            ]
        ),
        r"node `u`: expected states with the fields \['t', 'u'\], as when the graph was built, got State\(instance=0, t=99\)\. Let the function return the same fields for every state\.",
    ),
    "other fields of a relabel": (
        lambda w: ends(
            [
                ag.relabel(
                    w,
                    late(lambda s: s.drop("t"), lambda s: s),
                    name="u",
                )
            ]
        ),
        r"node `u`: expected states with the fields \[\], as when the graph was built, got State\(instance=0, t=99\)\. Let the function return the same fields for every state\.",
    ),
    "no state": (
        lambda w: ends(
            [
                ag.isu(
                    w,
                    late(lambda s: s, lambda s: 3),
                    lambda s: s,
                    name="u",
                )
            ]
        ),
        r"node `u`: expected states with the fields \['t'\], as when the graph was built, got 3\. Let the function return the same fields for every state\.",
    ),
}


@pytest.mark.parametrize("make_text", STATE_MISTAKES.values(), ids=STATE_MISTAKES)
def test_state_functions_that_go_wrong_at_run_time(make_text):
    make, text = make_text
    s = scheduler_for(bad(make))
    admit(
        s,
        [{"x": ag.messages([1.0], t=3)}],
    )
    drain(s)
    with pytest.raises(MessageError, match=text):
        admit(
            s,
            [{"x": ag.messages([1.0], t=99)}],
            ids=[0],
        )
        drain(s)
