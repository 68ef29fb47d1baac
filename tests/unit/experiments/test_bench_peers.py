"""The peers in JAX compute what ours computes, start alike, and train."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from support import parity

from ampjax.ir.instances import Subset
from experiments.bench.ours import Ours
from experiments.bench.peers import (
    ggnn_batches,
    ggnn_dense,
    ggnn_jax,
    list_reduction_jax,
    mnist_jax,
    permutation_jax,
    sentiment_jax,
    wikiner_jax,
)
from experiments.bench.peers.sentiment_jax import Model, batch_arrays
from experiments.bench.peers.wikiner_jax import padded
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection
from experiments.by_hand.tagger_graph import tagger
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.data import babi15, mnist, qm9, sst, wikiner
from experiments.models.mlp import mlp
from experiments.models.tagger import Sizes
from experiments.models.tree_lstm import Cells

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_the_peers_start_like_ours_and_learn() -> None:
    arguments = {"n_train": 400, "n_valid": 200, "epochs": 1}
    ours = Ours("list-reduction", max_active_keys=4, max_dispatch_size=2, **arguments)
    mask = list_reduction_jax.padded(**arguments)
    lengths = list_reduction_jax.per_length(**arguments)
    assert ours.evaluate() == mask.evaluate() == lengths.evaluate()
    for program in (ours, mask, lengths):
        assert program.train() == 400
        assert program.infer() == 200
        assert program.updates() >= 1


@pytest.mark.nightly
def test_padding_changes_no_logits() -> None:
    peer = list_reduction_jax.padded(n_train=100, n_valid=100, epochs=1)
    tokens = np.zeros((10, 1), np.int32)
    tokens[:3, 0] = 11, 4, 7
    full = list_reduction_jax.forward(
        peer._params,
        jax.numpy.asarray(tokens),
        jax.numpy.array([3]),
    )
    short = list_reduction_jax.forward(
        peer._params,
        jax.numpy.asarray(tokens[:3]),
        None,
    )
    np.testing.assert_allclose(full, short, rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", ["fold", "tai"])
def test_trees_by_levels_have_our_gradients(cell: str) -> None:
    """Chunks that are filled up, and minibatches that are not full, change nothing."""
    peer = Model(
        cell=cell,
        embedding=6,
        hidden=4,
        batch=5,
        width=4,
        synthetic=True,
        rehearsals=0,
    )
    trees, _ = sst.synthetic()
    ids = np.arange(13)
    data = Subset(sst.TreeInstances(trees), ids)
    params, *want = parity.ours(
        tree_lstm(
            len(trees.vocabulary),
            Cells(cell, 6, 4, 1.0),
        ),
        data,
    )

    def loss(params: Any, start: int) -> Any:
        words, *arrays = batch_arrays(trees, ids[start : start + 5], 4)
        return peer.summed_loss(
            jax.numpy.asarray(params["embed"])[words],
            params,
            None,
            arrays,
        )[0]

    parity.assert_equal(
        parity.summed(
            loss,
            params,
            range(0, len(ids), 5),
        ),
        tuple(want),
    )


@pytest.mark.nightly
def test_a_minibatch_of_trees_by_levels_makes_our_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took the mean over trees where ours takes the sum over nodes, and so learnt slowly: Adagrad's accumulators do not start at 0."""
    few = sst.synthetic(12, 4)
    monkeypatch.setattr(sst, "synthetic", lambda: few)
    monkeypatch.setattr(
        sentiment_jax, "cell_sizes", lambda cell: (4, 1.0)
    )  # no dropout, whose draws differ
    arguments = {"cell": "tai", "embedding": 6, "hidden": 4, "synthetic": True}
    ours = Ours(
        "sentiment",
        n_train=12,
        max_active_keys=12,
        mode="pipeline",
        keep=1.0,
        **arguments,
    )
    levels = Model(batch=12, rehearsals=0, **arguments)
    assert ours.train() == levels.train() == 12
    assert ours.updates() == levels.updates() == 1
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        {"embed": levels._table, **levels._params},
        dict(ours._trainer.params),
    )


@pytest.mark.nightly
def test_the_sentiment_programs_start_alike_and_learn() -> None:
    arguments = {
        "n_train": 60,
        "cell": "tai",
        "embedding": 8,
        "hidden": 6,
        "synthetic": True,
        "data_dir": None,
    }
    ours = Ours("sentiment", max_active_keys=4, max_dispatch_size=4, **arguments)
    levels = Model(batch=10, rehearsals=1, **arguments)
    assert ours.evaluate() == pytest.approx(levels.evaluate(), abs=1e-3)
    for program in (ours, levels):
        before = program.evaluate()
        assert program.train() == 60
        assert program.infer() == 200
        assert program.updates() >= 1
        assert program.evaluate() > before


