"""What runs on machines that nobody owns: the papers' models at their sizes, with as many instances as are wanted, for control flow alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances, Messages, Subset
from experiments.by_hand.ggnn_graph import Network, ggnn_regression
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tagger_graph import tagger
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.data import list_reduction, mnist, qm9, sst, wikiner
from experiments.models.mlp import mlp
from experiments.models.tagger import Sizes
from experiments.models.tree_lstm import Cells

BATCH = 100
"""Examples in an instance of list reduction and of the perceptron (AMPNet, B.1 and B.2)."""

DIFFERENT = 1000
"""Instances that differ from each other; where more are wanted they come again."""

Name = Literal["list-reduction", "tree-lstm", "ggnn", "perceptron", "tagger"]

NAMES: tuple[Name, ...] = ("list-reduction", "tree-lstm", "ggnn", "perceptron", "tagger")


@dataclass(frozen=True)
class Model:
    """A model and instances for it.

    Args:
      graph: From a number of replicas to the graph.
      data: Some instances, those of synthetic data.
      per_instance: Examples in an instance.
    """

    graph: Callable[[int], Graph]
    data: Instances
    per_instance: int = 1

    def instances(self, n: int) -> Subset:
        """So many instances."""
        return Subset(
            self.data,
            np.arange(n) % len(self.data),
        )


def model(name: Name, seed: int = 0) -> Model:
    """A model at the paper's sizes.

    Args:
      name: Which.
      seed: Of the synthetic data.
    """
    return MODELS[name](seed)


@dataclass(frozen=True)
class Images:
    """Instances of the perceptron whose images nobody will look at: they take no memory.

    Args:
      n: Instances.
    """

    n: int

    def __len__(self) -> int:
        return self.n

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the instances `ids`, by pump."""
        n = len(ids)
        each = np.arange(len(ids))
        images = np.broadcast_to(
            np.float32(0),
            (n, BATCH, mnist.N_PIXELS),
        )
        return {
            "image": Messages(images, each),
            "label": Messages(np.zeros((n, BATCH), np.int32), each),
        }


def _list_reduction(seed: int) -> Model:
    data = list_reduction.Buckets(list_reduction.generate(BATCH * DIFFERENT, seed), BATCH)
    order = np.random.default_rng(seed).permutation(len(data))
    return Model(
        lambda replicas: list_reduction_rnn(batch=BATCH, replicas=replicas),
        Subset(data, order),
        BATCH,
    )


def _tree_lstm(seed: int) -> Model:
    trees, _ = sst.synthetic(DIFFERENT, 1, seed)
    cells = Cells("tai", 300, 150, 1.0)
    return Model(
        lambda n: tree_lstm(len(trees.vocabulary), cells, replicas=n),
        sst.TreeInstances(trees),
    )


def _ggnn(seed: int) -> Model:
    molecules = qm9.split(qm9.synthetic(DIFFERENT + 1, seed), 1, seed).train
    return Model(
        lambda n: ggnn_regression(Network(qm9.N_FEATURES, n_kinds=qm9.N_KINDS, replicas=n)),
        molecules,
    )


def _perceptron(seed: int) -> Model:
    sizes = (mnist.N_PIXELS, 784, 784, 784, 10)
    return Model(
        lambda replicas: mlp(sizes, BATCH, replicas),
        Images(DIFFERENT),
        BATCH,
    )


def _tagger(seed: int) -> Model:
    sentences, _ = wikiner.synthetic(DIFFERENT, 1, seed)
    words = len(sentences.vocabulary.words)
    characters = len(sentences.vocabulary.characters)
    return Model(
        lambda n: tagger(words, characters, Sizes(noise=0), n),
        wikiner.SentenceInstances(sentences),
    )


MODELS: Mapping[str, Callable[[int], Model]] = {
    "list-reduction": _list_reduction,
    "tree-lstm": _tree_lstm,
    "ggnn": _ggnn,
    "perceptron": _perceptron,
    "tagger": _tagger,
}


def single_sequences(n: int, seed: int = 0) -> Any:
    """List reduction a sequence at a time: the smallest messages, of which a machine's control has most to do."""
    return Subset(
        list_reduction.Sequences(list_reduction.generate(max(1, min(n, 20_000)), seed)),
        np.arange(n) % 20_000,
    )
