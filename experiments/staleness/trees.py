"""A small Tree-LSTM on sentiment trees, as one function of a batch (`amp.vmap`): a whole gradient is late."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from ampjax.optim import RandomDelay
from experiments.data import sst
from experiments.models.tree_lstm import SPEC, Cells, init, tree_lstm
from experiments.staleness.training import grid_of_losses

CELLS = Cells("fold", 24, 24, keep=1.0)

BATCH = 16
N_TRAIN = 960
N_VALID = 200


@dataclass(frozen=True)
class PackedTrees:
    """The treebank, packed.

    Args:
      losses: From parameters and a batch to the loss of each tree, summed over its nodes.
      n_words: Words of the vocabulary.
      train: Batches of `BATCH` trees, of equal shapes, with an axis for the batches in front.
      n_batches: How many.
      valid: The trees for validation, a batch.
      nodes_per_tree: Of training trees, on average.
      nodes_of_valid: All nodes of the trees for validation.
    """

    losses: Any
    n_words: int
    train: Any
    n_batches: int
    valid: Any
    nodes_per_tree: float
    nodes_of_valid: int


def grid(
    remedy: str,
    delay: int | RandomDelay,
    data_dir: Path | None,
    *,
    rates: Any,
    seeds: Any,
    steps: int,
) -> np.ndarray:
    """The losses at the ends of runs, for all learning rates and seeds.

    Args:
      remedy: By its name.
      delay: In updates.
      data_dir: The folder with the treebank; else `AMPJAX_DATA`; without either, trees are generated.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters and of the order of batches.
      steps: Updates of a run.

    Returns:
      The mean validation loss of the last tenth, in nats a node, `[rates, seeds]`; inf where it diverged.
    """
    packed = _packed(data_dir)

    def train(params: Any, key: jax.Array) -> jax.Array:
        number = jax.random.randint(key, (), 0, packed.n_batches)
        batch = jax.tree.map(lambda leaf: leaf[number], packed.train)
        return packed.losses(params, batch).mean() / packed.nodes_per_tree

    def valid(params: Any) -> jax.Array:
        return packed.losses(params, packed.valid).sum() / packed.nodes_of_valid

    return grid_of_losses(
        remedy,
        delay,
        lambda key: init(key, packed.n_words, CELLS),
        train,
        valid,
        rates=rates,
        seeds=seeds,
        steps=steps,
    )


@functools.cache
def _packed(data_dir: Path | None) -> PackedTrees:
    """Loads the treebank, or draws trees, and packs the first ones."""
    if data_dir or os.environ.get("AMPJAX_DATA"):
        train, valid = sst.load(data_dir, min_count=2)
    else:
        train, valid = sst.synthetic(N_TRAIN, N_VALID)
    n_words = len(train.vocabulary)
    like = jax.eval_shape(lambda: init(jax.random.key(0), n_words, CELLS))
    losses = amp.vmap(tree_lstm(CELLS), SPEC, params=like)
    n_batches = min(N_TRAIN, len(train)) // BATCH
    of_training = _first(train, n_batches * BATCH)
    held = _first(valid, N_VALID)
    n_nodes = sum(map(_n_nodes, of_training))
    return PackedTrees(
        losses,
        n_words,
        jax.tree.map(jnp.asarray, losses.pack(of_training, parts=n_batches)),
        n_batches,
        losses.pack(held),
        n_nodes / len(of_training),
        sum(map(_n_nodes, held)),
    )


def _first(trees: sst.Trees, n: int) -> list[Any]:
    """The first trees as examples of the model, at most so many."""
    examples = sst.plain(trees)
    return [examples[number] for number in range(min(n, len(examples)))]


def _n_nodes(example: Any) -> int:
    """The nodes of a tree, each of which has a loss."""
    return len(example["tree"].value["label"])
