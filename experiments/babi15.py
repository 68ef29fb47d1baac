"""bAbI task 15, basic deduction, with a gated graph network (AMPNet, section 6 of the arXiv version)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.instances import Instances
from ampjax.train.history import History
from experiments.by_hand import ggnn_graph
from experiments.common import Options, Task, require_positive, run
from experiments.data import babi15
from experiments.data.readers.data_checks import at_least_one
from experiments.intervals import update_together
from experiments.models.ggnn import ggnn_selection, init_selection, selection_spec


@dataclass(frozen=True, kw_only=True)
class Babi15Options(Options):
    """bAbI 15: select the node that answers the question. Generated graphs of 54 nodes, or those of 8 nodes from files.

    Each of the network's nodes waits for the gradient rows that `batch` questions bring, as in `qm9`.

    Args:
      encoding: `collect`: a graph is one ragged message (ICLR version). `flatmap`: a node is a message (arXiv version), in a graph by hand.
      nodes: 54: generated graphs, fresh ones in each epoch. 8: graphs from files.
      fold: Of the files, 1 to 10.
      full: With 8 nodes: all questions of the fold's files. The generated task is the paper's as it is.
      n_train: Questions in an epoch; with 8 nodes, the first ones of the training file.
      n_valid: Validation questions.
      hidden: Features of a node's state.
      steps: Propagation steps.
      batch: Questions whose gradient rows make an update.
      learning_rate: Adam's.
      max_dispatch_size: Rows in one dispatch at most: a graph of 54 nodes has 108 directed edges.
      replicas: Copies of each edge map and of the gated unit.
      synthetic: With 8 nodes: generated graphs in place of files.
      target: Validation accuracy to reach.
    """

    encoding: Literal["collect", "flatmap"] = "collect"
    nodes: Literal[54, 8] = 54
    fold: int = 1
    n_train: int = 100
    n_valid: int = 1000
    hidden: int = 5
    steps: int = 2
    batch: int = 10
    learning_rate: float = 5e-3
    max_dispatch_size: int = 1024
    epochs: int = 100
    target: float = 1.0


def main(options: Babi15Options) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    return run("babi15", options, tasks(options))


def tasks(options: Babi15Options) -> Callable[[int], Task]:
    """Reads the data; gives a function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    require_positive(
        "The defaults are 5e-3 and 10.", learning_rate=options.learning_rate, batch=options.batch
    )
    if not 1 <= options.fold <= 10:
        raise SettingsError("--fold", "1 to 10", f"{options.fold}", "There are ten folds.")

    def task(seed: int) -> Task:
        graph, train, valid = _model(options, seed)
        settings = options.settings(seed, 1)
        settings = update_together(graph, train, settings, options, options.batch, "score")
        return Task(
            graph,
            train,
            valid,
            settings,
            optax.adam(options.learning_rate),
        )

    return task


def _model(
    options: Babi15Options,
    seed: int,
) -> tuple[ag.Graph, Instances, Instances]:
    """The graph in its encoding, with its data for training and for validation."""
    questions, train, valid = data(options, seed)
    if options.encoding == "flatmap":
        sizes = 1, options.hidden, options.steps, babi15.N_KINDS
        network = ggnn_graph.Network(
            *sizes,
            questions.graphs,
            options.replicas,
            options.copies,
        )
        return ggnn_graph.ggnn_selection(network), train, valid
    model = partial(ggnn_selection, steps=options.steps, replicas=options.replicas)
    params = init_selection(
        jax.random.key(seed),
        1,
        options.hidden,
        babi15.N_KINDS,
    )
    compiled = amp.compile(
        model,
        params,
        selection_spec(1, babi15.N_KINDS),
        copies=options.copies,
    )

    def pumped(part: Any) -> Instances:
        if isinstance(part, babi15.Fresh):
            return replace(part, supply=pumped(part.supply))
        return compiled.data(part)

    return compiled.graph, pumped(train), pumped(valid)


def data(
    options: Babi15Options,
    seed: int,
) -> tuple[babi15.Questions, Instances, Instances]:
    """All questions, then those for training and those for validation."""
    encoding = options.encoding
    n = options.n_train
    n_valid = options.n_valid
    at_least_one("babi15", n_train=n, n_valid=n_valid)
    if options.nodes == 54:
        n_all = n * (options.epochs + 1)
        questions = babi15.generate(n_all + n_valid, seed=seed)
        train = babi15.Fresh(questions.instances(0, n_all, encoding), n)
        return questions, train, questions.instances(n_all, None, encoding)
    if options.synthetic:
        train = babi15.generate(n, 8, seed)
        valid = babi15.generate(n_valid, 8, seed + 1)
    else:
        train, valid = babi15.load(options.data_dir, options.fold)
    if options.full:
        n = len(train)
        n_valid = len(valid)
    start = len(train)
    questions = train.followed_by(valid)
    return (
        questions,
        questions.instances(0, min(n, start), encoding),
        questions.instances(start, start + n_valid, encoding),
    )
