"""One contract for all node kinds, and what the builder functions promise beside it."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.laws import Engine, Schedule
from support.node_kinds import KINDS, ROW, D, build, square

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.nodes import infer
from ampjax.ir.ops.op_classes import ControlOp, PayloadOp
from ampjax.ir.ops.payload_nodes import Pump
from ampjax.plan.stage_kinds import SINK
from ampjax.testing import init_params, reference


def test_the_table_has_every_kind():
    payload = {*KINDS} - {op.kind for op in ControlOp.__subclasses__()} - {"Pump"}
    assert payload == {op.kind for op in PayloadOp.__subclasses__() if hasattr(op, "kind")} | {
        "PPT",
        "NPT",
        "Concat",
        "Split",
    }
    assert {op.kind for op in ControlOp.__subclasses__()} <= {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind):
    g, node = build(kind)
    _, types = KINDS[kind]
    assert tuple(wire.type for wire in node.outputs) == types
    assert [(wire.source, wire.port) for wire in node.outputs] == [
        (node, i) for i in range(len(types))
    ]
    assert g.nodes[node.name] is node
    assert list(g.walk()).count(node) == 1
    # Every wire knows its consumers, and they know it.
    for wire in node.outputs:
        assert wire.consumers and all(
            consumer.inputs[port] is wire for consumer, port in wire.consumers
        )
    for port, wire in enumerate(node.inputs):
        assert (node, port) in wire.consumers
        assert node.source_name(port) == wire.name
    # What it is: control moves states only; a payload node has a body or a function; parameters only at a PPT.
    assert node.is_control == isinstance(node.op, ControlOp)
    assert node.is_control + isinstance(node.op, PayloadOp) + isinstance(node.op, Pump) == 1
    assert node.has_params == (kind == "PPT")
    # Types are inferred once, and again the same.
    assert not infer(node)
    again = node.op.infer(
        node,
        tuple(wire.type for wire in node.inputs),
    )
    assert tuple(again) == types
    # It prints as a line, and describes itself the same way in a graph built anew.
    assert repr(node).startswith(f"{kind} `{node.name}`") and "0x" not in repr(node)
    assert repr(build(kind)[1]) == repr(node)
    assert type(node.op).__dataclass_params__.frozen


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_runs(kind):
    g, node = build(kind)
    rows = ag.messages(
        np.ones((3, D), np.float32),
        t=2,
    )
    instance = {
        "x": ag.messages(
            np.ones((1, D), np.float32),
            t=2,
        ),
        "rows": rows,
    }
    instance |= {
        "map": ag.Topology(
            ([0, 1, 2],) * 2,
            ([0, 1, 0],) * 2,
            2,
        ),
        "empty": np.zeros((0, D), np.float32),
    }
    if any(n.name == "unused" for n in g.nodes.values()):
        instance["map"] = ag.Topology(
            ([],),
            ([],),
            0,
        )
    instance = {name: value for name, value in instance.items() if name in g.pumps}
    got = reference(g, init_params(g), [instance])
    ports = {"Pump": 0, "Phi": 1}.get(
        kind,
        sum(not wire.type.topology for wire in node.inputs),
    )
    assert got.messages[node.name] == ports


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind not in ("Group", "Loss")],
)
def test_every_kind_sends_what_it_sends_in_the_oracle(kind):
    """The states that arrive at the sinks behind a node, for several messages; control alone."""
    g, _ = build(kind)
    rows = np.ones((3, D), np.float32)
    x = np.ones((1, D), np.float32)
    data = []
    for t in range(5):
        data.append(
            {
                "x": ag.messages(x, t=t),
                "rows": ag.messages(rows, t=t),
                "empty": np.zeros((0, D), np.float32),
            }
            | {
                "map": ag.Topology(
                    ([0, 1, 2],) * 2,
                    ([0, 1, 0],) * 2,
                    2,
                )
            }
        )
    if any(n.name == "unused" for n in g.nodes.values()):
        data = [instance | {"map": ag.Topology(([],), ([],), 0)} for instance in data]
    data = [
        {name: value for name, value in instance.items() if name in g.pumps} for instance in data
    ]
    want = Counter()
    got = Counter()
    for sink, arrived in reference(g, init_params(g), data).outputs.items():
        want.update((sink, *sorted(state.items())) for state, _ in arrived)
    for d in Engine(g, None, Schedule()).run(data, train=False).dispatches:
        names = ["instance", *d.stage.ports[0].type.fields]
        for state in (
            d.states[:, [g.layout.column(name) for name in names]].tolist()
            if d.stage.kind is SINK
            else []
        ):
            got[(d.stage.name, *sorted(zip(names, state, strict=True)))] += 1
    assert got and got == want


def test_a_wire_used_twice_is_a_bcast():
    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        ag.loss(
            "loss",
            lambda a, b: jnp.sum(a * b),
        )(
            x,
            ag.npt("double", lambda x: 2 * x)(x),
        )
    assert [(node.name, port) for node, port in x.consumers] == [("double", 0), ("loss", 0)]
    assert (
        reference(
            g,
            {},
            [{"x": np.ones(D, np.float32)}],
        ).loss
        == 2 * D
    )


def test_types_of_a_loop_are_found_when_the_graph_is_closed():
    with ag.Graph() as g:
        h = ag.phi("h")
        y = ag.ppt(
            "layer",
            amp.nn.Linear(D, D),
        )(h)
        assert y.type is None
        y = ag.isu(
            y,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(y, lambda s: s.t < 3)
        h.connect(
            ag.pump("x", (D,), fields=("t",)),
            more,
        )
        ag.sink("y", done)
    assert y.type == h.type == done.type == ROW
    assert g.layout.fields == ("t",)


def test_a_join_takes_the_state_of_port_0():
    with ag.Graph():
        x = ag.pump(
            "x",
            (D,),
            fields=("t", "n"),
        )
        label = ag.pump("label", (D,), fields=("t",))
        y = ag.npt(
            "add",
            lambda a, b: a + b,
            join=("t",),
        )(
            x,
            label,
        )
        ag.sink("y", y)
    assert y.type.fields == ("t", "n")


def test_ports_have_the_names_of_the_body_s_arguments():
    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        ag.sink(
            "y",
            ag.ppt(
                "gate",
                lambda p, left, right: left * right * p,
                params=jnp.ones(D),
            )(
                x,
                x,
            ),
        )
    node = g.nodes["gate"]
    assert [node.port_name(i) for i in range(2)] == ["left", "right"]


def test_automatic_names_are_free():
    with ag.Graph() as g:
        x = ag.pump("cond1", (D,))
        for wire in ag.cond(x, lambda s: s.instance > 0):
            ag.sink(f"end{wire.port}", wire)
        ag.sink("end", ag.concat(x, x))
    assert set(g.nodes) == {"cond1", "cond2", "end0", "end1", "concat1", "end"}


# Bodies.


def plain(p, x):
    return x @ p["w"]


BODIES = {
    "plain function, params": (
        plain,
        {"params": {"w": np.ones((D, 2), np.float32)}},
    ),
    "plain function, init": (
        plain,
        {"params": lambda key: {"w": jax.random.normal(key, (D, 2))}},
    ),
    "layer": (amp.nn.Linear(D, 2), {}),
    "nnx module": (
        nnx.Linear(D, 2, rngs=nnx.Rngs(0)),
        {},
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name):
    body, options = BODIES[name]
    with ag.Graph() as g:
        ag.loss("loss", square)(
            ag.ppt(
                "layer",
                body,
                **options,
            )(ag.pump("x", (D,)))
        )
    params = init_params(g)
    assert g.parameterised.keys() == params.keys() == {"layer"}
    x = np.arange(D, dtype=np.float32)
    got = reference(g, params, [{"x": x}])
    p = params["layer"]
    w = p["kernel"] if "kernel" in p else p["w"]
    np.testing.assert_allclose(
        got.loss,
        square(x @ w + p.get("b", p.get("bias", 0.0))),
        rtol=1e-6,
    )
    assert jax.tree.structure(got.grads["layer"]) == jax.tree.structure(p)


# Replicas.


def test_replicate_builds_copies_between_a_cond_per_input_and_a_phi():
    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        y = ag.pump("y", (D,))
        layer = ag.ppt(
            "gate",
            lambda p, a, b: p * a * b,
            params=jnp.ones(D),
            min_update_interval=7,
        )
        z = ag.replicate(layer, 3)(x, y)
        ag.sink("z", z)
    copies = []
    for n in g.nodes.values():
        if n.options.replica_of == "gate":
            copies.append(n)
    assert [n.name for n in copies] == ["gate/0", "gate/1", "gate/2"]
    assert {n.options.min_update_interval for n in copies} == {7}
    assert [n.name for n in g.nodes.values() if n.kind == "Cond"] == ["gate/route", "gate/route1"]
    assert z.source.kind == "Phi"
    one = np.ones(D, np.float32)
    got = reference(
        g,
        init_params(g),
        [{"x": i * one, "y": one} for i in range(5)],
    )
    assert got.rows == {"gate/0": 2, "gate/1": 2, "gate/2": 1}
    assert [state["instance"] for state, _ in got.outputs["z"]] == [
        int(z[0]) for _, z in got.outputs["z"]
    ]


def test_replicate_by_a_state_function():
    with ag.Graph() as g:
        x = ag.pump("x", (D,), fields=("t",))
        ag.sink(
            "y",
            ag.replicate(
                ag.ppt("layer", amp.nn.Linear(D, D)),
                2,
                route=lambda s: s.t % 2,
            )(x),
        )
    data = [
        {
            "x": ag.messages(
                np.zeros((3, D), np.float32),
                t=[1, 3, 4],
            )
        }
    ]
    assert reference(g, init_params(g), data).rows == {"layer/0": 1, "layer/1": 2}


def test_replicate_joins_each_output_of_its_own():
    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        both = ag.replicate(
            ag.ppt(
                "both",
                lambda p, x: (p * x, x - p),
                params=jnp.ones(D),
                outputs=2,
            ),
            2,
        )(x)
        for name, wire in zip(("times", "minus"), both, strict=True):
            ag.sink(name, wire)
    got = reference(
        g,
        {name: jnp.full(D, 3.0) for name in ("both/0", "both/1")},
        [{"x": np.full(D, 2.0, np.float32)}] * 3,
    )
    assert got.rows == {"both/0": 2, "both/1": 1}
    assert {name: {float(y[0]) for _, y in outputs} for name, outputs in got.outputs.items()} == {
        "times": {6},
        "minus": {-1},
    }


def parted(n, inner=1):
    """A loop with a loss and an output, `n` times."""

    def network(x, label):
        h = ag.phi("h")
        z = ag.replicate(
            ag.ppt(
                "times",
                lambda p, a: p * a,
                params=jnp.full(D, 0.5),
            ),
            inner,
        )(h)
        z = ag.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(z, lambda s: s.t < 3)
        h.connect(x, more)
        ag.loss(
            "far",
            lambda a, b: jnp.sum((a - b) ** 2),
        )(
            done,
            label,
        )
        ag.sink("inside", done)
        return done

    with ag.Graph() as g:
        fields = ("t",)
        x = ag.pump("x", (D,), fields=fields)
        label = ag.pump("label", (D,), fields=fields)
        ag.sink("y", ag.replicate(network, n)(x, label))
    return g


PARTED = [
    {
        "x": ag.messages(
            np.full((1, D), i, np.float32),
            t=i % 3,
        ),
        "label": ag.messages(
            np.ones((1, D), np.float32),
            t=3,
        ),
    }
    for i in range(7)
]


def test_copies_of_a_part_have_a_number_in_their_names_and_are_replicas():
    g = parted(2)
    assert {*g.parameterised} == {"times/0", "times/1"}
    options = {}
    for n in g.nodes.values():
        options[n.name] = (n.options.replica_of, n.part)
    assert options["times/1"] == ("times", "network/1") and options["far/0"] == ("far", "network/0")
    assert options["h/1"] == ("h", "network/1") and options["network/route"] == options[
        "network/join"
    ] == (None, None)
    assert {"isu1/0", "isu1/1", "cond1/0", "cond1/1", "network/route1"} <= {*g.nodes}


@pytest.mark.parametrize("inner", [1, 3])
def test_copies_of_a_part_compute_what_the_part_does(inner):
    """Loss, outputs and the sum of the copies' gradients, by the reference interpreter."""
    one = parted(1)
    g = parted(2, inner)
    params = {}
    for name in g.parameterised:
        params[name] = jnp.linspace(0.5, 1, D)
    got = reference(g, params, PARTED)
    want = reference(
        one,
        {"times": jnp.linspace(0.5, 1, D)},
        PARTED,
    )
    assert got.loss == pytest.approx(want.loss)
    np.testing.assert_allclose(
        sum(got.grads.values()),
        want.grads["times"],
        rtol=1e-5,
    )
    assert sum(got.rows.values()) == want.rows["times"]
    assert len(got.rows) == 2 * inner
    for sink in ("y", "inside"):
        rows = []
        for run in (got, want):
            rows.append({s["instance"]: np.asarray(y) for s, y in run.outputs[sink]})
        assert {*rows[0]} == {*rows[1]} == {*range(7)}
        assert all(np.array_equal(rows[0][i], rows[1][i]) for i in range(7))


