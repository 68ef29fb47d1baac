"""Affinity: the rules as laws over random graphs, and every mistake's message."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.plan.affinity import assign, heavy_neighbours, list_hosted
from ampjax.plan.device_packing import DeviceMemory
from experiments.by_hand.rnn_graph import list_reduction_rnn

LIGHT, HEAVY, BOTH, LOOSE = range(4)


def _add(params, *xs):
    return params + sum(xs)


def _same(s):
    return s


def heavy(name, **options):
    return ag.ppt(
        name,
        _add,
        params=np.zeros(1, np.float32),
        **options,
    )


def random_graph(steps, pins=()):
    """A graph from `(kind, source)` steps: each adds a node that reads an earlier wire; what is left open ends in sinks."""
    with ag.Graph() as graph:
        wires = [ag.pump("x", shape=(1,))]
        for i, (kind, source) in enumerate(steps):
            wire = wires[source % len(wires)]
            worker = dict(pins).get(i)
            if kind == LIGHT:
                wires.append(ag.npt(f"n{i}", lambda x: x, worker=worker)(wire))
            elif kind == HEAVY:
                wires.append(heavy(f"n{i}", worker=worker)(wire))
            elif kind == BOTH:
                wires.append(heavy(f"n{i}", worker=worker)(wire, wires[-1]))
            else:
                wires.append(ag.isu(wire, _same, _same, name=f"n{i}"))
        for i, wire in enumerate(wires):
            if not wire.consumers:
                ag.sink(f"sink{i}", wire)
    return graph


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)
WORKERS = st.integers(1, 5)


def rnn(replicas=1):
    with ag.Graph() as graph:
        tokens = ag.pump("tokens", dtype="int32", fields=("t", "length"))
        h0 = ag.pump(
            "h0",
            shape=(4,),
            fields=("t", "length"),
        )
        h = ag.phi("h")
        x = ag.ppt(
            "embed",
            amp.nn.Embed(5, 4),
        )(tokens)
        linear = ag.ppt("linear1", amp.nn.Linear(8, 4))
        pre = ag.concat(x, h, name="concat")
        if replicas == 1:
            pre = linear(pre)
        else:
            pre = ag.replicate(linear, replicas)(pre)
        z = ag.npt("relu", lambda x: x)(pre)
        z = ag.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
            name="step",
        )
        more, done = ag.cond(
            z,
            lambda s: s.t < s.length,
        )
        h.connect(h0, more)
        ag.loss("loss", lambda y: y.sum())(
            ag.ppt(
                "linear2",
                amp.nn.Linear(4, 2),
            )(done)
        )
    return graph


# ---- laws ------------------------------------------------------------------------------------------------------------


@given(
    STEPS,
    WORKERS,
    st.sampled_from(["default", "paper", "coloured"]),
    st.integers(0, 3),
    st.integers(1, 3),
)
@settings(max_examples=60)
def test_every_hosted_node_gets_one_worker(steps, workers, rule, seed, hops):
    graph = random_graph(steps)
    placed = assign(graph, workers, rule, seed, hops)
    assert list(placed) == [n.name for n in list_hosted(graph)]
    assert not any(
        graph.nodes[name].is_control or graph.nodes[name].kind == "Pump" for name in placed
    )
    assert all(type(w) is int and 0 <= w < workers for w in placed.values())


@given(STEPS, WORKERS, st.sampled_from(["default", "paper"]))
@settings(max_examples=60)
def test_heavy_node_h_is_on_worker_h_mod_w(steps, workers, rule):
    graph = random_graph(steps)
    placed = assign(graph, workers, rule)
    assert [placed[name] for name in graph.parameterised] == [
        h % workers for h in range(len(graph.parameterised))
    ]


@given(STEPS, WORKERS, st.integers(0, 5))
@settings(max_examples=60)
def test_paper_deals_light_nodes_to_workers_without_heavy_ones(steps, workers, seed):
    graph = random_graph(steps)
    placed = assign(graph, workers, "paper", seed)
    busy = {placed[name] for name in graph.parameterised}
    light = [placed[name] for name in placed if name not in graph.parameterised]
    assert len(busy) == workers or not busy & set(light)


def sharing(worker=None, *, of_owner=None):
    """Three heavy nodes and one that has the second one's parameters, and perhaps a worker of its own."""
    with ag.Graph() as graph:
        x = ag.pump("x", shape=(1,))
        for name in ("a", "b", "c"):
            x = heavy(name, worker=of_owner if name == "b" else None)(x)
        ag.sink(
            "end",
            ag.ppt("d", _add, params_of="b", worker=worker)(x),
        )
    return graph


