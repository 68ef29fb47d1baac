"""The two ways to train: as a graph, in which each sentence has its own length; and by `get_runner`, on batches that are padded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import optax

import ampjax as amp
import ampjax.parallel as px
from ampjax.nn.layers import ChosenEmbed
from experiments.intervals import intervals, rows_per_instance, set_options
from experiments.parallax.programs import machines
from experiments.sequences.subjects import Subject

Tree = Any
Report = Callable[[int, Mapping[str, float], Tree], None]
"""Gets an epoch's number, the rates of its training, and the parameters of the program of batches."""


class Stopwatch:
    """Measures an epoch in seconds and in processor seconds, which are more comparable on a shared machine."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begins anew."""
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def rates(self, sentences: int) -> dict[str, float]:
        """How fast so many sentences were trained on.

        Args:
          sentences: How many.
        """
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        return {"sentences_per_s": sentences / wall, "sentences_per_cpu_s": sentences / cpu}


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


def train_graph(
    subject: Subject,
    recipe: Recipe,
    settings: Mapping[str, Any],
    report: Report,
    layers: Mapping[str, ChosenEmbed] = MappingProxyType({}),
) -> None:
    """Trains the function, compiled; in asynchronous mode every node updates when it has the gradient rows that a batch brings on average.

    The rates of the first two epochs contain the compilation of kernels.

    Args:
      subject: What is trained.
      recipe: How.
      settings: Further settings of the trainer.
      report: Is called after each epoch.
      layers: By key of the parameters, where the rows of an embedding lie; all others are on the device.
    """
    params = subject.params | {key: layer.rows for key, layer in layers.items()}
    compiled = amp.compile(subject.model, params, subject.spec)
    data = compiled.data(subject.train)
    chosen = amp.Settings(**settings, seed=recipe.seed)
    rows = intervals(rows_per_instance(compiled.graph, data, chosen), recipe.batch)
    set_options(compiled.graph, lambda node: {"min_update_interval": rows[node]})
    trainer = amp.Trainer(compiled.graph, recipe.tx, settings=chosen)
    watch = Stopwatch()

    def tell(trainer: amp.Trainer, epoch: Any) -> None:
        rates = watch.rates(len(subject.train))
        report(
            epoch.epoch,
            rates,
            subject.nested(compiled.params(trainer.params)),
        )
        watch.restart()

    trainer.fit(
        data,
        epochs=recipe.epochs,
        callbacks=[tell],
        progress=False,
    )


def embeddings(
    subject: Subject,
    recipe: Recipe,
) -> dict[str, ChosenEmbed]:
    """Where the rows of each embedding lie: by the rule of `get_runner`, for the ids of an update. Untouched rows follow the optimizer, as there.

    Args:
      subject: What is trained.
      recipe: How.

    Returns:
      The layers, by key of the parameters.
    """
    found = {}
    for key, leaf in subject.embeddings.items():
        ids = subject.train.columns[leaf]
        per_update = round(recipe.batch * len(ids.values) / len(ids))
        found[key] = amp.nn.choose_embed(
            subject.params[key],
            recipe.tx,
            ids.values,
            ids_per_update=per_update,
            mode="faithful",
        )
    return found


def train_runner(subject: Subject, recipe: Recipe, report: Report) -> None:
    """Trains the program of batches with one replica; all shapes are compiled first.

    Args:
      subject: What is trained.
      recipe: How.
      report: Is called after each epoch.
    """
    params = subject.nested(jax.tree.map(jax.numpy.asarray, subject.params))
    with px.get_runner(subject.loss, params, recipe.tx, machines(1, 1)) as runner:
        shapes = {}
        for batch in subject.batches(0):
            shapes[str(jax.tree.map(jax.numpy.shape, batch))] = batch
        for batch in shapes.values():
            runner.run(batch)
        runner.reset(params)
        for epoch in range(recipe.epochs):
            batches = list(subject.batches(epoch))
            watch = Stopwatch()
            for batch in batches:
                last = runner.run(batch)
            last.loss  # noqa: B018 # reading it waits
            runner.wait()
            report(
                epoch + 1,
                watch.rates(len(subject.train)),
                runner.params,
            )
