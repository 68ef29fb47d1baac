"""The peers in PyTorch compute what ours compute, and train."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from support.parity import assert_equal, ours

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `bench`)")

from experiments.bench.peers import (  # noqa: E402
    ggnn_torch,
    list_reduction_torch,
    mnist_torch,
    permutation_torch,
    sentiment_jax,
    sentiment_torch,
    wikiner_torch,
)
from experiments.bench.peers.ggnn_batches import one_shape  # noqa: E402
from experiments.bench.peers.torch_program import Parts, Torch, cosine, tensors  # noqa: E402
from experiments.bench.peers.wikiner_jax import padded  # noqa: E402
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection  # noqa: E402
from experiments.by_hand.permutation_graph import ShuffledRows, permutation  # noqa: E402
from experiments.by_hand.rnn_graph import list_reduction_rnn  # noqa: E402
from experiments.by_hand.tagger_graph import tagger  # noqa: E402
from experiments.by_hand.tree_lstm_graph import tree_lstm  # noqa: E402
from experiments.data import babi15, mnist, qm9, sst, wikiner  # noqa: E402
from experiments.data.list_reduction import Sequences, generate  # noqa: E402
from experiments.data.permutation import generate as shuffled  # noqa: E402
from experiments.models.mlp import mlp  # noqa: E402
from experiments.models.tagger import Sizes  # noqa: E402
from experiments.models.tree_lstm import Cells  # noqa: E402

torch.set_num_threads(1)  # PyTorch's threads wait in loops, which hurts whoever shares the cores


def with_gradients(params: Any, loss: Any) -> tuple[float, Any]:
    """The loss's value, and its gradients in the tree of the parameters."""
    loss.backward()

    def dense(p):
        return p.grad.to_dense() if p.grad.is_sparse else p.grad

    return float(loss.detach()), jax.tree.map(
        lambda p: dense(p).numpy(),
        params,
    )


@pytest.mark.parametrize("cell", ["fold", "tai"])
@pytest.mark.parametrize("way", ["levels", "nodes"])
def test_trees(cell: str, way: str) -> None:
    trees, _ = sst.synthetic(7, 1)
    cells = Cells(cell, 6, 4, 1.0)
    values, *want = ours(
        tree_lstm(len(trees.vocabulary), cells),
        sst.TreeInstances(trees),
    )
    params = tensors(values)
    own = sentiment_torch.TorchCells(cells)
    if way == "levels":
        batch = sentiment_torch.lay_out(trees, np.arange(7))
        h = sentiment_torch.by_levels(sentiment_torch.TorchCells.branch, own, params, batch)
        labels = batch.labels
    else:
        each = [(trees, i) for i in range(7)]
        h = sentiment_torch.by_nodes(own, params, each)
        labels = sentiment_torch.labels_of(each)
    assert len(h) == len(labels) == trees.n_nodes
    assert_equal(
        with_gradients(params, sentiment_torch.loss(own, params, h, labels)),
        tuple(want),
    )


@pytest.mark.parametrize("logits", [list_reduction_torch.forward, list_reduction_torch.one_by_one])
def test_list_reduction(logits: Any) -> None:
    data = generate(8)
    values, *want = ours(list_reduction_rnn(5), Sequences(data, 5))
    params = tensors(values)
    batch = data.tokens.T, data.lengths, data.labels
    assert_equal(
        with_gradients(params, 8 * list_reduction_torch.loss(logits, params, batch)),
        tuple(want),
    )


