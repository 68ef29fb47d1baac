"""The papers' models as functions: the same loss and gradients as the hand-written graphs, and as `jax.grad` of the function itself."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import Instances
from ampjax.train.settings import Settings
from experiments.by_hand import rnn_graph
from experiments.by_hand.act_graph import act_rnn
from experiments.by_hand.mixture_graph import mixture_of_experts as mixture_graph
from experiments.by_hand.permutation_graph import ShuffledRows
from experiments.by_hand.permutation_graph import permutation as permutation_graph
from experiments.by_hand.tagger_graph import tagger as tagger_graph
from experiments.by_hand.tree_lstm_graph import tree_lstm as tree_lstm_graph
from experiments.data import list_reduction, permutation, sst, wikiner
from experiments.models import act, mixture, rnn, tagger, tree_lstm
from experiments.models import permutation as permutation_model

KEY = jax.random.key(0)
SETTINGS = Settings(max_active_keys=4, max_dispatch_size=16)
TOLERANCE = 1e-5


def sequences() -> Any:
    """List reduction, one sequence an instance."""
    data = list_reduction.generate(5)
    hidden = 6
    plain = list_reduction.plain(data)
    graph = rnn_graph.list_reduction_rnn(hidden)
    return rnn.list_reduction_rnn(hidden), plain, graph, list_reduction.Sequences(data, hidden)


def buckets() -> Any:
    """List reduction, a bucket of three an instance, some of them not full."""
    data = list_reduction.Buckets(list_reduction.generate(8), 3, 6)
    hidden = 6
    return (
        rnn.list_reduction_rnn(hidden, 3),
        data.plain(),
        rnn_graph.list_reduction_rnn(hidden, 3),
        data,
    )


def trees(kind: str) -> Any:
    """A Tree-LSTM."""
    data, _ = sst.synthetic(4, 1, seed=3)
    cells = tree_lstm.Cells(kind, 4, 6, keep=1)
    n_words = len(data.vocabulary)
    function = tree_lstm.tree_lstm(cells)
    params = tree_lstm.init(KEY, n_words, cells)
    compiled = amp.compile(function, params, tree_lstm.SPEC)
    return compiled, sst.plain(data), tree_lstm_graph(n_words, cells), sst.TreeInstances(data)


def sentences() -> Any:
    """The tagger, with rare and frequent words."""
    data, _ = wikiner.synthetic(4, 1, seed=2)
    sizes = tagger.Sizes(3, 4, 5, 6, noise=0)
    counts = len(data.vocabulary.words) or 1, len(data.vocabulary.characters)
    compiled = amp.compile(
        tagger.tagger(0),
        tagger.init(KEY, *counts, sizes),
        tagger.SPEC,
    )
    return (
        compiled,
        wikiner.plain(data),
        tagger_graph(*counts, sizes),
        wikiner.SentenceInstances(data),
    )


def experts(top: int) -> Any:
    """A mixture of experts, whose gate is not at its start: zeros choose all the same."""
    sizes = mixture.Experts(
        6,
        8,
        3,
        n=4,
        top=top,
        noisy=False,
    )
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(5):
        rows.append(
            rng.normal(
                size=(
                    int(
                        rng.integers(
                            1,
                            6,
                        )
                    ),
                    6,
                )
            ).astype(np.float32)
        )
    plain = []
    for x in rows:
        plain.append(
            {
                "x": x,
                "label": np.argmax(
                    x[:, :3],
                    1,
                ).astype(np.int32),
            }
        )
    params = mixture.init(KEY, sizes)
    params["gate"] = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32),
        params["gate"],
    )
    compiled = amp.compile(
        mixture.mixture_of_experts(sizes),
        params,
        mixture.spec(sizes),
    )
    columns = []
    for one in plain:
        columns.append(
            {
                name: ag.messages(
                    rows,
                    i=np.arange(len(rows)),
                    n=np.full(len(rows), len(rows)),
                )
                for name, rows in one.items()
            }
        )
    return compiled, plain, mixture_graph(sizes), columns


def pondering() -> Any:
    """Adaptive computation time, with some inputs pondered longer than others."""
    sizes = act.Ponder(
        4,
        6,
        2,
        max_steps=6,
        epsilon=0.05,
        time_penalty=0.01,
    )
    rng = np.random.default_rng(0)
    plain = []
    columns = []
    for number in range(5):
        length = int(rng.integers(1, 5))
        x = rng.normal(size=(length, 4)).astype(np.float32)
        zero = np.zeros(1, np.int64)
        own = np.full(1, length)
        plain.append({"x": x, "label": np.int32(number % 2)})
        start = ag.messages(
            np.zeros((1, 6), np.float32),
            t=zero,
            length=own,
            step=zero,
            more=zero,
        )
        steps = ag.messages(
            x,
            t=np.arange(length),
            length=np.full(length, length),
        )
        columns.append(
            {
                "x": steps,
                "s0": start,
                "label": np.int32(number % 2),
            }
        )
    params = jax.tree.map(
        lambda leaf: 0.5 * rng.normal(size=leaf.shape).astype(np.float32),
        act.init(KEY, sizes),
    )
    compiled = amp.compile(
        act.act_rnn(sizes),
        params,
        act.spec(sizes),
    )
    return compiled, plain, act_rnn(sizes), columns


def shuffles() -> Any:
    """Operations in an order of each instance's own."""
    data = permutation.generate(5, 3)
    params = permutation_model.init(KEY, 3, 6)
    compiled = amp.compile(permutation_model.permutation, params, permutation_model.SPEC)
    return compiled, permutation.plain(data), permutation_graph(3, 6), ShuffledRows(data)


