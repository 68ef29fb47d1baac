"""Gated graph networks as functions: the same losses and gradients as the graphs of nodes, in stages of the same kinds."""

import functools

import jax
import numpy as np
import pytest

import ampjax as amp
from ampjax.data import babi15, qm9
from ampjax.models import ggnn
from ampjax.models.functions import ggnn_function
from ampjax.plan.stage_kinds import EDGES

pytestmark = pytest.mark.slow

H, STEPS = 12, 2
SETTINGS = {"min_update_interval": 1 << 40, "max_dispatch_size": 256, "arena_rows": 1024, "compile_ahead": False}


def both(kind):
    """The same task as a graph of nodes and as a function, each with its data; and parameters for both."""
    if kind == "regression":
        split = qm9.split(qm9.synthetic(20), n_valid=2)
        data, f, cells = split.train, 11, {"readout": ggnn.GatedReadout(H, 11)}
        graph = ggnn.ggnn_regression(ggnn.Network(f, H, STEPS), split.std)
        model = functools.partial(ggnn_function.ggnn_regression, steps=STEPS, scale=split.std)
        spec = ggnn_function.regression_spec(f, 4)
    else:
        data, f, cells = babi15.generate(6, 8).instances(), 1, {"score": ggnn.Score(H, 1)}
        graph = ggnn.ggnn_selection(ggnn.Network(f, H, STEPS))
        model = functools.partial(ggnn_function.ggnn_selection, steps=STEPS)
        spec = ggnn_function.selection_spec(f, 4)
    params = ggnn_function.init_ggnn(jax.random.key(1), cells, H, 4)
    compiled = amp.compile(model, params, spec)
    return (graph, data), (compiled.graph, compiled.data(data.plain())), params


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        pytest.param("regression", "error", marks=pytest.mark.users),
        pytest.param("selection", "accuracy", marks=pytest.mark.full),
    ],
)
def test_functions_compute_what_the_graphs_of_nodes_do(kind, metric):
    *sides, params = both(kind)
    trainers = [amp.Trainer(graph, params=params, **SETTINGS) for graph, _ in sides]
    by_hand, compiled = (
        trainer.accumulate(data, update=False) for trainer, (_, data) in zip(trainers, sides, strict=True)
    )
    assert compiled["loss_sum"] == pytest.approx(by_hand["loss_sum"], rel=1e-5)
    assert compiled[metric] == pytest.approx(by_hand[metric], rel=1e-5)
    wanted, got = (trainer.gradients for trainer in trainers)
    assert set(got) == set(wanted)
    for node, (grads, rows) in wanted.items():
        assert got[node][1] == rows, node
        for a, b in zip(jax.tree.leaves(got[node][0]), jax.tree.leaves(grads), strict=True):
            assert np.abs(b).max() > 0 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node
    (mine,), (theirs,) = (
        [stage.params for stage in trainer.plan.stages if stage.kind is EDGES] for trainer in reversed(trainers)
    )
    assert mine == theirs == ("edge0", "edge1", "edge2", "edge3", "update")


def test_plain_instances_are_the_same_graphs():
    data = qm9.split(qm9.synthetic(9), n_valid=4).valid
    plain, pumped = data.plain(), data.gather(np.arange(4))
    assert [len(one["x"]) for one in plain] == pumped["x"].sizes.tolist()
    np.testing.assert_array_equal(np.concatenate([one["x"] for one in plain]), pumped["x"].payload)
    assert [one["target"] for one in plain] == pumped["target"].payload.tolist()
    for one, topology in zip(plain, pumped["edges"].payload, strict=True):
        edges = one["edges"]
        for kind in range(4):
            assert edges.senders[edges.kinds == kind].tolist() == topology.gather[kind].tolist()
            assert edges.receivers[edges.kinds == kind].tolist() == topology.scatter[kind].tolist()
