"""Dipole moments of molecules with a gated graph network (AMPNet, section 6 and B.4; arXiv version, appendix C)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import Instances
from ampjax.train.history import History
from experiments.by_hand import ggnn_graph
from experiments.common import Options, Task, require_positive, run
from experiments.data import qm9
from experiments.intervals import cosine, set_options, update_together, updates_per_instance
from experiments.models.ggnn import ggnn_regression, init_regression, regression_spec


@dataclass(frozen=True, kw_only=True)
class Qm9Options(Options):
    """QM9: the dipole moment of a molecule; the error is the mean absolute one over chemical accuracy, 0.1 debye.

    A gradient row is an atom at a step (`update`), a bond in one direction at a step (`edge0` ...), or an atom (`readout`). Nodes see
    very different numbers of them: by default each waits for as many as `batch` molecules bring on average, so all update equally often.

    Args:
      encoding: `collect`: a molecule is one ragged message (ICLR version). `flatmap`: an atom is a message (arXiv version), in a graph by hand.
      full: The paper's settings on all molecules of the data folder: 25 epochs, if no other number is given.
      n_train: Training molecules; by default all but those for validation.
      n_valid: Validation molecules.
      hidden: Features of an atom's state.
      steps: Propagation steps.
      batch: Molecules whose gradient rows make an update.
      learning_rate: The initial learning rate of Adam; it falls to 0 along a cosine over all epochs.
      max_active_keys: Molecules in flight at most.
      max_dispatch_size: Rows in one dispatch at most: a molecule has about 18 atoms and 37 directed bonds.
      epochs: The most epochs; the learning rate decays over as many.
      replicas: Copies of each edge map and of the gated unit.
      target: Validation error to reach.
    """

    encoding: Literal["collect", "flatmap"] = "collect"
    n_train: int | None = None
    n_valid: int = 1500
    hidden: int = 100
    steps: int = 4
    batch: int = 20
    learning_rate: float = 1e-3
    max_active_keys: int = 32
    max_dispatch_size: int = 1024
    epochs: int = 4
    target: float = 6.4


def main(options: Qm9Options) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If the file is missing or damaged.
    """
    if options.full:
        epochs = 25 if options.epochs == Qm9Options.epochs else options.epochs
        options = replace(options, n_train=None, epochs=epochs)
    return run("qm9", options, tasks(options))


def tasks(options: Qm9Options) -> Callable[[int], Task]:
    """Reads the data; gives a function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If the file is missing or damaged.
    """
    require_positive(
        "The defaults are 1e-3 and 20.", learning_rate=options.learning_rate, batch=options.batch
    )
    splits = data(options)

    def task(seed: int) -> Task:
        split = splits(seed)
        settings = options.settings(seed, 1)
        graph, train, valid = _model(options, split, seed)
        settings = update_together(graph, train, settings, options, options.batch, "readout")
        updates = updates_per_instance(graph, train, settings)
        total = len(train) * options.epochs
        set_options(
            graph,
            lambda node: {"tx": optax.adam(cosine(options.learning_rate, updates[node] * total))},
        )
        return Task(graph, train, valid, settings, metric="error")

    return task


def data(options: Qm9Options) -> Callable[[int], qm9.Split]:
    """Reads the molecules; gives a function from a seed to those for training and those for validation.

    Raises:
      DataError: If the file is missing or damaged.
    """
    molecules = qm9.synthetic() if options.synthetic else qm9.load(options.data_dir)
    if options.synthetic:
        n_valid = min(options.n_valid, len(molecules) // 5)
    else:
        n_valid = options.n_valid
    return lambda seed: qm9.split(molecules, n_valid, seed, options.n_train, options.encoding)


def scale(split: qm9.Split) -> float:
    """The factor from the targets' unit to that of the error: chemical accuracy."""
    return split.std / qm9.CHEMICAL_ACCURACY


def _model(
    options: Qm9Options, split: qm9.Split, seed: int
) -> tuple[ag.Graph, Instances, Instances]:
    """The graph in its encoding, with its data for training and for validation."""
    if options.encoding == "flatmap":
        sizes = qm9.N_FEATURES, options.hidden, options.steps, qm9.N_KINDS
        network = ggnn_graph.Network(
            *sizes,
            split.train.graphs,
            options.replicas,
            options.copies,
        )
        return ggnn_graph.ggnn_regression(network, scale(split)), split.train, split.valid
    model = partial(
        ggnn_regression, steps=options.steps, scale=scale(split), replicas=options.replicas
    )
    params = init_regression(
        jax.random.key(seed),
        qm9.N_FEATURES,
        options.hidden,
        qm9.N_KINDS,
    )
    compiled = amp.compile(
        model, params, regression_spec(qm9.N_FEATURES, qm9.N_KINDS), copies=options.copies
    )
    return compiled.graph, compiled.data(split.train), compiled.data(split.valid)