@pytest.mark.parametrize("rule", ["default", "paper", "coloured"])
@pytest.mark.parametrize(
    "pins",
    [(None, None), (2, None), (None, 2), (2, 2)],
)
def test_nodes_that_share_parameters_share_a_worker(rule, pins):
    graph = sharing(pins[0], of_owner=pins[1])
    for memory in (
        None,
        DeviceMemory(
            10,
            {"a": 6, "b": 6, "c": 6},
            (0, 1, 2),
        ),
    ):
        placed = assign(graph, 3, rule, memory=memory)
        assert placed["d"] == placed["b"]
        assert pins == (None, None) or placed["b"] == 2
        assert sorted(placed[name] for name in ("a", "b", "c")) == [0, 1, 2] or pins != (None, None)
    assert heavy_neighbours(graph).keys() == {"a", "b", "c"}


def test_a_map_must_not_part_nodes_that_share_parameters():
    homes = {
        "a": 0,
        "b": 1,
        "c": 0,
        "d": 0,
        "end": 0,
    }
    text = r"affinity map, node `d`: expected worker 1, that of `b`, whose parameters it shares, got worker 0\. Put the two on one worker\."
    with pytest.raises(SettingsError, match=text):
        assign(sharing(), 2, homes)
    assert (
        assign(
            sharing(),
            2,
            homes | {"d": 1},
        )["d"]
        == 1
    )


def test_paper_light_nodes_spread_over_the_rest_and_depend_on_the_seed():
    graph = random_graph([(HEAVY, 0)] + [(LIGHT, 0)] * 30)
    maps = []
    for seed in range(3):
        maps.append(assign(graph, 4, "paper", seed))
    assert all(set(Counter(m.values())) == {0, 1, 2, 3} for m in maps)
    assert maps[0] != maps[1] != maps[2]


@pytest.mark.nightly
@given(STEPS, WORKERS, st.integers(1, 3))
@settings(max_examples=100)
def test_coloured_neighbours_differ_whenever_greedy_can(steps, workers, hops):
    graph = random_graph(steps)
    placed = assign(graph, workers, "coloured", hops=hops)
    near = heavy_neighbours(graph, hops)
    done: list[str] = []
    for name in near:
        taken = {placed[other] for other in near[name] if other in done}
        assert placed[name] not in taken or len(taken) == workers
        done.append(name)
    if all(len(others) < workers for others in near.values()):
        assert all(placed[name] != placed[other] for name in near for other in near[name])


@pytest.mark.nightly
@given(STEPS, st.integers(1, 4))
@settings(max_examples=60)
def test_neighbours_are_those_within_k_hops(steps, hops):
    """Against closures of adjacency matrices: first over control nodes, along the wires; then over light ones, either way."""
    graph = random_graph(steps)
    nodes = []
    for n in graph.nodes.values():
        if n.kind != "Pump":
            nodes.append(n)
    number = {n.name: i for i, n in enumerate(nodes)}
    wires = np.zeros((len(nodes), len(nodes)), bool)
    for node in nodes:
        for wire in node.outputs:
            wires[number[node.name], [number[c.name] for c, _ in wire.consumers]] = True
    control = np.array([n.is_control for n in nodes])
    heavy_ = np.array([n.has_params for n in nodes])
    payload = through(wires, control) & ~control & ~control[:, None]
    one_hop = through(payload | payload.T, ~heavy_) & heavy_ & heavy_[:, None]
    within = (
        np.linalg.matrix_power(
            (one_hop | np.eye(len(nodes), dtype=bool)).astype(float),
            hops,
        )
        > 0
    )
    near = heavy_neighbours(graph, hops)
    assert near == {
        a: [b for b in near if b != a and within[number[a], number[b]]] for a in graph.parameterised
    }


def through(edges, allowed):
    """Paths of any length whose inner nodes are allowed."""
    paths = edges
    for _ in edges:
        paths = edges | ((edges & allowed).astype(int) @ paths > 0)
    return paths


