"""Models as functions beside the hand-written graphs: each model in both forms, with its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.frontend.compile_model import Compiled
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances
from ampjax.train.settings import Settings
from experiments import babi15 as babi15_experiment
from experiments import qm9 as qm9_experiment
from experiments import wikiner as wikiner_experiment
from experiments.bench.amount import Amount
from experiments.bench.ours import set_up
from experiments.by_hand import rnn_graph
from experiments.by_hand.act_graph import act_messages, act_rnn
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection
from experiments.by_hand.mixture_graph import mixture_of_experts as mixture_graph
from experiments.by_hand.permutation_graph import ShuffledRows
from experiments.by_hand.permutation_graph import permutation as permutation_graph
from experiments.by_hand.tagger_graph import tagger as tagger_graph
from experiments.by_hand.tree_lstm_graph import tree_lstm as tree_lstm_graph
from experiments.data import babi15, list_reduction, permutation, qm9, sst, wikiner
from experiments.data.graphs import GraphInstances
from experiments.models import act, ggnn, mixture, tagger, tree_lstm
from experiments.models import permutation as permutation_model
from experiments.models.rnn import list_reduction_rnn
from experiments.sentiment import chosen_cells

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Pair:
    """A model in both forms.

    Args:
      graph: The hand-written graph.
      adapter: Makes its instances: what is measured beside `plain` and `Compiled.data`.
      compiled: The model as a function.
      plain: Makes the plain instances.
      settings: The settings of both.
      tx: Their optimizer, where nodes have none of their own.
      params: Initial parameters of the hand-written graph, where both must begin with the same for both to do the same.
    """

    graph: Graph
    adapter: Callable[[], Instances]
    compiled: Compiled
    plain: Callable[[], Sequence[Any]]
    settings: Settings
    tx: optax.GradientTransformation | None
    params: Mapping[str, Any] | None = None


def _set_up(
    name: str,
    n_train: int,
    amount: Amount,
    **arguments: Any,
) -> tuple[Any, Any]:
    """An experiment's options, and its task: its graph, settings and optimizer."""
    has_files = name in ("sentiment", "wikiner", "qm9")
    if has_files:
        own = {"data_dir": amount.data_dir, "synthetic": amount.synthetic}
    else:
        own = {}
    return set_up(name, amount.of(n_train), **own, **arguments)


def _sequences(amount: Amount, batch: int | None = None) -> Pair:
    """List reduction, single or in buckets."""
    keys = {} if batch else {"single": True}
    options, task = _set_up(
        "list-reduction",
        20_000 if batch else 5000,
        amount,
        max_active_keys=16 if batch else 64,
        **keys,
    )
    data, _ = list_reduction.splits(options.n_train, options.n_valid, 0)

    def adapter():
        return list_reduction.Buckets(data, batch) if batch else list_reduction.Sequences(data)

    def plain():
        if batch:
            return list_reduction.Buckets(data, batch).plain()
        return list_reduction.plain(data)

    graph = alike(task.graph, rnn_graph.list_reduction_rnn(batch=batch))
    return Pair(
        graph,
        adapter,
        list_reduction_rnn(batch=batch),
        plain,
        task.settings,
        task.tx,
    )


def _trees(amount: Amount, kind: str) -> Pair:
    """A Tree-LSTM; `keep` is 1."""
    best = {
        "policy": "wavefront",
        "min_admission": 64,
        "min_update_interval": 1150,
        "max_active_keys": 64,
    }
    options, task = _set_up(
        "sentiment",
        2000,
        amount,
        cell=kind,
        keep=1.0,
        **best,
    )
    train, _ = sst.synthetic() if amount.synthetic else sst.load(options.data_dir)
    trees = _first(train, len(task.train))
    cells = chosen_cells(options)
    n_words = len(trees.vocabulary)
    compiled = amp.compile(
        tree_lstm.tree_lstm(cells),
        tree_lstm.init(KEY, n_words, cells),
        tree_lstm.SPEC,
    )
    graph = alike(task.graph, tree_lstm_graph(n_words, cells))
    plain = lambda: sst.plain(trees)
    return Pair(
        graph,
        lambda: sst.TreeInstances(trees),
        compiled,
        plain,
        task.settings,
        task.tx,
    )


def _first(trees: sst.Trees, n: int) -> sst.Trees:
    """The first `n` trees."""
    columns = {}
    for name in ("words", "labels", "parents", "sides"):
        columns[name] = getattr(trees, name)[: trees.ptr[n]]
    return replace(trees, ptr=trees.ptr[: n + 1], **columns)


def _sentences(amount: Amount) -> Pair:
    """The tagger, without noise."""
    best = {
        "min_admission": 64,
        "max_dispatch_size": 2048,
        "batch": 32,
        "max_active_keys": 64,
        "noise": 0.0,
    }
    options, task = _set_up("wikiner", 640, amount, **best)
    sentences, _ = wikiner_experiment.load(options)
    counts = wikiner_experiment.counts(sentences.vocabulary)
    sizes = tagger.Sizes(noise=0)
    compiled = amp.compile(
        tagger.tagger(0),
        tagger.init(KEY, *counts, sizes),
        tagger.SPEC,
    )
    graph = alike(task.graph, tagger_graph(*counts, sizes))
    adapter = lambda: wikiner.SentenceInstances(sentences)
    plain = lambda: wikiner.plain(sentences)
    return Pair(
        graph,
        adapter,
        compiled,
        plain,
        task.settings,
        task.tx,
    )


