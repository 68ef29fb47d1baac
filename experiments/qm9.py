"""Dipole moments of molecules with a gated graph network (AMPNet, section 6 and B.4; arXiv version, appendix C)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import optax

from ampjax.data import qm9
from ampjax.models.ggnn import Network, ggnn_regression
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.intervals import cosine, set_options, update_together, updates_per_instance


@dataclass(frozen=True, kw_only=True)
class Qm9Options(Options):
    """QM9: the dipole moment of a molecule; the error is the mean absolute one over chemical accuracy, 0.1 debye.

    A gradient row is an atom at a step (`update`), a bond in one direction at a step (`edge0` ...), or an atom (`readout`). Nodes see
    very different numbers of them: by default each waits for as many as `batch` molecules bring on average, so all update equally often.

    Args:
      encoding: `collect`: a molecule is one ragged message (ICLR version). `flatmap`: an atom is a message (arXiv version).
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
    require_positive("The defaults are 1e-3 and 20.", learning_rate=options.learning_rate, batch=options.batch)
    if options.synthetic:
        molecules = qm9.synthetic()
        options = replace(options, n_valid=min(options.n_valid, len(molecules) // 5))
    else:
        molecules = qm9.load(options.data_dir)

    def task(seed: int) -> Task:
        data = qm9.split(molecules, options.n_valid, seed, options.n_train, options.encoding)
        tables = molecules.graphs if options.encoding == "flatmap" else None
        several = options.replicas, options.copies
        network = Network(qm9.N_FEATURES, options.hidden, options.steps, qm9.N_KINDS, tables, *several)
        graph = ggnn_regression(network, scale=data.std / qm9.CHEMICAL_ACCURACY)
        settings = options.settings(seed, 1)
        settings = update_together(graph, data.train, settings, options, options.batch, "readout")
        updates = updates_per_instance(graph, data.train, settings)
        total = len(data.train) * options.epochs
        set_options(graph, lambda node: {"tx": optax.adam(cosine(options.learning_rate, updates[node] * total))})
        return Task(graph, data.train, data.valid, settings, metric="error")

    return task