@given(
    STEPS,
    WORKERS,
    st.dictionaries(
        st.integers(0, 11),
        st.integers(0, 4),
        max_size=4,
    ),
    st.sampled_from(["default", "paper", "coloured"]),
)
@settings(max_examples=60)
def test_a_nodes_own_worker_wins(steps, workers, pins, rule):
    pins = {i: w % workers for i, w in pins.items() if i < len(steps) and steps[i][0] != LOOSE}
    placed = assign(
        random_graph(steps, tuple(pins.items())),
        workers,
        rule,
    )
    assert {f"n{i}": w for i, w in pins.items()}.items() <= placed.items()


def all_rules():
    graph = random_graph([(i % 4, 3 * i) for i in range(40)])
    result = []
    for rule in ("default", "paper", "coloured"):
        result.append(
            list(
                assign(
                    graph,
                    5,
                    rule,
                    seed=3,
                    hops=2,
                ).items()
            )
        )
    return result


@pytest.mark.nightly
@pytest.mark.slow
def test_the_same_in_every_process():
    """Names hash differently from process to process; the maps must not notice."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_affinity as t; print(t.all_rules())"
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "JAX_PLATFORMS": "cpu"}
    there = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert there.stdout == f"{all_rules()}\n", there.stderr


# ---- the default rule ------------------------------------------------------------------------------------------------


def test_light_nodes_join_their_consumer_else_their_producer():
    placed = assign(rnn(), 3)
    assert placed == {"embed": 0, "linear1": 1, "concat": 1, "relu": 1, "linear2": 2, "loss": 2}


def test_a_chain_of_light_nodes_lands_on_one_worker():
    with ag.Graph() as graph:
        a = heavy("a")(ag.pump("x", shape=(1,)))
        b = ag.npt("b", lambda x: x)(a)
        c = ag.npt("c", lambda x: x)(b)
        d = heavy("d")(c)
        e = ag.npt("e", lambda x: x)(d)
        ag.sink(
            "f",
            ag.npt("g", lambda x: x)(e),
        )
    assert assign(graph, 2) == {
        "a": 0,
        "b": 1,
        "c": 1,
        "d": 1,
        "e": 1,
        "g": 1,
        "f": 1,
    }


def test_light_nodes_that_meet_heavy_ones_through_control_only_follow_them():
    with ag.Graph() as graph:
        heavy0 = heavy("a")(ag.pump("x", shape=(1,)))
        y = ag.npt("y", lambda x: x)(
            ag.isu(
                heavy("b")(heavy0),
                _same,
                _same,
            )
        )
        ag.sink("s", ag.isu(y, _same, _same))
    assert assign(graph, 2) == {"a": 0, "b": 1, "y": 1, "s": 1}


def test_without_heavy_nodes_connected_pieces_are_spread():
    with ag.Graph() as graph:
        for i in range(3):
            ag.sink(
                f"s{i}",
                ag.npt(
                    f"y{i}",
                    lambda x: x,
                )(ag.pump(f"x{i}", shape=(1,))),
            )
    assert assign(graph, 3) == {"y0": 0, "s0": 0, "y1": 1, "s1": 1, "y2": 2, "s2": 2}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_copies_of_a_part_stay_together(workers):
    """Each copy of the network counts as one heavy node, its light nodes and its loss included."""
    placed = assign(list_reduction_rnn(4, copies=3), workers)
    assert (
        placed == {name: int(name.split("/")[1]) % workers for name in placed} and len(placed) == 18
    )


def test_light_nodes_of_a_copy_follow_its_heavy_ones():
    """Though what consumes them, or feeds them, is outside, on a worker of its own."""

    def part(x):
        h = ag.phi("h")
        light = ag.npt("light", lambda x: x)(h)
        back, on = ag.cond(light, lambda s: s.t < 3)
        h.connect(
            x,
            ag.isu(heavy("b")(back), _later, _earlier),
        )
        ag.loss("aux", lambda x: x.sum())(x)
        return on

    with ag.Graph() as graph:
        before = heavy("pre")(
            ag.pump(
                "x",
                shape=(1,),
                fields=("t",),
            )
        )
        ag.sink(
            "y",
            heavy("out")(ag.replicate(part, 2)(before)),
        )
    placed = assign(graph, 4)
    assert [placed[f"{name}/0"] for name in ("b", "light", "aux")] == [1, 1, 1]
    assert [placed[f"{name}/1"] for name in ("b", "light", "aux")] == [2, 2, 2]


def _later(s):
    return s.replace(t=s.t + 1)


def _earlier(s):
    return s.replace(t=s.t - 1)


@pytest.mark.parametrize("rule", ["default", "paper", "coloured"])
def test_replicas_are_on_different_workers(rule):
    placed = assign(rnn(replicas=4), 4, rule)
    assert sorted(placed[f"linear1/{i}"] for i in range(4)) == [0, 1, 2, 3]


def test_the_default_puts_replicas_on_successive_workers():
    placed = assign(rnn(replicas=4), 4)
    assert [placed[f"linear1/{i}"] for i in range(4)] == [1, 2, 3, 0]


def test_hops_widen_the_colouring():
    with ag.Graph() as graph:
        wire = ag.pump("x", shape=(1,))
        for i in range(4):
            wire = heavy(f"h{i}")(wire)
        ag.sink("s", wire)
    assert [assign(graph, 4, "coloured", hops=1)[f"h{i}"] for i in range(4)] == [0, 1, 2, 3]
    assert [assign(graph, 2, "coloured", hops=1)[f"h{i}"] for i in range(4)] == [0, 1, 0, 1]
    assert heavy_neighbours(graph, 2) == {
        "h0": ["h1", "h2"],
        "h1": ["h0", "h2", "h3"],
        "h2": ["h0", "h1", "h3"],
        "h3": ["h1", "h2"],
    }


# ---- user maps and mistakes ------------------------------------------------------------------------------------------


def test_a_users_map_and_function():
    graph = rnn()
    by_hand = {n.name: 1 for n in list_hosted(graph)} | {"embed": np.int64(0)}
    assert assign(graph, 2, by_hand) == by_hand
    assert assign(graph, 2, lambda g, w: {n.name: w - 1 for n in list_hosted(g)}) == {
        n.name: 1 for n in list_hosted(graph)
    }


def test_a_map_may_leave_out_nodes_with_their_own_worker():
    graph = random_graph(
        [(HEAVY, 0), (HEAVY, 1)],
        pins=((0, 1),),
    )
    assert (
        assign(graph, 2, {"n1": 0, "sink2": 0, "n0": 0})
        == assign(graph, 2, {"n1": 0, "sink2": 0})
        == {"n0": 1, "n1": 0, "sink2": 0}
    )


ALL = {"n0": 0, "n1": 0, "sink2": 0}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"workers": 0}, "workers: expected an integer of at least 1, got 0."),
        ({"workers": 1.5}, "workers: expected an integer of at least 1, got 1.5."),
        ({"workers": True}, "got True."),
        ({"hops": 0}, "hops: expected an integer of at least 1, got 0."),
        ({"seed": -1}, "seed: expected an integer of at least 0, got -1."),
        (
            {"rule": "random"},
            "affinity: expected one of ('default', 'paper', 'coloured'), a mapping or a function, got 'random'.",
        ),
        (
            {"rule": {**ALL, "linear": 0}},
            "affinity map: expected names of nodes that workers host, got `linear`.",
        ),
        ({"rule": {**ALL, "x": 0}}, "got `x`. Pumps and control nodes have no worker"),
        (
            {"rule": {"n0": 0, "n1": 0}},
            "affinity map: expected a worker for every payload node, got none for `sink2`.",
        ),
        (
            {"rule": {**ALL, "n1": 2}},
            "affinity map, node `n1`: expected a worker in [0, 2), got 2.",
        ),
        ({"rule": {**ALL, "n1": -1}}, "got -1."),
        ({"rule": {**ALL, "n1": "gpu"}}, "got 'gpu'."),
        ({"rule": lambda g, w: {}}, "got none for `n0`."),
        ({"rule": lambda g, w: 3}, "affinity: expected one of"),
    ],
)
def test_mistakes(arguments, text):
    graph = random_graph([(HEAVY, 0), (LIGHT, 1)])
    with pytest.raises(SettingsError, match=re.escape(text)):
        assign(graph, **{"workers": 2, **arguments})


def test_a_nodes_own_worker_must_exist():
    graph = random_graph(
        [(HEAVY, 0)],
        pins=((0, 7),),
    )
    with pytest.raises(
        SettingsError, match=re.escape("node `n0`, worker: expected a worker in [0, 2), got 7.")
    ):
        assign(graph, 2)