@pytest.mark.nightly
def test_the_padded_tagger_computes_what_ours_does() -> None:
    data, _ = wikiner.synthetic(6, 1)
    graph = tagger(
        len(data.vocabulary.words) or 1,
        len(data.vocabulary.characters),
        Sizes(noise=0),
    )
    params, *want = parity.ours(graph, wikiner.SentenceInstances(data))
    batches = [padded(data, np.arange(6), 8)]
    parity.assert_equal(
        parity.summed(wikiner_jax.loss, params, batches),
        tuple(want),
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "arrangement"),
    [
        ("regression", "as_they_come"),
        ("regression", "by_nodes"),
        ("regression", "one_shape"),
        ("selection", "as_they_come"),
    ],
)
def test_graphs_side_by_side_have_our_gradients(kind: str, arrangement: str) -> None:
    """Padding and a minibatch that is not full change nothing, whichever graphs go together."""
    if kind == "regression":
        data = qm9.split(qm9.synthetic(40), n_valid=20, n_train=7).train
        graph = ggnn_regression(Network(qm9.N_FEATURES, 12, 2, qm9.N_KINDS))
        loss = functools.partial(ggnn_jax.regression, steps=2, scale=1.0)
    else:
        data = babi15.generate(7, 8).instances()
        graph = ggnn_selection(Network(1, 5, 2, babi15.N_KINDS))
        loss = functools.partial(ggnn_jax.selection, steps=2, nodes=8)
    params, *want = parity.ours(graph, data)
    layout = getattr(ggnn_batches, arrangement)(data, 4)
    groups = list(layout.groups(np.random.default_rng(0).permutation(7)))
    assert sorted(np.concatenate(groups)) == list(range(7))
    sums = parity.summed(
        lambda *of: loss(*of)[0],
        params,
        [layout.joined(ids) for ids in groups],
    )
    parity.assert_equal(sums, tuple(want))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("experiment", "peer", "sizes"),
    [
        ("qm9", ggnn_jax.qm9, {"n_train": 60, "n_valid": 30, "hidden": 12, "steps": 1}),
        ("qm9", ggnn_dense.qm9, {"n_train": 20, "n_valid": 10, "hidden": 12, "steps": 1}),
        ("babi15", ggnn_jax.babi15, {"n_train": 120, "n_valid": 15, "nodes": 8}),
        pytest.param(
            "wikiner",
            wikiner_jax.Model,
            {"n_train": 20, "n_valid": 5},
            marks=pytest.mark.long,
        ),
    ],
)
def test_ours_and_the_peer_start_alike_and_train(
    experiment: str, peer: Any, sizes: dict[str, Any]
) -> None:
    """They have the same data and the same first parameters, so they start with the same score."""
    sizes = {**sizes, "synthetic": True}
    ours = Ours(experiment, max_active_keys=4, max_dispatch_size=16, **sizes)
    theirs = peer(batch=8, **sizes)
    assert ours.evaluate() == pytest.approx(theirs.evaluate(), rel=1e-4)
    for program in (ours, theirs):
        before = program.evaluate()
        assert (program.train(), program.infer()) == (
            sizes["n_train"],
            sizes["n_valid"],
        ) and program.updates() >= 1
        assert program.evaluate() != before


@pytest.mark.nightly
def test_the_perceptron_in_one_jit_computes_what_ours_does() -> None:
    data = mnist.Batches(mnist.synthetic(6, 1)[0], 6)
    params, *want = parity.ours(
        mlp((784, 5, 10), 6),
        data,
    )
    ((images, labels),) = mnist_jax.minibatches(data)
    loss, grads = jax.value_and_grad(lambda p: mnist_jax.loss(p, images, labels)[0])(params)
    parity.assert_equal((loss, grads), tuple(want))


@pytest.mark.nightly
def test_the_dense_form_computes_what_ours_does() -> None:
    data = qm9.split(qm9.synthetic(40), n_valid=20, n_train=5).train
    graph = ggnn_regression(Network(qm9.N_FEATURES, 12, 2, qm9.N_KINDS))
    params, *want = parity.ours(graph, data)
    layout = ggnn_dense.dense(data, 3)
    batches = []
    for ids in layout.groups(np.arange(5)):
        batches.append(layout.joined(ids))
    sums = parity.summed(
        lambda *of: ggnn_dense.regression(*of, steps=2, scale=1.0)[0],
        params,
        batches,
    )
    parity.assert_equal(sums, tuple(want))


@pytest.mark.nightly
def test_the_union_of_all_paths_learns() -> None:
    program = permutation_jax.Model(
        n_train=1000,
        n_valid=200,
        hidden=32,
        operations=2,
    )
    before = program.evaluate()
    assert (
        [program.train() for _ in range(5)] == [1000] * 5
        and program.infer() == 200
        and program.updates() == 10
    )
    assert program.evaluate() > before
