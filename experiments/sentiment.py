"""Sentiment of every phrase with a Tree-LSTM (AMPNet, section 6 and B.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax

import ampjax as amp
from ampjax.ir.instances import Subset
from ampjax.sparse import Table
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.data import glove, sst
from experiments.data.readers.data_checks import at_least_one
from experiments.intervals import set_options
from experiments.models.tree_lstm import SPEC, Cells, init, tree_lstm

EMBEDDING_INTERVAL = 1000
"""B.3: gradient rows between updates of the embedding, whose rows are many and rarely seen."""


@dataclass(frozen=True, kw_only=True)
class SentimentOptions(Options):
    """Sentiment: every node of the treebank's trees into 5 classes.

    A gradient row is a node of a tree, so an interval of 50 (B.3) is one or two trees. Trees enter several at once and travel in step: it fills
    dispatches, and keeps updates from falling between a tree's way forth and back, which the sums of gradients don't forgive.

    Args:
      cell: `tai`: that of Tai et al. 2015, hidden 150, dropout on the classifier's input. `fold`: TensorFlow Fold's, hidden 300, dropout in three
        places: the paper's choice, which wants word vectors (`--glove`) and learns slowly from random ones. By default `tai`, with `full` `fold`.
      full: All trees, with the paper's cell.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
      keep: Probability to keep an entry in dropout; by default the cell's.
      learning_rate: Adagrad's.
      n_train: Training trees, the first ones of the file; by default, and with `full`, all. Words are those of all.
      glove: A file of word vectors as text (GloVe's format); words without one start at random.
      synthetic: Generated trees in place of files.
      max_active_keys: Trees in flight at most.
      table: Word vectors lie in a table in host memory, where they are updated, in place of a node's parameters on a device.
      target: Validation accuracy over all nodes to reach.
    """

    cell: Literal["fold", "tai"] | None = None
    embedding: int = 300
    hidden: int | None = None
    keep: float | None = None
    learning_rate: float = 0.05
    policy: str = "wavefront"
    min_admission: int = 8
    max_dispatch_size: int = 512
    n_train: int | None = None
    glove: Path | None = None
    table: bool = False
    epochs: int = 5
    target: float = 0.81


def main(options: SentimentOptions) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    return run("sentiment", options, tasks(options))


def tasks(options: SentimentOptions) -> Callable[[int], Task]:
    """Reads the data; gives a function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    require_positive("Fold's is 0.05.", learning_rate=options.learning_rate)
    train, valid = sst.synthetic() if options.synthetic else sst.load(options.data_dir)
    n_train = len(train) if options.n_train is None or options.full else options.n_train
    at_least_one("sentiment", n_train=n_train)
    vectors = start_vectors(options, train)
    cells = chosen_cells(options)

    def task(seed: int) -> Task:
        tx = adagrad(options.learning_rate)
        table_tx = optax.sgd(0.1)
        if (
            cells.kind == "fold"
        ):  # which scales the gradients of vectors that are good from the start
            if vectors:
                table_tx = optax.chain(optax.scale(0.1), tx)
            else:
                table_tx = tx
        params = init(
            jax.random.key(seed),
            len(train.vocabulary),
            cells,
            vectors,
        )
        own: dict[str, Any] = {"min_update_interval": EMBEDDING_INTERVAL, "tx": table_tx}
        if options.table:
            params["embed"] = Table(
                np.asarray(params["embed"]),
                own.pop("tx"),
            )
        compiled = amp.compile(
            tree_lstm(cells, options.replicas), params, SPEC, copies=options.copies
        )
        set_options(
            compiled.graph,
            lambda node: own if node.split("/")[0] == "embed" else {},
        )
        instances = Subset(
            compiled.data(sst.plain(train)),
            np.arange(min(n_train, len(train))),
        )
        settings = options.settings(seed, 50, gradient="sum")
        return Task(
            compiled.graph,
            instances,
            compiled.data(sst.plain(valid)),
            settings,
            tx,
        )

    return task


def chosen_cells(options: SentimentOptions) -> Cells:
    """The cells that the options ask for.

    Raises:
      SettingsError: If a size is outside what it can be.
    """
    kind = options.cell or ("fold" if options.full else "tai")
    hidden, keep = cell_sizes(kind)
    return Cells(
        kind,
        options.embedding,
        hidden if options.hidden is None else options.hidden,
        keep if options.keep is None else options.keep,
    )


def cell_sizes(cell: str) -> tuple[int, float]:
    """The hidden size, and the probability to keep an entry in dropout, of `fold` (Looks et al. 2017) or `tai` (Tai et al. 2015)."""
    return {"fold": (300, 0.75), "tai": (150, 0.5)}[cell]


def adagrad(rate: float) -> optax.GradientTransformation:
    """Adagrad as both papers used it: accumulators start at 0.1."""
    return optax.adagrad(rate, initial_accumulator_value=0.1)


def start_vectors(
    options: SentimentOptions, train: sst.Trees
) -> Callable[[jax.Array], jax.Array] | None:
    """The initial word vectors from a file, if one is given."""
    if options.glove is None:
        return None
    return glove.table(options.glove, train.vocabulary, options.embedding)
