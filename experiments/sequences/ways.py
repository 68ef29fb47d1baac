"""The two ways to train: as a graph, in which each sentence has its own length; and by `get_runner`, on batches that are padded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax

import ampjax as amp
import ampjax.parallel as px
from experiments.intervals import intervals, rows_per_instance, set_options
from experiments.parallax.programs import machines
from experiments.sequences.subjects import Subject

Tree = Any
Report = Callable[[int, float, Tree], None]
"""Gets an epoch's number, sentences a second in training, and the parameters of the program of batches."""


@dataclass(frozen=True)
class Recipe:
    """How both ways train.

    Args:
      tx: The optimizer.
      epochs: Epochs.
      batch: Sentences of an update.
      seed: Of the order of sentences.
    """

    tx: optax.GradientTransformation
    epochs: int
    batch: int
    seed: int


def train_graph(subject: Subject, recipe: Recipe, settings: Mapping[str, Any], report: Report) -> None:
    """Trains the function, compiled: every node updates when it has the gradient rows that a batch brings on average.

    Args:
      subject: What is trained.
      recipe: How.
      settings: Further settings of the trainer.
      report: Is called after each epoch.
    """
    compiled = amp.compile(subject.model, subject.params, subject.spec)
    data, chosen = compiled.data(subject.train), amp.Settings(**settings, seed=recipe.seed)
    rows = intervals(rows_per_instance(compiled.graph, data, chosen), recipe.batch)
    set_options(compiled.graph, lambda node: {"min_update_interval": rows[node]})
    trainer = amp.Trainer(compiled.graph, recipe.tx, settings=chosen)

    def tell(trainer: amp.Trainer, epoch: Any) -> None:
        report(epoch.epoch, epoch.train_per_s, subject.nested(compiled.params(trainer.params)))

    trainer.fit(data, epochs=recipe.epochs, callbacks=[tell], progress=False)


def train_runner(subject: Subject, recipe: Recipe, report: Report) -> None:
    """Trains the program of batches with one replica; all shapes are compiled first.

    Args:
      subject: What is trained.
      recipe: How.
      report: Is called after each epoch.
    """
    params = subject.nested(jax.tree.map(jax.numpy.asarray, subject.params))
    with px.get_runner(subject.loss, params, recipe.tx, machines(1, 1)) as runner:
        shapes = {str(jax.tree.map(jax.numpy.shape, batch)): batch for batch in subject.batches(0)}
        for batch in shapes.values():
            runner.run(batch)
        runner.reset(params)
        for epoch in range(recipe.epochs):
            batches = list(subject.batches(epoch))
            begin = time.perf_counter()
            for batch in batches:
                last = runner.run(batch)
            last.loss  # noqa: B018 # reading it waits
            runner.wait()
            seconds = time.perf_counter() - begin
            report(epoch + 1, len(subject.train) / seconds, runner.params)
