"""Nodes that compute with one node's parameters: one gradient, one optimizer state, one count of gradient rows, one update."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chains, graphs
from support.effort import NIGHTLY, examples
from support.laws import Engine, Schedule, assert_gradients, assert_parity, frozen, schedules

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.parameters import ParameterStore
from ampjax.testing import init_params, reference

pytestmark = pytest.mark.users

DATA = graphs.tied_data([1, 3, 2, 5, 2])


def loss_by_hand(words, instance):
    h = jnp.zeros(words.shape[1])
    for token in instance["tokens"].payload:
        h = jnp.tanh(words[token] + 0.5 * h)
    return graphs.xent(words @ h, instance["label"])[0]


GRADIENT = jax.grad(loss_by_hand)


@settings(max_examples=examples(40))
@given(
    st.sampled_from([-2, -3] if NIGHTLY else [-2]),
    schedules(sizes=(1, 2)),
)
def test_any_graph_under_any_schedule(seed, schedule):
    assert_parity(seed, schedule)


@functools.cache
def wanted_of_the_tied_model():
    return reference(
        graphs.tied(),
        init_params(graphs.tied()),
        DATA,
        oracle="eager",
    )


@settings(max_examples=examples(24))
@given(
    schedules(sizes=(2,), rich=True),
    st.sampled_from(["current", "stashed"]),
)
def test_a_tied_embedding_has_the_gradient_of_the_tied_model(schedule, weights):
    graph = graphs.tied(weights=weights)
    params = init_params(graph)
    assert {*params} == {"embed"}
    engine = Engine(graph, params, schedule).run(DATA)
    want = sum(GRADIENT(params["embed"], instance) for instance in DATA)
    np.testing.assert_allclose(
        engine.gradients["embed"],
        want,
        rtol=1e-5,
        atol=1e-6,
    )
    assert engine.gradient_rows == {"embed": 13 + 5}
    assert_gradients(engine, wanted_of_the_tied_model())


@settings(max_examples=examples(12))
@given(
    schedules(
        sizes=(1, 4),
        mode="sync",
        min_update_interval=1,
    ),
    st.sampled_from(["sum", "mean"]),
)
def test_synchronous_training_is_optax_on_the_tied_model(schedule, gradient):
    tx = optax.adam(0.05, eps=1e-3)
    words = init_params(graphs.tied())["embed"]
    state = tx.init(words)
    schedule = replace(schedule, settings=replace(schedule.settings, gradient=gradient))
    engine = Engine(
        graphs.tied(),
        {"embed": words},
        schedule,
        tx,
    ).run(DATA)
    for instance in DATA:
        updates, state = tx.update(
            GRADIENT(words, instance), state, words
        )  # a sum and a mean over one instance
        words = optax.apply_updates(words, updates)
    np.testing.assert_allclose(
        engine.params["embed"],
        words,
        rtol=1e-5,
        atol=1e-6,
    )


@functools.cache
def beside():
    """Both nodes work on the same row: fused, each dispatch brings twice its rows."""
    with ag.Graph() as g:
        x = ag.ppt(
            "first",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x"))
        y = ag.ppt(
            "second",
            lambda p, x: jnp.sin(p * x),
            params_of="first",
        )(x)
        ag.loss("loss", graphs.square)(y, ag.pump("label"))
    return g


@pytest.mark.parametrize(
    "interval, fuse",
    [(8, True), (4, True), (8, False)],
)
def test_an_update_divides_by_the_rows_of_both_nodes(interval, fuse, monkeypatch):
    """Four instances at a time bring eight rows. Fused, each dispatch's kernel makes its update; unfused, they add up in accumulators."""
    apart = []
    monkeypatch.setattr(
        ParameterStore,
        "_update",
        lambda store, change, rows, of=ParameterStore._update: (
            apart.append(change),
            of(store, change, rows),
        ),
    )
    options = {"max_active_keys": 4, "min_admission": 4, "max_dispatch_size": 4, "fuse": fuse}
    schedule = Schedule(
        frozen(min_update_interval=interval, **options),
        costs=lambda d: 1,
    )
    engine = Engine(
        beside(),
        {"first": graphs.one()},
        schedule,
        optax.sgd(0.1),
    ).run(graphs.chain_data(12))
    assert [(update.node, update.count) for update in engine.updates()] == [("first", 8)] * 3
    assert len(apart) == (0 if fuse else 3)
    p = 1.5
    for start in range(0, 12, 4):
        xs = np.arange(start, start + 4, dtype=np.float32)
        p -= (
            0.1 / 8 * float(jax.grad(lambda p, xs=xs: jnp.sum((jnp.sin(p * p * xs) - 0.5) ** 2))(p))
        )
    np.testing.assert_allclose(engine.params["first"], p, rtol=1e-5)


