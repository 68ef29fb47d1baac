"""The project's models at sizes that build at once, with instances of every shape that they know: for tests of control flow."""

import functools

import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import InstanceList
from experiments.by_hand.act_graph import act_rnn
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection
from experiments.by_hand.mixture_graph import mixture_of_experts
from experiments.by_hand.permutation_graph import ShuffledRows
from experiments.by_hand.permutation_graph import permutation as permutation_graph
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tagger_graph import tagger
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.data import list_reduction, mnist, permutation, sst, wikiner
from experiments.data.graphs import GraphInstances, Graphs
from experiments.models.act import Ponder
from experiments.models.mixture import Experts
from experiments.models.mlp import mlp
from experiments.models.tagger import Sizes
from experiments.models.tree_lstm import Cells

KINDS = 3


def sequences(n=12, **options):
    return list_reduction_rnn(4, **options), list_reduction.Sequences(
        list_reduction.generate(n), hidden=4
    )


def buckets():
    return list_reduction_rnn(4, batch=3), list_reduction.Buckets(
        list_reduction.generate(60), 3, hidden=4
    )


def trees(**options):
    found, _ = sst.synthetic(6, 1)
    return tree_lstm(
        len(found.vocabulary),
        Cells("tai", 4, 4, 0.5),
        **options,
    ), sst.TreeInstances(found)


def tagged(**options):
    found = wikiner.synthetic(40, 1)[0]  # with fewer all words are rare
    words = len(found.vocabulary.words)
    characters = len(found.vocabulary.characters)
    return tagger(
        words,
        characters,
        Sizes(3, 4, 5, 6, noise=0.0),
        **options,
    ), amp.Subset(wikiner.SentenceInstances(found), np.arange(5))


def graphs(selection=False, flatmap=False, **options):
    rng = np.random.default_rng(0)
    sizes = np.array([1, 4, 3, 3, 8])
    edges = [
        (1, 0, 1, 0),
        (1, 1, 0, 0),
        (1, 1, 3, 2),
        (2, 0, 1, 1),
        (2, 0, 1, 1),
        (2, 2, 2, 2),
    ]
    edges += [(4, *rng.integers(0, 8, 2), rng.integers(0, 3)) for _ in range(20)]
    found = Graphs.from_edges(
        np.concatenate([[0], np.cumsum(sizes)]),
        edges,
        KINDS,
    )
    network = Network(
        3,
        5,
        3,
        KINDS,
        found if flatmap else None,
        **options,
    )
    x = rng.normal(size=(found.node_ptr[-1], 3)).astype(np.float32)
    answer = np.zeros((len(x), 1), np.float32)
    answer[found.node_ptr[:-1]] = 1
    if selection:
        rows = {"x": x, "answer": answer}
        targets = {}
    else:
        rows = {"x": x}
        targets = {"target": np.zeros(len(found), np.float32)}
    data = GraphInstances(
        found,
        np.arange(len(found)),
        rows,
        targets,
        "flatmap" if flatmap else "collect",
    )
    return (ggnn_selection if selection else ggnn_regression)(network), data


def digits(**options):
    found, _ = mnist.synthetic(60, 10)
    return mlp(
        (784, 8, 8, 10),
        5,
        **options,
    ), mnist.Batches(found, 5)


def permuted():
    return permutation_graph(3, 4), ShuffledRows(permutation.generate(9, 3))


def pondered():
    """Adaptive computation time: a loop that a payload ends."""
    sizes = Ponder(
        4,
        6,
        2,
        max_steps=4,
        epsilon=0.05,
        time_penalty=0.01,
    )
    data = []
    for length in (1, 3, 2):
        zero = np.zeros(1, np.int64)
        own = np.full(1, length)
        start = ag.messages(
            np.zeros((1, 6), np.float32),
            t=zero,
            length=own,
            step=zero,
            more=zero,
        )
        x = ag.messages(
            np.zeros((length, 4), np.float32),
            t=np.arange(length),
            length=np.full(length, length),
        )
        data.append({"x": x, "s0": start, "label": np.int32(0)})
    return act_rnn(sizes), InstanceList(data)


def experts():
    """A mixture of experts: a payload chooses."""
    data = []
    for n in (1, 4, 2):
        own = {
            "i": np.arange(n),
            "n": np.full(n, n),
        }
        label = ag.messages(np.zeros(n, np.int32), **own)
        data.append(
            {
                "x": ag.messages(
                    np.zeros((n, 6), np.float32),
                    **own,
                ),
                "label": label,
            }
        )
    return mixture_of_experts(Experts(6, 3, 3, 4, top=2)), InstanceList(data)


MODELS = {
    "sequences": sequences,
    "sequences in replicas": functools.partial(sequences, replicas=2),
    "buckets": buckets,
    "trees": trees,
    "trees in replicas": functools.partial(trees, replicas=2),
    "tagger": tagged,
    "tagger in replicas": functools.partial(tagged, replicas=2),
    "molecules": graphs,
    "molecules, gates apart": functools.partial(graphs, separate_gates=True),
    "molecules, edge by edge": functools.partial(graphs, flatmap=True),
    "questions": functools.partial(graphs, selection=True),
    "questions, edge by edge": functools.partial(graphs, selection=True, flatmap=True),
    "perceptron": digits,
    "perceptron in copies": functools.partial(digits, copies=2),
    "permutations": permuted,
    "pondering": pondered,
    "experts": experts,
}
"""By name: makes a graph and data for it."""


@functools.cache
def model(name):
    """A model's graph and its data, made once."""
    return MODELS[name]()
