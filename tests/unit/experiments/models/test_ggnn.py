"""Gated graph networks as functions: the same losses and gradients as the graphs of nodes, in stages of the same kinds."""

import functools

import jax
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.plan.stage_kinds import EDGES
from experiments.by_hand import ggnn_graph
from experiments.data import babi15, qm9
from experiments.models import ggnn

pytestmark = [pytest.mark.slow, pytest.mark.users]

H = 12
STEPS = 2
SETTINGS = {
    "min_update_interval": 1 << 40,
    "max_dispatch_size": 256,
    "arena_rows": 1024,
    "compile_ahead": False,
}


def both(kind, replicas=1):
    """The same task as a graph of nodes and as a function, each with its data; and parameters for the graph."""
    key = jax.random.key(1)
    if kind == "regression":
        split = qm9.split(qm9.synthetic(20), n_valid=2)
        data = split.train
        f = qm9.N_FEATURES
        graph = ggnn_graph.ggnn_regression(
            ggnn_graph.Network(f, H, STEPS),
            split.std,
        )
        model = functools.partial(
            ggnn.ggnn_regression, steps=STEPS, scale=split.std, replicas=replicas
        )
        params = ggnn.init_regression(key, f, H)
        spec = ggnn.regression_spec(f, 4)
    else:
        data = babi15.generate(6, 8).instances()
        f = 1
        graph = ggnn_graph.ggnn_selection(ggnn_graph.Network(f, H, STEPS))
        model = functools.partial(ggnn.ggnn_selection, steps=STEPS, replicas=replicas)
        params = ggnn.init_selection(key, f, H)
        spec = ggnn.selection_spec(f, 4)
    compiled = amp.compile(model, params, spec)
    return (graph, data), (compiled, compiled.data(data.plain())), params


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        pytest.param("regression", "error", marks=pytest.mark.users),
        pytest.param("selection", "accuracy", marks=pytest.mark.nightly),
    ],
)
def test_functions_compute_what_the_graphs_of_nodes_do(kind, metric):
    (graph, instances), (model, data), params = both(kind)
    trainers = (
        amp.Trainer(
            graph,
            params=params,
            **SETTINGS,
        ),
        amp.Trainer(model.graph, **SETTINGS),
    )
    by_hand, compiled = (
        trainer.accumulate(part, update=False)
        for trainer, part in zip(trainers, (instances, data), strict=True)
    )
    assert compiled["loss_sum"] == pytest.approx(by_hand["loss_sum"], rel=1e-5)
    assert compiled[metric] == pytest.approx(by_hand[metric], rel=1e-5)
    wanted, got = (trainer.gradients for trainer in trainers)
    assert set(got) == set(wanted)
    for node, (grads, rows) in wanted.items():
        assert got[node][1] == rows, node
        for a, b in zip(
            jax.tree.leaves(got[node][0]),
            jax.tree.leaves(grads),
            strict=True,
        ):
            assert np.abs(b).max() > 0 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node
    (mine,), (theirs,) = (
        [stage.params for stage in trainer.plan.stages if stage.kind is EDGES]
        for trainer in reversed(trainers)
    )
    assert mine == theirs == ("edge0", "edge1", "edge2", "edge3", "update")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["regression", "selection"])
def test_gradients_of_replicas_add_up_to_those_of_one(kind):
    found = []
    for replicas in (1, 2):
        _, (model, data), _ = both(kind, replicas)
        trainer = amp.Trainer(model.graph, workers=replicas, **SETTINGS)
        loss = trainer.accumulate(data, update=False)["loss_sum"]
        found.append((loss, model.gradients(trainer.gradients)))
    assert {"edge0/0", "edge0/1", "update/0", "update/1"} < set(trainer.params)
    (one, wanted), (two, got) = found
    assert two == pytest.approx(one, rel=1e-5)
    for a, b in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(wanted),
        strict=True,
    ):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ({"n_features": 0}, "`n_features`: expected at least 1, got 0"),
        ({"n_features": 3, "n_kinds": 0}, "`n_kinds`: expected at least 1, got 0"),
        ({"n_features": 7, "hidden": 6}, "`hidden`: expected at least the 7 features, got 6"),
    ],
)
def test_sizes_that_do_not_fit(sizes, match):
    for init in (ggnn.init_regression, ggnn.init_selection):
        with pytest.raises(SettingsError, match=match):
            init(jax.random.key(0), **sizes)


def test_plain_instances_are_the_same_graphs():
    data = qm9.split(qm9.synthetic(9), n_valid=4).valid
    plain = data.plain()
    pumped = data.gather(np.arange(4))
    assert [len(one["x"]) for one in plain] == pumped["x"].sizes.tolist()
    np.testing.assert_array_equal(
        np.concatenate([one["x"] for one in plain]),
        pumped["x"].payload,
    )
    assert [one["target"] for one in plain] == pumped["target"].payload.tolist()
    for one, topology in zip(plain, pumped["edges"].payload, strict=True):
        edges = one["edges"]
        for kind in range(4):
            assert edges.senders[edges.kinds == kind].tolist() == topology.gather[kind].tolist()
            assert edges.receivers[edges.kinds == kind].tolist() == topology.scatter[kind].tolist()


@pytest.mark.parametrize(
    ("start", "last"),
    [(ggnn.init_regression, "readout"), (ggnn.init_selection, "score")],
)
def test_no_two_layers_begin_with_the_same_numbers(start, last):
    """`split(key)[i]` is `fold_in(key, i)`: a layer that splits the network's key itself draws what another one has drawn."""
    params = start(jax.random.key(0), 3, H)
    inner = params[last]["hidden"]["w"].ravel()[: H * H]
    for k in range(4):
        assert abs(np.corrcoef(params[f"edge{k}"]["w"].ravel(), inner)[0, 1]) < 0.4
    assert (
        abs(
            np.corrcoef(params["edge1"]["w"].ravel()[:H], params[last]["gate"]["w"].ravel()[:H])[
                0, 1
            ]
        )
        < 0.9
    )


def test_kinds_of_edges_are_numbered_however_many_there_are():
    """JAX sorts the keys of dictionaries, and `edge10` is before `edge2` then."""
    params = ggnn.init_selection(
        jax.random.key(0),
        2,
        3,
        n_kinds=11,
    )
    one = np.array([1])
    instance = {
        "x": np.ones((2, 2), np.float32),
        "edges": amp.Edges(one - 1, one, one + 1),
        "answer": np.eye(2)[:, :1],
    }
    loss = functools.partial(ggnn.ggnn_selection, s=instance, steps=1)
    (value, _), grads = jax.value_and_grad(loss, has_aux=True)(params)
    assert {name for name in grads if "edge" in name and np.abs(grads[name]["b"]).max() > 0} == {
        "edge2"
    }
    assert float(value) == pytest.approx(float(loss(params)[0]), rel=1e-5)