CASES = {
    "sequences": sequences,
    "buckets": buckets,
    "trees, fold": lambda: trees("fold"),
    "trees, tai": lambda: trees("tai"),
    "sentences": sentences,
    "experts, top 1": lambda: experts(1),
    "experts, top 2": lambda: experts(2),
    "pondering": pondering,
    "shuffles": shuffles,
}


IN_EVERY_RUN = ("sequences",)
"""The others repeat this for another model, so they are left to nightly runs; random models are tried in every run."""


EVERY_CASE = pytest.mark.parametrize(
    "name",
    [n if n in IN_EVERY_RUN else pytest.param(n, marks=pytest.mark.nightly) for n in CASES],
)


@pytest.mark.slow
@EVERY_CASE
def test_a_function_of_a_batch_is_the_function(name: str):
    compiled, plain, _, _ = CASES[name]()
    params = compiled.initial_params
    batch = compiled.batched.pack(plain)

    def total(p: Any) -> jax.Array:
        told = compiled.batched(p, batch)
        return (told[0] if isinstance(told, tuple) else told).sum()

    loss, grads = jax.jit(jax.value_and_grad(total))(params)
    want, reference = jax.value_and_grad(compiled.loss)(params, plain)
    assert float(loss) == pytest.approx(float(want), rel=TOLERANCE)
    for one, other in zip(
        jax.tree.leaves(grads),
        jax.tree.leaves(reference),
        strict=True,
    ):
        np.testing.assert_allclose(
            one,
            other,
            rtol=TOLERANCE,
            atol=TOLERANCE * max(1.0, float(np.abs(other).max())),
        )


@pytest.mark.nightly
@pytest.mark.slow
@EVERY_CASE
def test_a_function_is_its_graph_and_itself(name: str):
    compiled, plain, graph, instances = CASES[name]()
    params = compiled.initial_params
    got = accumulated(compiled.graph, compiled.data(plain), {})
    want = accumulated(graph, instances, params)
    close(got, want)
    loss, grads = jax.value_and_grad(compiled.loss)(params, plain)
    close((float(loss), got[1], grads), got)


def accumulated(
    graph: ag.Graph,
    data: Instances,
    params: Any,
) -> tuple[float, dict[str, float], dict[str, Any]]:
    """The summed loss, the metrics and the summed gradients of a pass without updates."""
    trainer = amp.Trainer(
        graph,
        optax.sgd(0.0),
        params=params,
        settings=SETTINGS,
    )
    metrics = trainer.accumulate(data, update=False)
    means = {}
    for name, value in metrics.items():
        if name not in ("loss", "loss_sum"):
            means[name] = value
    return (
        metrics["loss_sum"],
        means,
        {node: grads for node, (grads, _) in trainer.gradients.items()},
    )


def close(got: Any, want: Any) -> None:
    """Loss, metrics and gradients are the same, gradients within the tolerance of each leaf's largest entry."""
    assert got[0] == pytest.approx(want[0], rel=TOLERANCE)
    assert got[1] == pytest.approx(want[1], rel=TOLERANCE)
    assert set(got[2]) == set(want[2])
    for node in want[2]:
        for a, b in zip(jax.tree.leaves(got[2][node]), jax.tree.leaves(want[2][node]), strict=True):
            assert np.abs(a - b).max() <= TOLERANCE * max(np.abs(b).max(), 1e-6), node
