"""Ways to train a model, with one protocol: without a table; with a table as a JAX array; with one that a runner keeps, in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax.parallel as px
from ampjax.nn import NgramTable
from experiments.engram.letter_model import (
    Batch,
    LetterModel,
    Params,
    init_table,
    optimizer,
    with_table,
)

TABLES_ONLY = 2.0
"""A threshold of alpha with which every sparse variable is a table, however small."""


class Way(Protocol):
    """A training."""

    model: LetterModel

    def run(self, batch: Batch) -> float:
        """Takes a step; gives the loss of its batch."""
        ...

    def evaluate(self, batch: Batch) -> float:
        """The loss of a batch, without a step."""
        ...


class JittedWay:
    """Steps as one jitted function, which updates parameters in place.

    Args:
      model: The model.
      params: Its parameters, with the table if it has one; they are copied.
      tx: The optimizer.
    """

    def __init__(
        self,
        model: LetterModel,
        params: Params,
        tx: optax.GradientTransformation,
    ):
        self.model = model
        self.params = jax.tree.map(jnp.array, params)
        state = tx.init(self.params)
        self._state = jax.tree.map(jnp.array, state)  # no array twice, since arrays are donated
        self._loss = jax.jit(model.loss)

        def step(
            params: Params,
            state: Any,
            batch: Batch,
        ) -> tuple[Any, Any, jax.Array]:
            loss, grads = jax.value_and_grad(model.loss)(params, batch)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        self._step = jax.jit(step, donate_argnums=(0, 1))

    def run(self, batch: Batch) -> float:
        """Takes a step; gives the loss of its batch.

        Args:
          batch: The batch.
        """
        self.params, self._state, loss = self._step(
            self.params,
            self._state,
            batch,
        )
        jax.block_until_ready(self.params)
        return float(loss)

    def evaluate(self, batch: Batch) -> float:
        """The loss of a batch.

        Args:
          batch: The batch.
        """
        return float(self._loss(self.params, batch))


class RunnerWay:
    """Steps of `px.get_runner`.

    Args:
      model: The model.
      params: Its parameters, with the table.
      tx: The optimizer.
      folder: A folder for the table as a mapped file; None keeps it in memory.
    """

    def __init__(
        self,
        model: LetterModel,
        params: Params,
        tx: optax.GradientTransformation,
        folder: Path | None = None,
    ):
        self.model = model
        config = px.ParallaxConfig(folder=folder, alpha_threshold=TABLES_ONLY)
        self.runner = px.get_runner(model.loss, params, tx, config=config)

    def run(self, batch: Batch) -> float:
        """Takes a step; gives the loss of its batch.

        Args:
          batch: The batch.
        """
        loss = float(self.runner.run(batch).loss)
        self.runner.wait()
        return loss

    def evaluate(self, batch: Batch) -> float:
        """The loss of a batch.

        Args:
          batch: The batch.
        """
        return float(self.runner.evaluate(batch).loss)


def make_way(
    kind: str,
    make_model: Callable[[NgramTable | None], LetterModel],
    memory: NgramTable,
    rates: tuple[float, float],
    seed: int,
    folder: Path,
) -> Way:
    """Makes a way to train.

    Args:
      kind: `none`: without a table; `jitted`; `memory`: a runner; `file`: a runner with a mapped file.
      make_model: Makes the model with a memory or without.
      memory: The memory.
      rates: Learning rates of dense parameters and of the table.
      seed: Of the parameters.
      folder: A folder for files.
    """
    model = make_model(None if kind == "none" else memory)
    params = model.init(jax.random.key(seed))
    tx = optimizer(*rates)
    if kind == "none":
        return JittedWay(model, params, tx)
    if kind != "file":
        table = init_table(memory, seed)
        way = JittedWay if kind == "jitted" else RunnerWay
        return way(model, with_table(params, table), tx)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "first.npy"
    shape = (memory.n_ids * memory.n_rows, memory.features)
    first = np.lib.format.open_memmap(
        path,
        "w+",
        np.float32,
        shape,
    )
    init_table(memory, seed, first)
    mapped = RunnerWay(
        model,
        with_table(params, first),
        tx,
        folder,
    )
    path.unlink()  # the array keeps the content, and when it goes the disk is free
    return mapped
