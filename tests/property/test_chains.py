"""Chains in one kernel: the laws of gradients, padding, rows and determinism, on random graphs of edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chains
from support.effort import examples
from support.laws import (
    Engine,
    Schedule,
    assert_gradients,
    assert_parity,
    frozen,
    replayed,
    schedules,
)

import ampjax as amp
import ampjax.graphs as ag
from ampjax.plan.stage_kinds import EDGES
from ampjax.testing import reference

pytestmark = pytest.mark.users

FUSED = "out+edge0+edge1+in+update"


@st.composite
def data(draw):
    """One to six graphs with up to six rows and nine edges; most of the rows and edges may be missing."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = draw(
        st.lists(
            st.tuples(
                st.integers(0, 6),
                st.integers(0, 9),
            ),
            min_size=1,
            max_size=6,
        )
    )
    return [chains.instance(rng, *shape) for shape in shapes]


@functools.cache
def start(graph):
    rng = np.random.default_rng(3)
    result = {}
    for node in graph.parameterised:
        result[node] = rng.uniform(0.5, 1.5, chains.FEATURES).astype(np.float32)
    return result


def check(graph, instances, schedule, fused=FUSED):
    engine = Engine(graph, start(graph), schedule).run(instances)
    if schedule.settings.workers == 1:
        assert fused in engine.scheduler.counts.read().stages
    assert_gradients(engine, reference(graph, start(graph), instances))
    return engine


@pytest.mark.parametrize("seed", [11])
def test_random_graphs_with_chains(seed):
    engine = assert_parity(
        seed, Schedule(frozen(fuse=True, max_active_keys=3, max_dispatch_size=16))
    )
    assert any(stage.kind is EDGES for stage in engine.plan.stages)


# A dispatch of graphs is padded to 16 rows at least: all these share two kernels.
fused = schedules(sizes=(3, 16), fuse=True)


@settings(max_examples=examples(6))
@given(data(), fused)
def test_gradients_are_those_of_the_composed_function(instances, schedule):
    with replayed("test_chains.check", "propagation()", instances, schedule):
        check(chains.propagation(), instances, schedule)


@pytest.mark.first_case
@pytest.mark.parametrize("weights", ["current", "stashed"])
def test_odd_graphs(weights):
    check(
        chains.propagation(),
        chains.odd_instances(),
        Schedule(frozen(fuse=True, weights=weights, max_active_keys=7)),
    )


def test_a_message_larger_than_a_dispatch_may_be():
    check(
        chains.propagation(),
        chains.odd_instances(),
        Schedule(frozen(fuse=True, max_dispatch_size=1)),
    )


def faint(p, x):
    return 0.01 * x * p


def test_edges_that_no_sample_has_shown_take_the_next_size():
    """The first dispatch, without edges, says that there are few; then comes a row with a hundred edges to itself.

    What edges carry is faint, so that their sum is where `tanh` still has a slope.
    """
    crowd = [
        chains.instance(np.random.default_rng(0), 2, 0),
        chains.instance(np.random.default_rng(1), 2, 100),
    ]
    check(
        chains.propagation(edge=faint),
        crowd,
        Schedule(frozen(fuse=True, max_active_keys=1)),
    )


def predictions(size):
    instances = chains.odd_instances()
    engine = Engine(
        chains.propagation(),
        start(chains.propagation()),
        Schedule(frozen(fuse=True, max_dispatch_size=size, max_active_keys=7)),
    )
    engine.run(instances, train=False)
    found = {}
    for a in engine.arrived:
        found.update(
            zip(
                a.states[:, 1].tolist(),
                np.asarray(a.rows)[: a.n_rows].tolist(),
                strict=True,
            )
        )
    return found


def test_rows_are_the_same_bit_by_bit_at_any_dispatch_size():
    assert predictions(64) == predictions(1) and len(predictions(1)) == 7


def shaken(p, x, key):
    """Half of the elements at random in training, else all."""
    if key is None:
        return x * p
    return x * p * jax.random.bernoulli(key, 0.5, x.shape)


