"""Kernels do the same whether dispatches are decided one by one or several ahead: the parameters are the same bit by bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import chains, graphs
from support.engines import engine
from support.schedules import Scheduled, admit

import ampjax.graphs as ag
from ampjax.engine.make_launches import Launches
from ampjax.ir.instances import InstanceList
from ampjax.plan.row_seeds import RowSeeds


def shaken(p, x, key):
    if key is None:
        return x * p
    return x * p * (1 + jax.random.uniform(key, x.shape))


@functools.cache
def random_bodies():
    """Random bodies shake rows, then what these send along edges, then the sum of it."""
    with ag.Graph() as g:
        rows = ag.pump(
            "rows",
            (chains.FEATURES,),
            fields=("t",),
            ragged=True,
        )
        edges = ag.topology("edges")
        label = ag.pump("label", (chains.FEATURES,))
        body = functools.partial(
            ag.ppt,
            params=chains.one(),
            rng=True,
        )
        wires = ag.distribute(
            body("rows_of", shaken)(rows),
            edges,
            2,
            name="out",
        )
        a = ag.collect(
            [body(f"edge{k}", shaken)(wire) for k, wire in enumerate(wires)],
            edges,
            name="in",
        )
        total = ag.reduce(
            "sum",
            jax.ops.segment_sum,
            body("of_sums", shaken)(a),
        )
        ag.loss(
            "loss",
            lambda v, y: jnp.sum((v - y) ** 2),
            join=("instance",),
        )(
            total,
            label,
        )
    return g


def edge_data():
    result = []
    for k, n in enumerate((4, 2, 5)):
        result.append(
            chains.instance(
                np.random.default_rng(k),
                n,
                3 * n,
                2,
            )
        )
    return result


CASES = {
    "chain": (graphs.chain, graphs.chain_data(9), {}),
    "rnn": (
        graphs.rnn,
        graphs.rnn_data([3, 1, 4, 1, 5, 2]),
        {},
    ),
    "flatmap": (
        graphs.flat,
        [graphs.flat_instance(n) for n in (2, 1, 3, 2)],
        {},
    ),
    "group": (
        graphs.grouping,
        [graphs.grouping_instance(n) for n in (2, 0, 3)],
        {},
    ),
    "stashed": (
        graphs.rnn,
        graphs.rnn_data([3, 1, 4, 1, 5, 2]),
        {"stashed": ("embed", "linear1")},
    ),
    "random": (random_bodies, edge_data(), {}),
    "random, unfused": (random_bodies, edge_data(), {"fuse": False}),
}


class Fed(Scheduled):
    """A scheduler over a data set; payloads of what is admitted go to an executor."""

    def __init__(self, plan, settings, data, executor):
        super().__init__(plan, settings, data)
        self._executor = executor

    def admit(self, ids):
        super().admit(ids)
        self._executor.feed(self.feeds)


def run(fed, n, ahead):
    """Everything, several ahead; each launch is issued before more is admitted. Says how many were decided at once at most."""
    s = fed.scheduler
    launch_of = Launches(fed.scheduler, RowSeeds(2))
    left = np.arange(n)
    moved = True
    most = 0
    while moved:
        left, moved = admit(fed, left)
        found = s.ahead(0, ahead)
        for dispatch in found:
            fed._executor.issue([launch_of(dispatch)])
        moved = moved or bool(found)
        most = max(most, len(found))
    assert s.idle
    return most


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly)
        if name in ("random, unfused", "rnn")
        else name
        for name in CASES
    ],
)
def test_parameters_are_the_same_bit_by_bit(name):
    make, data, options = CASES[name]
    graph = make()
    settings = {
        "interval": 3,
        "tx": optax.adam(0.05),
        "max_active_keys": 4,
        "max_dispatch_size": 4,
        "capacity": 4,
    }
    one, several = (engine(graph, seed=2, **settings, **options) for _ in range(2))
    start = jax.tree.map(np.array, several.executor.store.params)
    one.wall(data)
    ragged = [name for name, node in graph.pumps.items() if node.op.type.ragged]
    fed = Fed(
        several.plan, several.scheduler.settings, InstanceList(data, ragged), several.executor
    )
    most = run(fed, len(data), 16)
    assert (most > 1) == (name != "chain")  # which is one stage, so each dispatch ends instances
    assert (
        fed.scheduler.updates.versions == one.scheduler.updates.versions
        and sum(fed.scheduler.updates.versions.values()) > 1
    )
    params = several.executor.store.params
    jax.tree.map(
        np.testing.assert_array_equal,
        params,
        one.executor.store.params,
    )
    moved = jax.tree.map(
        lambda a, b: not np.array_equal(a, b),
        start,
        jax.tree.map(np.array, params),
    )
    assert all(jax.tree.leaves(moved))
    several.n_run[True] = len(data)
    assert several.metrics() == one.metrics()
    assert not several.executor.store.stash
