"""How a graph is cut into stages, and where payloads cross between memory spaces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import graphs
from support.control import admit, drain, field, plan_for, scheduler_for

import ampjax as amp
import ampjax.graphs as ag
from ampjax.plan.stage_kinds import ROWS
from ampjax.plan.stages import HOST


def names(plan, kind=None):
    result = []
    for stage in plan.stages:
        if kind in (None, str(stage.kind)):
            result.append(stage.name)
    return result


def stage(plan, name):
    return next(s for s in plan.stages if s.name == name)


def test_a_plan_prints_its_stages():
    assert repr(plan_for(graphs.chain(2))) == (
        "Plan: 3 stages on 1 worker\n"
        "  Stage 0 rows `f0` on worker 0 (x: scalar float32 (host)) -> scalar float32\n"
        "  Stage 1 rows `f1` on worker 0 (f0: scalar float32) -> scalar float32\n"
        "  Stage 2 loss `loss` on worker 0 (f1: scalar float32, label: scalar float32 (host)) -> nothing"
    )


# Fusing


@pytest.mark.parametrize(
    ("graph", "stages"),
    [
        (graphs.chain(3), ["f0+f1+f2+loss"]),
        (graphs.fan_out(), ["first+b0+b1+b2+add+loss"]),
        (graphs.rnn(), ["embed+concat1+linear1+tanh", "linear2+xent"]),
        (graphs.diamond(), ["first", "even", "odd", "loss"]),
        (graphs.two_outputs(), ["first+parts", "left", "a+loss_a", "loss_b"]),
        (graphs.grouping(), ["row", "back", "total", "out+loss"]),
    ],
    ids=["chain", "fan-out", "rnn", "diamond", "two outputs", "group"],
)
def test_what_is_fused(graph, stages):
    plan = plan_for(graph, fuse=True)
    assert [s.name for s in plan.stages if not s.kind.is_transfer] == stages
    unfused = []
    for s in plan_for(graph, fuse=False).stages:
        if not s.kind.is_transfer:
            unfused.append(s)
    assert all(len(s.nodes) == 1 for s in unfused)
    assert sorted(n.name for s in unfused for n in s.nodes) == sorted("+".join(stages).split("+"))


def test_a_loss_takes_what_sinks_see_too():
    """Training leaves sinks out; for predictions, what they see is computed by itself."""
    plan = plan_for(graphs.with_sinks(), fuse=True)
    trained = [s.name for s in plan.stages if s.trains]
    assert trained == ["inner+tanh+outer+loss"]
    assert [s.name for s in plan.stages if not s.trains and s.kind is ROWS] == [
        "inner+tanh",
        "outer",
    ], "each once"


@pytest.mark.parametrize(
    ("purpose", "seen"),
    [
        (
            "both",
            {"inner+tanh", "outer", "inner+tanh+outer+loss", "see input", "see hidden", "see y"},
        ),
        ("losses", {"inner+tanh+outer+loss"}),
        ("sinks", {"inner+tanh", "outer", "see input", "see hidden", "see y"}),
    ],
)
def test_inference_reaches_what_it_is_for(purpose, seen):
    s = scheduler_for(graphs.with_sinks(), fuse=True)
    data = [
        {
            "x": np.zeros(2, np.float32),
            "label": np.float32(0),
        }
    ] * 2
    admit(s, data, ids=[0, 1], purpose=purpose)
    assert {d.stage.name for d in drain(s)} == seen
    assert s.idle


def test_training_reaches_no_sink():
    s = scheduler_for(graphs.with_sinks(), fuse=True)
    admit(
        s,
        [
            {
                "x": np.zeros(2, np.float32),
                "label": np.float32(0),
            }
        ]
        * 2,
        ids=[0, 1],
    )
    assert {d.stage.name for d in drain(s)} == {"inner+tanh+outer+loss"}
    assert s.idle


def test_what_a_sink_sees_beside_another_layer_is_computed_once():
    with ag.Graph() as g:
        hidden = ag.ppt(
            "inner",
            amp.nn.Linear(2, 3),
        )(ag.pump("x", (2,)))
        ag.sink("see hidden", hidden)
        ag.sink(
            "y",
            ag.ppt(
                "outer",
                amp.nn.Linear(3, 1),
            )(hidden),
        )
    assert sorted(names(plan_for(g, fuse=True), "rows")) == ["inner", "outer"]


def test_nodes_of_different_workers_are_not_fused():
    plan = plan_for(
        graphs.chain(3),
        {"f0": 0, "f1": 0, "f2": 1, "loss": 1},
        (0, 0),
        fuse=True,
    )
    assert names(plan) == ["f0+f1", "f2+loss"]  # one device: no transfer


@pytest.mark.parametrize(
    "options",
    [{"max_dispatch_size": 4}, {"weights": "stashed"}],
)
def test_nodes_with_different_options_are_not_fused(options):
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt("f", graphs.times, params=1.0)(x)
        y = ag.ppt("g", graphs.times, params=1.0, **options)(y)
        ag.loss("loss", graphs.square)(y, label)
    assert not any("f+g" in name for name in names(plan_for(g, fuse=True)))


def test_a_node_with_two_consumers_in_different_stages_stays_alone():
    with ag.Graph() as g:
        x = ag.pump("x")
        y = ag.npt("f", jnp.sin)(x)
        ag.sink("seen", y)
        ag.sink("again", ag.npt("g", jnp.cos)(y))
    assert names(plan_for(g, fuse=True)) == ["f", "seen", "g", "again"]


def combined(first):
    """`combine` joins by instance a wire with the field `t` and one without; the fused node feeds one of the two ports."""
    with ag.Graph() as g:
        x = ag.pump("x")
        y = ag.pump("y", fields=("t",))
        f = ag.npt("f", jnp.sin)(x)
        wires = (y, f) if first == "y" else (f, y)
        ag.sink(
            "z",
            ag.npt(
                "combine",
                lambda a, b: a + b,
                join=("instance",),
            )(*wires),
        )
    return g


@pytest.mark.parametrize("first", ["y", "f"])
def test_fusing_never_changes_a_state(first):
    g = combined(first)
    instance = {
        "x": np.float32(1),
        "y": ag.messages(
            np.ones(1, np.float32),
            t=5,
        ),
    }
    seen = {}
    for fuse in (True, False):
        s = scheduler_for(g, fuse=fuse)
        admit(s, [instance], purpose="both")
        seen[fuse] = field(drain(s)[-1], g, "t")
    assert seen[True] == seen[False] == ([5] if first == "y" else [0])


# Memory spaces


def test_pumped_payloads_lie_on_the_host():
    plan = plan_for(graphs.chain(1))
    assert [(p.name, p.space) for p in stage(plan, "f0").ports] == [("x", HOST)]
    assert [(p.name, p.space) for p in stage(plan, "loss").ports] == [("f0", 0), ("label", HOST)]


def test_a_port_that_pumps_and_nodes_both_feed_lies_on_the_device():
    plan = plan_for(graphs.rnn())
    assert [(p.name, p.space) for p in stage(plan, "concat1").ports] == [("embed", 0), ("h", 0)]
    assert names(plan, "transfer") == ["feed h0→0"]


def test_a_pumped_wire_that_two_workers_use_stays_on_the_host():
    with ag.Graph() as g:
        x = ag.pump("x")
        for i in range(2):
            ag.sink(f"s{i}", ag.npt(f"f{i}", jnp.sin)(x))
    plan = plan_for(
        g,
        {"f0": 0, "s0": 0, "f1": 1, "s1": 1},
        (0, 1),
    )
    assert names(plan, "transfer") == []


def test_one_transfer_serves_all_consumers_on_the_other_side():
    homes = {
        "first": 0,
        "b0": 1,
        "b1": 1,
        "b2": 1,
        "add": 1,
        "loss": 1,
    }
    plan = plan_for(graphs.fan_out(), homes, (0, 1))
    assert names(plan, "transfer") == ["first→1"]
    (moved,) = [s for s in plan.stages if s.kind.is_transfer]
    assert moved.worker == 1
    assert moved.space == 1
    assert moved.ports[0].space == 0


def test_consumers_on_several_devices_get_a_transfer_each():
    homes = {
        "first": 0,
        "b0": 0,
        "b1": 1,
        "b2": 2,
        "add": 0,
        "loss": 0,
    }
    plan = plan_for(graphs.fan_out(), homes, (0, 1, 2))
    assert sorted(names(plan, "transfer")) == ["b1→0", "b2→0", "first→1", "first→2"]


def test_a_transfer_behind_a_cond_moves_only_what_goes_there():
    plan = plan_for(
        graphs.diamond(),
        {"first": 0, "even": 0, "odd": 1, "loss": 0},
        (0, 1),
    )
    assert sorted(names(plan, "transfer")) == ["cond1[1]→1", "odd→0"]


def test_workers_on_one_device_need_no_transfer():
    plan = plan_for(
        graphs.fan_out(),
        {
            "first": 0,
            "b0": 1,
            "b1": 2,
            "b2": 0,
            "add": 1,
            "loss": 2,
        },
        (0, 0, 0),
    )
    assert names(plan, "transfer") == []


# Groups


def test_a_group_lies_where_its_consumer_is():
    homes = {"row": 0, "total": 1, "out": 1, "loss": 1}
    plan = plan_for(graphs.grouping(), homes, (0, 1))
    back = stage(plan, "back")
    assert (back.worker, back.space) == (1, 1)
    assert stage(plan, "total").ports[0].space == 1
    assert names(plan, "transfer") == ["row→1"]


def test_a_group_of_pumped_members_lies_on_the_host():
    with ag.Graph() as g:
        x = ag.pump("x", fields=("i",))
        rows = ag.group(
            x,
            size=lambda s: np.full(len(s), 2),
            name="rows",
        )
        ag.sink(
            "sum",
            ag.reduce("total", jax.ops.segment_sum, rows),
        )
    plan = plan_for(g)
    assert stage(plan, "total").ports[0].space == HOST
    assert stage(plan, "rows").space == HOST
    assert names(plan, "transfer") == []


def test_a_group_of_pumped_and_computed_members_lies_on_the_device():
    with ag.Graph() as g:
        x = ag.pump("x", fields=("i",))
        y = ag.pump("y", fields=("i",))
        members = ag.phi(
            "both",
            x,
            ag.npt("f", jnp.sin)(y),
        )
        rows = ag.group(
            members,
            size=lambda s: np.full(len(s), 2),
            name="rows",
        )
        ag.sink(
            "sum",
            ag.reduce("total", jax.ops.segment_sum, rows),
        )
    plan = plan_for(g)
    assert stage(plan, "total").ports[0].space == 0
    assert names(plan, "transfer") == ["feed x→0"]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    "spaces",
    [(0,), (0, 0, 0), (0, 1, 2)],
)
@pytest.mark.parametrize(
    "graph",
    [
        graphs.rnn(),
        graphs.diamond(),
        graphs.fan_out(),
        graphs.grouping(),
        graphs.molecule(),
        graphs.two_outputs(),
    ],
)
def test_every_route_ends_where_the_payload_lies(graph, spaces, fuse):
    """No port ever gets a message from a memory space other than its own."""
    nodes = []
    for n in graph.nodes.values():
        if n.kind != "Pump":
            nodes.append(n.name)
    plan = plan_for(
        graph,
        {name: i % len(spaces) for i, name in enumerate(nodes)},
        spaces,
        fuse,
    )

    def leaves(targets, seen):
        for t in targets:
            if hasattr(t, "stage"):
                yield t
            elif id(t) not in seen:
                seen.add(id(t))
                for inner in t.targets:
                    yield from leaves(inner, seen)

    routes = [(HOST, route) for route in plan.pumps.values()]
    routes += [(s.space, route) for s in plan.stages for route in s.routes]
    for space, route in routes:
        for leaf in leaves(route, set()):
            target = plan.stages[leaf.stage]
            assert target.ports[leaf.port].space == space or (
                not target.kind.is_dispatched and leaf.port == 1
            ), target


# Who consumes what


def sole(plan):
    """The outputs whose messages are consumed exactly once, by a port that pays row by row."""
    return {s.name for s in plan.stages if any(s.written)}


def reached(targets):
    """The ports at the ends of a route through conds, phis and isus."""
    seen = set()
    found = []
    stack = [targets]
    while stack:
        for target in stack.pop():
            if not hasattr(target, "targets"):
                found.append(target)
            elif id(target) not in seen:
                seen.add(id(target))
                stack += target.targets
    return found


@pytest.mark.parametrize(
    ("graph", "outputs"),
    [
        (graphs.chain(2), {"f0", "f1"}),
        (graphs.diamond(), {"first", "even", "odd"}),  # cond and phi: a message goes one way
        (graphs.fan_out(2), {"b0", "b1", "add"}),  # not the first: two nodes consume it
        (graphs.flat(), {"each"}),  # not the first: its message is copied
        (graphs.rnn(), {"embed", "concat1", "linear1", "tanh", "linear2", "feed h0→0"}),
    ],
    ids=["chain", "diamond", "fan-out", "flatmap", "loop"],
)
def test_gradients_are_written_where_a_message_has_one_consumer(graph, outputs):
    plan = plan_for(graph, fuse=False)
    assert sole(plan) == outputs
    assert {s.name for s in plan.stages if any(s.sole)} == {
        plan.stages[leaf.stage].name
        for s in plan.stages
        if any(s.written)
        for r in s.routes
        for leaf in reached(r)
    }
