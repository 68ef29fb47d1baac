"""A node whose parameters are a table in host memory is the node that has them on its device: gradients, updates, versions."""

import functools
from dataclasses import asdict, replace

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import table_models as models
from support.effort import examples
from support.laws import NEVER, Costs, schedules

import ampjax as amp
from ampjax.testing import reference

pytestmark = pytest.mark.users

DATA = models.data(8)
N_ROWS = sum(len(instance["tag"].payload) for instance in DATA)
OPTIMIZERS = {
    "sgd": (optax.sgd(0.3), "lazy"),
    "adagrad": (optax.adagrad(0.3), "lazy"),
    "adam": (optax.adam(0.05, eps=1e-3), "faithful"),  # it moves rows without gradients, too
}


@functools.cache
def wanted():
    return reference(
        models.dense(),
        models.start(),
        DATA,
        oracle="eager",
    )


def trainer_of(graph, schedule, tx=None, **changed):
    params = {}
    for node, value in models.start().items():
        if graph.nodes[node].table is None:
            params[node] = value
    return amp.Trainer(
        graph,
        tx,
        params=params,
        settings=replace(schedule.settings, arena_rows=None, compile_ahead=False, **changed),
        devices=jax.devices()[: schedule.devices],
        cost=None if schedule.costs is None else lambda plan: schedule.costs,
    )


@settings(max_examples=examples(9))
@given(
    schedules(sizes=(2,)),
    st.sampled_from(["current", "stashed", "estimated"]),
    st.integers(
        1,
        3,
    ),
)
def test_gradients_are_those_of_the_dense_embedding(schedule, weights, partitions):
    graph, table = models.with_table(
        optax.sgd(0.1),
        weights=weights,
        partitions=partitions,
    )
    trainer = trainer_of(graph, schedule, min_update_interval=NEVER)
    found = trainer.accumulate(DATA)
    assert found["loss_sum"] == pytest.approx(wanted().loss, rel=1e-5)
    grads = trainer.gradients
    for node, want in wanted().grads.items():
        jax.tree.map(
            lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5),
            grads[node][0],
            want,
        )
    assert {node: rows for node, (_, rows) in grads.items()} == wanted().rows
    assert table.version == 0
    np.testing.assert_array_equal(table.dense(), models.VALUES)


SCHEDULES = schedules(sizes=(2,), workers=1, affinity="default")


@settings(max_examples=examples(15))
@given(
    SCHEDULES,
    st.integers(0, 99),
    st.sampled_from([*OPTIMIZERS]),
    st.sampled_from(
        [
            ("async", 1),
            ("async", 3),
            ("async", 20),
            ("sync", 1),
            ("pipeline", 1),
        ]
    ),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from(["current", "stashed", "estimated"]),
    st.sampled_from([None, 0]),
)
def test_training_is_that_of_the_dense_node_under_one_schedule(
    schedule, costs, name, mode, gradient, weights, limit
):
    tx, rows = OPTIMIZERS[name]
    schedule = replace(schedule, costs=Costs(costs))
    graph, table = models.with_table(tx, weights=weights, mode=rows)
    changed = {
        "mode": mode[0],
        "min_update_interval": mode[1],
        "gradient": gradient,
        "drop_staler_than": limit,
    }
    ours = trainer_of(graph, schedule, tx, **changed)
    theirs = trainer_of(models.dense(weights=weights), schedule, tx, **changed)
    for _ in range(2):
        losses = []
        for trainer in (ours, theirs):
            losses.append(trainer.fit(DATA, progress=False).epochs[-1].train["loss"])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        one, other = (counts_of(trainer) for trainer in (ours, theirs))
        assert one == other  # updates, staleness, versions
        assert (
            sum(one["embed"]["histogram"]) + one["embed"]["dropped"] == N_ROWS
        )  # no gradient row is lost, none counted twice
    assert table.version == sum(ours.session.scheduler.updates.versions[n] for n in ("embed",))
    for node, want in theirs.params.items():
        jax.tree.map(
            lambda p, w: np.testing.assert_allclose(p, w, rtol=1e-4, atol=1e-5),
            ours.params[node],
            want,
        )
    assert ours.gradients["embed"][1] == theirs.gradients["embed"][1]
    np.testing.assert_allclose(
        ours.gradients["embed"][0],
        theirs.gradients["embed"][0],
        rtol=1e-4,
        atol=1e-5,
    )


@settings(max_examples=examples(8))
@given(
    SCHEDULES,
    st.integers(
        0,
        99,
    ),
    st.sampled_from([*OPTIMIZERS]),
    st.sampled_from(["mean", "sum"]),
)
def test_either_choice_of_a_layer_trains_alike(schedule, costs, name, gradient):
    """Updates at every gradient row that comes: rows in a table, and the same rows on the device."""
    tx, rows = OPTIMIZERS[name]
    schedule = replace(schedule, costs=Costs(costs))
    found = []
    ids = np.concatenate([instance["word"].payload for instance in DATA])
    for threshold in (0.01, 2.0):
        layer = amp.nn.choose_embed(
            models.VALUES,
            tx,
            ids,
            alpha_threshold=threshold,
            mode=rows,
        )
        trainer = trainer_of(
            models.build(layer),
            schedule,
            optax.sgd(0.1),
            min_update_interval=1,
            gradient=gradient,
        )
        trainer.fit(DATA, progress=False)
        found.append((layer.host_table is not None, counts_of(trainer), trainer.params))
    (one_is_table, one, left), (other_is_table, other, right) = found
    assert not one_is_table and other_is_table and one == other
    jax.tree.map(
        lambda p, w: np.testing.assert_allclose(p, w, rtol=1e-4, atol=1e-5),
        left,
        right,
    )


def counts_of(trainer):
    result = {}
    for node, stats in trainer.statistics.nodes.items():
        result[node] = {name: np.asarray(value).tolist() for name, value in asdict(stats).items()}
    return result


@settings(max_examples=examples(6))
@given(
    st.integers(2, 3),
    st.integers(1, 3),
    st.sampled_from(["sgd", "adagrad"]),
)
def test_copies_of_a_network_with_one_table_are_the_network(copies, workers, name):
    """In rounds copies make each step together, and add their gradients to those of the one table."""
    found = []
    for n in (1, copies):
        graph, table = models.with_table(
            OPTIMIZERS[name][0],
            n,
            gradient="mean",
        )
        params = {}
        for node in graph.parameterised:
            if node.startswith("output"):
                params[node] = models.start()["output"]
        assert {*graph.parameterised} == {*params, "embed" if n == 1 else "embed/0"}
        options = {"max_active_keys": 4, "workers": workers if n > 1 else 1}
        options |= {"mode": "pipeline", "compile_ahead": False, "gradient": "sum"}
        trainer = amp.Trainer(
            graph,
            optax.sgd(0.02),
            params=params,
            **options,
        )
        trainer.fit(DATA, epochs=2, progress=False)
        assert table.version == 4
        found.append(
            [
                table.dense(),
                *(trainer.params[node] for node in params),
            ]
        )
    (want, wanted_output), (rows, *outputs) = found
    np.testing.assert_allclose(rows, want, rtol=1e-4, atol=1e-5)
    for output in outputs:
        jax.tree.map(
            lambda p, w: np.testing.assert_allclose(p, w, rtol=1e-4, atol=1e-5),
            output,
            wanted_output,
        )