@pytest.mark.parametrize("way", ["packed", "one by one"])
def test_tagger(way: str) -> None:
    data, _ = wikiner.synthetic(6, 1)
    graph = tagger(
        len(data.vocabulary.words) or 1,
        len(data.vocabulary.characters),
        Sizes(noise=0),
    )
    values, *want = ours(graph, wikiner.SentenceInstances(data))
    net = wikiner_torch.Tagger(values)
    if way == "packed":
        # the last is not full
        batches = []
        for ids in (np.arange(4), np.arange(4, 6)):
            batches.append(padded(data, ids, 4))
        logits = net
    else:
        batches = []
        for i in range(6):
            batches.append(padded(data, np.array([i]), 1))
        logits = net.one
    entropy = torch.nn.functional.cross_entropy
    loss = sum(entropy(logits(b), wikiner_torch.labels(b), reduction="sum") for b in batches)
    loss.backward()
    assert_equal(
        (float(loss.detach()), our_gradients(net)),
        tuple(want),
    )


def our_gradients(net: Any) -> dict[str, Any]:
    """The tagger's gradients by our nodes, with our order of gates."""

    def back(grad):
        return np.concatenate(
            [np.split(grad.numpy(), 4)[wikiner_torch.GATES.index(i)] for i in range(4)]
        ).T

    grads: dict[str, Any] = {}
    for name in ("embed", "char_embed", "hidden"):
        grads[name] = getattr(net, name).grad.numpy()
    grads["output"] = {"w": net.output.grad.numpy()}
    for kind in ("char", "word"):
        module = getattr(net, kind)
        inputs = {}
        for way, suffix in (("forward", ""), ("backward", "_reverse")):
            part = {}
            for name in ("weight_ih", "weight_hh", "bias_ih"):
                part[name] = back(getattr(module, f"{name}_l0{suffix}").grad)
            inputs[way] = {"w": part["weight_ih"], "b": part["bias_ih"]}
            grads[f"{kind}_{way}"] = part["weight_hh"]
        grads[f"{kind}_input"] = inputs
    return grads


@pytest.mark.parametrize("way", ["side by side", "one by one", "one shape"])
def test_molecules(way: str) -> None:
    data = qm9.split(qm9.synthetic(40), n_valid=20, n_train=7).train
    values, *want = ours(
        ggnn_regression(Network(qm9.N_FEATURES, 12, 2, qm9.N_KINDS), 3.0),
        data,
    )
    params = tensors(values)
    of = partial(ggnn_torch.regression, steps=2, scale=3.0)
    ids = np.arange(7)
    if way == "one by one":
        loss, _ = ggnn_torch.one_by_one(
            of,
            params,
            [ggnn_torch.side_by_side(data, ids[i : i + 1]) for i in ids],
        )
    elif way == "one shape":
        layout = one_shape(data, 4)
        loss = sum(
            of(params, ggnn_torch.as_tensors(layout.joined(g)))[0] for g in layout.groups(ids)
        )
    else:
        loss, _ = of(params, ggnn_torch.side_by_side(data, ids))
    assert_equal(with_gradients(params, loss), tuple(want))


def test_questions() -> None:
    data = babi15.generate(7, 8).instances()
    values, *want = ours(
        ggnn_selection(Network(1, 5, 2, babi15.N_KINDS)),
        data,
    )
    params = tensors(values)
    loss, _ = ggnn_torch.selection(
        params,
        ggnn_torch.side_by_side(data, np.arange(7)),
        2,
        8,
    )
    assert_equal(with_gradients(params, loss), tuple(want))


def test_perceptron() -> None:
    data = mnist.Batches(mnist.synthetic(6, 1)[0], 6)
    values, *want = ours(
        mlp((784, 5, 10), 6),
        data,
    )
    params = tensors(values)
    (batch,) = mnist_torch.minibatches(data)
    assert_equal(
        with_gradients(params, mnist_torch.loss(mnist_torch.forward, params, batch)),
        tuple(want),
    )


