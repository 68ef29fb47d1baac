"""Our program in every comparison: an experiment's task, pass by pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import ampjax as amp
from ampjax.train.training_data import n_examples
from experiments import babi15, list_reduction, mnist, permutation, qm9, sentiment, wikiner
from experiments.common import Task
from experiments.data.babi15 import Fresh

EXPERIMENTS: dict[str, tuple[Any, Any]] = {
    "mnist": (mnist, mnist.MnistOptions),
    "permutation": (permutation, permutation.PermutationOptions),
    "list-reduction": (list_reduction, list_reduction.ListReductionOptions),
    "sentiment": (sentiment, sentiment.SentimentOptions),
    "wikiner": (wikiner, wikiner.WikinerOptions),
    "qm9": (qm9, qm9.Qm9Options),
    "babi15": (babi15, babi15.Babi15Options),
}
"""By name: the module, and its options."""


def set_up(
    experiment: str,
    n_train: int = 0,
    data_dir: str | None = None,
    **arguments: Any,
) -> tuple[Any, Task]:
    """An experiment's options, and its task for seed 0.

    Args:
      experiment: Its name.
      n_train: Training instances in a pass; 0 takes all.
      data_dir: Folder with data files.
      **arguments: Other options of the experiment.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    module, kind = EXPERIMENTS[experiment]
    if n_train:
        size = {"n_train": n_train}
    elif hasattr(kind, "full"):
        size = {"full": True}
    else:
        size = {}
    options = kind(
        data_dir=Path(data_dir) if data_dir else None,
        **size,
        **arguments,
    )
    return options, module.tasks(options)(0)


class Ours:
    """An experiment, pass by pass.

    Args:
      experiment: Its name.
      n_train: Training instances in a pass; 0 takes all.
      **arguments: Options of the experiment.
    """

    def __init__(
        self,
        experiment: str,
        n_train: int = 0,
        **arguments: Any,
    ):
        _, self._task = set_up(experiment, n_train, **arguments)
        self._train: Any = self._task.train
        self._trainer = amp.Trainer(
            self._task.graph,
            self._task.tx,
            settings=self._task.settings,
        )
        self._trainer.warm_up(
            self._task.train,
            self._task.valid,
            progress=False,
        )
        self._updates = 0.0

    def train(self) -> int:
        """A pass over the training instances in random order; of data that move on from epoch to epoch, the next ones."""
        history = self._trainer.fit(self._train, epochs=1, progress=False)
        self._updates = history[0].updates / len(self._trainer.params)
        if isinstance(self._train, Fresh):
            self._train = self._train.reshuffle(np.random.default_rng(0))
        return n_examples(self._train)

    def infer(self) -> int:
        """A pass over the validation instances."""
        self.evaluate()
        return n_examples(self._task.valid)

    def evaluate(self) -> float:
        """The validation accuracy, or for regression the error."""
        return self._trainer.evaluate(self._task.valid)[self._task.metric]

    def updates(self) -> float:
        """Optimizer steps in the last pass, a node on average."""
        return self._updates