def _shuffles(amount: Amount) -> Pair:
    """Operations in an order of each instance's own."""
    best = {
        "min_admission": 2048,
        "max_dispatch_size": 1024,
        "max_active_keys": 8192,
        "operations": 8,
    }
    _, task = _set_up("permutation", 8192, amount, **best)
    data = permutation.generate(len(task.train))
    params = permutation_model.init(KEY)
    compiled = amp.compile(permutation_model.permutation, params, permutation_model.SPEC)
    graph = alike(task.graph, permutation_graph())
    return Pair(
        graph,
        lambda: ShuffledRows(data),
        compiled,
        lambda: permutation.plain(data),
        task.settings,
        task.tx,
    )


def _experts(amount: Amount, top: int) -> Pair:
    """A mixture of experts, 32 rows an instance; random data."""
    rng = np.random.default_rng(0)
    sizes = mixture.Experts(128, 256, 10, top=top, noisy=False)
    n = 32
    plain = []
    for _ in range(amount.of(100)):
        plain.append(
            {
                "x": rng.normal(size=(n, 128)).astype(np.float32),
                "label": rng.integers(0, 10, n).astype(np.int32),
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
    fields = {
        "i": np.arange(n),
        "n": np.full(n, n),
    }

    def columns():
        return InstanceList(
            [{k: ag.messages(v, **fields) for k, v in one.items()} for one in plain]
        )

    settings = Settings(
        max_active_keys=16, min_update_interval=512, max_dispatch_size=512, policy="wavefront"
    )
    return Pair(
        mixture_graph(sizes),
        columns,
        compiled,
        lambda: plain,
        settings,
        optax.adam(1e-3),
        params,
    )


def _molecules(amount: Amount) -> Pair:
    """QM9's gated graph network."""
    options, task = _set_up("qm9", 1000, amount)
    params = ggnn.init_regression(KEY, qm9.N_FEATURES)
    compiled = amp.compile(
        ggnn.ggnn_regression, params, ggnn.regression_spec(qm9.N_FEATURES, qm9.N_KINDS)
    )
    graph = ggnn_regression(Network(qm9.N_FEATURES))
    return _of_graphs(
        task,
        graph,
        qm9_experiment.data(options)(0).train,
        compiled,
    )


def _questions(amount: Amount) -> Pair:
    """BAbI task 15's gated graph network, on generated graphs."""
    options, task = _set_up("babi15", 1000, amount, epochs=1)
    questions, *_ = babi15_experiment.data(options, 0)
    params = ggnn.init_selection(KEY, 1, 5)
    compiled = amp.compile(
        ggnn.ggnn_selection,
        params,
        ggnn.selection_spec(1, babi15.N_KINDS),
    )
    graph = ggnn_selection(Network(1, 5, 2))
    return _of_graphs(
        task,
        graph,
        questions.instances(0, len(task.train)),
        compiled,
    )


def _of_graphs(
    task: Any,
    graph: Graph,
    data: GraphInstances,
    compiled: Compiled,
) -> Pair:
    def fresh() -> GraphInstances:
        """The same graphs, without what was made of them before."""
        return replace(data, graphs=replace(data.graphs))

    return Pair(
        alike(task.graph, graph),
        fresh,
        compiled,
        lambda: fresh().plain(),
        task.settings,
        task.tx,
    )


def _pondering(amount: Amount) -> Pair:
    """Adaptive computation time; sequences of 1 to 9 random inputs."""
    rng = np.random.default_rng(0)
    sizes = act.Ponder(32, 128, 2)
    plain = []
    for n in rng.integers(1, 10, amount.of(500)):
        plain.append(
            {
                "x": rng.normal(size=(int(n), 32)).astype(np.float32),
                "label": np.int32(n % 2),
            }
        )
    compiled = amp.compile(
        act.act_rnn(sizes),
        act.init(KEY, sizes),
        act.spec(sizes),
    )
    settings = Settings(
        max_active_keys=64, min_update_interval=512, max_dispatch_size=512, policy="wavefront"
    )
    return Pair(
        act_rnn(sizes),
        lambda: act_messages(plain, 128),
        compiled,
        lambda: plain,
        settings,
        optax.adam(1e-3),
    )


def alike(graph: Graph, other: Graph) -> Graph:
    """Gives nodes of a graph the options that those of the same name have in another: the transform and the interval.

    Args:
      graph: Whose nodes' options are taken.
      other: Whose nodes get them; it has no others than `graph` has.

    Returns:
      `other`.
    """
    for name, node in other.parameterised.items():
        options = graph.nodes[name].options
        node.options = replace(
            node.options, tx=options.tx, min_update_interval=options.min_update_interval
        )
    return other


PAIRS: Mapping[str, Callable[[Amount], Pair]] = {
    "list-reduction": partial(_sequences, batch=100),
    "list-reduction-single": _sequences,
    "tree-lstm-tai": partial(_trees, kind="tai"),
    "tree-lstm-fold": partial(_trees, kind="fold"),
    "tagger": _sentences,
    "permutation": _shuffles,
    "mixture-top-1": partial(_experts, top=1),
    "mixture-top-2": partial(_experts, top=2),
    "act": _pondering,
    "qm9": _molecules,
    "babi15": _questions,
}
"""By name, what makes the pair."""
