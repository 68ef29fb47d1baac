"""Sentiment: ours against the same Tree-LSTM in plain JAX, level by level over minibatches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

import ampjax as amp
from experiments.bench.common import Entry, Result, compare
from experiments.common import Sample
from experiments.sentiment import SentimentOptions, tasks

HERE = "experiments.bench"


@dataclass(frozen=True, kw_only=True)
class SentimentBench:
    """Sentiment: training and inference throughput, medians, programs in turn.

    Args:
      passes: Measured passes of each program.
      n_train: Training trees in a pass; 0 takes all.
      cell: `fold` or `tai`.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
      max_active_keys: Ours: trees in flight; one program for each number.
      batch: The peer's: trees in a minibatch; one program for each number.
      to_target: Train each program up to this validation accuracy first (5 passes at most), and measure the time.
      synthetic: Generated trees.
      data_dir: Folder with the treebank; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each program.
    """

    passes: int = 5
    n_train: int = 1000
    cell: Literal["fold", "tai"] = "tai"
    embedding: int = 300
    hidden: int | None = None
    max_active_keys: tuple[int, ...] = (16, 64)
    batch: tuple[int, ...] = (25, 64)
    to_target: float | None = None
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


def main(options: SentimentBench, console: Console | None = None) -> list[Result]:
    """Prints the comparison.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    data = {
        "cell": options.cell,
        "embedding": options.embedding,
        "n_train": options.n_train,
        "synthetic": options.synthetic,
        "data_dir": str(options.data_dir) if options.data_dir else None,
    }
    threads = {"NPROC": None, "JAX_NUM_CPU_DEVICES": "1"}
    ours = [
        Entry("ampjax", f"max_active_keys {keys}", f"{HERE}.sentiment:Ours", arguments, threads)
        for keys in options.max_active_keys
        for arguments in [{**data, "hidden": options.hidden, "max_active_keys": keys}]
    ]
    peers = [
        Entry("jax levels", f"batch {batch}", f"{HERE}.peers.sentiment_jax:Model", arguments, threads)
        for batch in options.batch
        for arguments in [{**data, "hidden": options.hidden or 0, "batch": batch}]
    ]
    return compare("sentiment", [*ours, *peers], options.passes, options.to_target, 5, options.json, console)


class Ours:
    """Our program: the experiment, pass by pass.

    Args:
      n_train: Training trees in a pass; 0 takes all.
      **arguments: Options of `SentimentOptions`.
    """

    def __init__(self, n_train: int, **arguments: Any):
        folder = arguments.pop("data_dir")
        options = SentimentOptions(**arguments, data_dir=Path(folder) if folder else None)
        self._task = tasks(options)(0)
        n = n_train or len(self._task.train)
        self._task = replace(self._task, train=Sample(self._task.train, np.arange(min(n, len(self._task.train)))))
        self._trainer = amp.Trainer(self._task.graph, self._task.tx, settings=self._task.settings)
        self._updates = 0.0

    def train(self) -> int:
        """A pass over the training trees in random order."""
        history = self._trainer.fit(self._task.train, epochs=1, progress=False)
        self._updates = history[0].updates / len(self._trainer.params)
        return len(self._task.train)

    def infer(self) -> int:
        """A pass over the validation trees."""
        self.evaluate()
        return len(self._task.valid)

    def evaluate(self) -> float:
        """The accuracy over all nodes of the validation trees."""
        return self._trainer.evaluate(self._task.valid)["accuracy"]

    def updates(self) -> float:
        """Optimizer steps in the last pass, a node on average."""
        return self._updates