def test_parts_of_one_name_get_numbers_and_topologies_are_not_routed():
    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        rows = ag.pump("rows", (D,), ragged=True)
        edges = ag.topology("edges")
        y = ag.replicate(
            lambda x: ag.npt("same", lambda x: x)(x),
            2,
        )(x)
        ag.sink(
            "y",
            ag.replicate(
                lambda x: ag.npt("again", lambda x: x)(x),
                2,
            )(y),
        )
        ag.sink(
            "z",
            ag.replicate(
                lambda r, e: ag.collect(
                    ag.distribute(r, e, 1),
                    e,
                ),
                2,
                name="over",
            )(rows, edges),
        )
    assert {"part/route", "part2/route", "over/route", "collect1/1"} <= {
        *g.nodes
    } and "over/route1" not in g.nodes
    data = {
        "x": np.ones(D, np.float32),
        "rows": np.ones((2, D), np.float32),
    }
    instances = [
        data
        | {
            "edges": ag.Topology(
                ([0, 1],),
                ([0, 0],),
                1,
            )
        }
    ] * 3
    got = reference(g, {}, instances).outputs
    assert [float(z[0][0]) for _, z in got["z"]] == [2.0] * 3
    assert len(got["y"]) == 3


def test_a_part_without_outputs_and_one_copy():
    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        assert (
            ag.replicate(
                lambda x: ag.loss("sum", jnp.sum)(x),
                2,
            )(x)
            is None
        )
        assert ag.replicate(tuple, 1)([x]) == (x,)
    assert {"sum/0", "sum/1"} <= {*g.nodes}


@pytest.mark.parametrize("text", ["tree", "mermaid", "dot"])
def test_every_kind_has_a_text(text):
    for kind in KINDS:
        g, node = build(kind)
        shown = {
            "tree": repr,
            "mermaid": lambda g: g.to_mermaid(),
            "dot": lambda g: g.to_dot(),
        }[text](g)
        assert node.name in shown