@functools.cache
def random_chain(on_edges=True):
    if on_edges:
        edge = shaken
        options = {"rng": True}
    else:
        edge = chains.scale
        options = {}
    with ag.Graph() as g:
        rows = ag.pump(
            "rows",
            (2,),
            fields=("t",),
            ragged=True,
        )
        edges = ag.topology("edges")
        label = ag.pump("label", (2,))
        h = ag.ppt(
            "encode",
            chains.scale,
            params=chains.one(),
        )(rows)
        wires = ag.distribute(h, edges, 2, name="out")
        sent = []
        for k, w in enumerate(wires):
            sent.append(
                ag.ppt(
                    f"edge{k}",
                    edge,
                    params=chains.one(),
                    **options,
                )(w)
            )
        a = ag.ppt(
            "update",
            shaken,
            params=chains.one(),
            rng=True,
        )(ag.collect(sent, edges, name="in"))
        total = ag.reduce("sum", jax.ops.segment_sum, a)
        ag.loss(
            "loss",
            lambda v, y: jnp.sum((v - y) ** 2),
            join=("instance",),
        )(
            total,
            label,
        )
    return g


@pytest.mark.nightly
def test_rows_may_be_random_where_edges_are_not():
    """There are more edges then than rows that are sent, and a number for each of them that nobody reads."""
    crowd = [
        chains.instance(
            np.random.default_rng(0),
            4,
            60,
        )
    ]
    apart, together = (
        Engine(
            random_chain(False),
            start(random_chain(False)),
            Schedule(frozen(fuse=fuse, max_active_keys=1)),
        ).run(crowd)
        for fuse in (False, True)
    )
    assert FUSED in together.scheduler.counts.read().stages
    np.testing.assert_allclose(together.loss, apart.loss, rtol=1e-6)
    for node, gradient in apart.gradients.items():
        np.testing.assert_allclose(
            together.gradients[node],
            gradient,
            rtol=1e-5,
            atol=1e-6,
        )


def test_random_bodies_have_the_keys_that_they_have_apart():
    def run(fuse):
        schedule = Schedule(frozen(fuse=fuse, max_dispatch_size=16, max_active_keys=3))
        return Engine(
            random_chain(),
            start(random_chain()),
            schedule,
        ).run(chains.odd_instances())

    apart = run(False)
    together = run(True)
    assert FUSED in together.scheduler.counts.read().stages
    assert together.loss == pytest.approx(apart.loss, rel=1e-5)
    for node, grad in apart.gradients.items():
        assert np.abs(grad - together.gradients[node]).max() <= 1e-5 * np.abs(grad).max()


def root(p, x):
    """Its derivative with respect to both is infinite at zero."""
    return jnp.sqrt(p * x)


@functools.cache
def poisonous():
    """Square roots of what is collected: rows without any edge, and padding, would make NaN of every gradient."""
    with ag.Graph() as g:
        rows = ag.pump(
            "rows",
            (2,),
            fields=("t",),
            ragged=True,
        )
        edges = ag.topology("edges")
        label = ag.pump("label", (2,))
        h = ag.npt("positive", lambda x: 0.5 + x * x)(
            ag.ppt(
                "encode",
                chains.scale,
                params=chains.one(),
            )(rows)
        )
        wires = ag.distribute(h, edges, 2, name="out")
        sent = []
        for k, w in enumerate(wires):
            sent.append(
                ag.ppt(
                    f"edge{k}",
                    chains.scale,
                    params=chains.one(),
                )(w)
            )
        a = ag.ppt(
            "update",
            root,
            params=chains.one(),
        )(ag.collect(sent, edges, name="in"))
        total = ag.reduce("sum", jax.ops.segment_sum, a)
        ag.loss(
            "loss",
            lambda v, y: jnp.sum((v - y) ** 2),
            join=("instance",),
        )(
            total,
            label,
        )
    return g


@pytest.mark.parametrize("size", [3, 16])
def test_padding_poisons_nothing(size):
    rng = np.random.default_rng(0)
    rings = []
    for n in (3, 5, 2):
        rings.append(chains.instance(rng, n, 0))
    for ring in rings:
        nodes = np.arange(ring["edges"].n_rows)
        ring["edges"] = ag.Topology.from_edges(
            nodes,
            np.roll(nodes, 1),
            0 * nodes,
            len(nodes),
            2,
        )
    check(
        poisonous(),
        rings,
        Schedule(frozen(fuse=True, max_dispatch_size=size, max_active_keys=3)),
    )


@pytest.mark.nightly
def test_nothing_is_compiled_in_an_epoch():
    options = {
        "max_active_keys": 3,
        "max_dispatch_size": 16,
        "min_update_interval": 4,
        "check": True,
        "compile_ahead": True,
    }
    trainer = amp.Trainer(chains.propagation(), **options)
    history = trainer.fit(chains.odd_instances(), epochs=2, progress=False)
    assert any(stage.kind is EDGES for stage in trainer.plan.stages)
    assert [epoch.compilations for epoch in history.epochs] == [0, 0]