def test_nothing_is_left_to_compile_after_warming_up():
    """Half an interval of rows makes an update, as both nodes' count: the kernel of that size makes it."""
    options = {
        "max_active_keys": 4,
        "min_admission": 4,
        "max_dispatch_size": 4,
        "min_update_interval": 8,
    }
    trainer = amp.Trainer(beside(), optax.sgd(0.1), **options)
    data = graphs.chain_data(12)
    trainer.warm_up(data, progress=False)
    assert [epoch.compilations for epoch in trainer.fit(data, epochs=1, progress=False).epochs] == [
        0
    ]


@functools.cache
def over_edges():
    """Both kinds of edges, and the nodes behind them, compute with one vector."""
    with ag.Graph() as g:
        rows = ag.pump("rows", (2,), ragged=True)
        edges = ag.topology("edges")
        wires = ag.distribute(rows, edges, 2)
        first = ag.ppt(
            "edge0",
            chains.scale,
            params=chains.one(),
        )(wires[0])
        second = ag.ppt(
            "edge1",
            lambda p, x: 2 * p * x,
            params_of="edge0",
        )(wires[1])
        new = ag.ppt("update", chains.update, params_of=first)(
            ag.collect([first, second], edges), rows
        )
        ag.loss("loss", lambda v: jnp.sum(v * v))(
            ag.reduce(
                "sum",
                jax.ops.segment_sum,
                new,
            )
        )
    return g


@pytest.mark.parametrize(
    "fuse",
    [True, False],
    ids=["a chain", "edge by edge"],
)
def test_edges_and_rows_of_one_chain(fuse):
    data = []
    for i in chains.odd_instances():
        data.append({k: v for k, v in i.items() if k in ("rows", "edges")})
    data = [{**i, "rows": np.asarray(i["rows"].payload)} for i in data]
    params = {"edge0": np.float32([0.7, -1.1])}
    engine = Engine(
        over_edges(),
        params,
        Schedule(frozen(fuse=fuse, max_active_keys=3)),
    ).run(data)
    assert any(stage.chain is not None for stage in engine.plan.stages) == fuse
    assert_gradients(engine, reference(over_edges(), params, data, oracle="eager"))


@functools.cache
def copied():
    """Each of two copies of a part has an owner and a node that shares with it; a node outside has what both begin with."""

    def part(x):
        x = ag.ppt("inner", graphs.times, params_of="outer")(x)
        x = ag.ppt(
            "first",
            graphs.times,
            params=graphs.one(),
        )(x)
        return ag.ppt(
            "second",
            lambda p, x: jnp.sin(p * x),
            params_of="first",
        )(x)

    with ag.Graph() as g:
        x = ag.ppt(
            "outer",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x"))
        ag.loss("loss", graphs.square)(
            ag.replicate(part, 2)(x),
            ag.pump("label"),
        )
    return g


@settings(max_examples=examples(20))
@given(schedules(sizes=(1, 4)))
def test_copies_of_a_part_share_within_each_copy(schedule):
    graph = copied()
    data = graphs.chain_data(5)
    assert {n.name: n.params_name for n in graph.nodes.values() if n.has_params} == {
        **{"outer": "outer", "inner/0": "outer", "inner/1": "outer"},
        **{
            "first/0": "first/0",
            "second/0": "first/0",
            "first/1": "first/1",
            "second/1": "first/1",
        },
    }
    params = {
        "outer": np.float32(1.1),
        "first/0": np.float32(0.5),
        "first/1": np.float32(-0.7),
    }
    engine = Engine(graph, params, schedule).run(data)
    assert_gradients(engine, reference(graph, params, data, oracle="eager"))
    assert engine.gradient_rows == {"outer": 10, "first/0": 6, "first/1": 4}