@pytest.mark.parametrize("make", [sentiment_torch.levels, sentiment_torch.eager])
def test_a_minibatch_of_trees_makes_the_update_of_the_peer_in_jax(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is ours; both took the mean over trees, not the sum over nodes."""
    few = sst.synthetic(7, 1)
    monkeypatch.setattr(sst, "synthetic", lambda: few)
    for peer in (sentiment_torch, sentiment_jax):
        monkeypatch.setattr(
            peer, "cell_sizes", lambda cell: (4, 1.0)
        )  # no dropout, whose draws differ
    arguments = {"embedding": 6, "batch": 7, "synthetic": True}
    program = make(**arguments)
    levels = sentiment_jax.Model(rehearsals=0, **arguments)
    assert program.train() == levels.train() == 7
    assert program.updates() == levels.updates() == 1
    dense, table = (optimizer.param_groups[0]["params"] for optimizer in program._parts.optimizers)
    for got, want in zip(
        [*table, *dense],
        [levels._table, *jax.tree.leaves(levels._params)],
        strict=True,
    ):
        np.testing.assert_allclose(
            got.detach().numpy(),
            want,
            rtol=1e-4,
            atol=1e-6,
        )


@pytest.mark.parametrize("logits", [permutation_torch.union, permutation_torch.sorted_])
def test_permutation(logits: Any) -> None:
    data = shuffled(9, 3)
    values, *want = ours(permutation(3, 8), ShuffledRows(data))
    params = tensors(values)
    batch = (data.digits, data.orders, data.labels)
    assert_equal(
        with_gradients(params, 9 * permutation_torch.loss(logits, params, batch)),
        tuple(want),
    )


GRAPHS = {
    "n_train": 12,
    "n_valid": 6,
    "hidden": 12,
    "steps": 1,
    "synthetic": True,
    "batch": 4,
}


@pytest.mark.parametrize(
    ("make", "arguments", "n"),
    [
        (
            sentiment_torch.levels,
            {"n_train": 12, "embedding": 6, "hidden": 4, "synthetic": True, "batch": 5},
            12,
        ),
        (
            sentiment_torch.eager,
            {"n_train": 4, "embedding": 6, "hidden": 4, "synthetic": True, "batch": 2},
            4,
        ),
        (list_reduction_torch.padded, {"n_train": 12, "n_valid": 6, "batch": 5}, 12),
        (list_reduction_torch.eager, {"n_train": 12, "n_valid": 6, "batch": 5}, 12),
        (wikiner_torch.packed, {"n_train": 20, "n_valid": 3, "synthetic": True, "batch": 8}, 20),
        (wikiner_torch.eager, {"n_train": 20, "n_valid": 3, "synthetic": True}, 20),
        (ggnn_torch.qm9, GRAPHS, 12),
        (ggnn_torch.qm9_eager, GRAPHS, 12),
        (
            ggnn_torch.babi15,
            {"n_train": 6, "n_valid": 6, "nodes": 8, "synthetic": True, "batch": 3},
            6,
        ),
        (
            permutation_torch.by_mask,
            {"n_train": 12, "n_valid": 6, "hidden": 8, "operations": 3, "batch": 5},
            12,
        ),
    ],
)
def test_a_program_trains(
    make: Any,
    arguments: dict[str, Any],
    n: int,
) -> None:
    program = make(**arguments)
    before = program.evaluate()
    assert program.train() == n
    assert program.updates() >= 2
    assert program.infer() >= 3
    assert np.isfinite(before) and np.isfinite(program.evaluate())


def test_a_program_steps_and_follows_its_schedule() -> None:
    p = torch.tensor([4.0], requires_grad=True)
    sgd = torch.optim.SGD([p], lr=0.25)
    parts = Parts(
        lambda x: x * (p**2).sum(),
        lambda x: p,
        [sgd],
        lambda rng: [1.0, 1.0],
        lambda: [0],
        2,
        1,
        1,
        [cosine(sgd, 2)],
    )
    program = Torch(parts)
    assert (
        program.train(),
        program.updates(),
        program.infer(),
    ) == (2, 2, 1)
    assert program.evaluate() == pytest.approx(4 * 0.5 * 0.75)  # a rate of 0.25, then of 0.125
