"""A small transformer of characters with a table of hashed n-grams: the table's rows are late alone, or all other parameters are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.nn import NgramTable
from ampjax.optim import RandomDelay, rowwise_adagrad
from experiments.engram.letter_model import LetterModel
from experiments.staleness.training import grid_of_losses

Late = Literal["rows", "dense"]
"""Which parameters get late gradients: the table's rows, or all others."""

CONTEXT = 24
WIDTH = 32
BATCH = 8
VALID_ROWS = 64
MEMORY = NgramTable(
    n_rows=4096,
    features=8,
    n_hidden=WIDTH,
    orders=(2, 4),
    n_heads=1,
)

ON_TIME = {"rows": rowwise_adagrad(0.1), "dense": optax.adam(0.01)}
"""How those parameters learn that are not late."""

TOO_LARGE = ("rotation", "rotation-0.999")
"""Remedies that keep a matrix of rows by rows."""


def grid(
    remedy: str,
    delay: int | RandomDelay,
    late: Late,
    letters: np.ndarray,
    n_letters: int,
    *,
    rates: Any,
    seeds: Any,
    steps: int,
) -> np.ndarray:
    """The losses at the ends of runs, for all learning rates and seeds.

    Args:
      remedy: By its name; for the parameters that are late.
      delay: In updates.
      late: Which parameters are late. The others have a rule of their own, in `ON_TIME`.
      letters: The text, as numbers.
      n_letters: Different characters.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters and batches.
      steps: Updates of a run.

    Returns:
      The mean validation loss of the last tenth, in nats a character, `[rates, seeds]`; inf where it diverged.
    """
    cut = len(letters) * 9 // 10
    last = len(letters) - CONTEXT - 1
    held = jnp.asarray(
        np.linspace(
            cut,
            last,
            VALID_ROWS,
        ).astype(int)
    )
    data = jnp.asarray(letters)
    model = LetterModel(
        n_letters,
        CONTEXT,
        WIDTH,
        memory=MEMORY,
    )

    def init(key: jax.Array) -> Any:
        for_dense, for_table = jax.random.split(key)
        shape = (MEMORY.n_ids * MEMORY.n_rows, MEMORY.features)
        table = MEMORY.scale * jax.random.normal(
            for_table,
            shape,
        )
        return {"dense": model.init(for_dense), "rows": table}

    def loss(params: Any, starts: jax.Array) -> jax.Array:
        rows = data[starts[:, None] + jnp.arange(CONTEXT + 1)]
        batch = {"letters": rows, "ids": MEMORY.ids(rows[:, :-1])}
        dense = params["dense"]
        ngrams = {**dense["ngrams"], "table": params["rows"]}
        return model.loss(
            {**dense, "ngrams": ngrams},
            batch,
        )

    def train(params: Any, key: jax.Array) -> jax.Array:
        starts = jax.random.randint(
            key,
            (BATCH,),
            0,
            cut - CONTEXT - 1,
        )
        return loss(params, starts)

    return grid_of_losses(
        remedy,
        delay,
        init,
        train,
        lambda params: loss(params, held),
        rates=rates,
        seeds=seeds,
        steps=steps,
        within=_partly(late),
    )


def _partly(late: Late) -> Callable[[Any], Any]:
    """From a transform for late parameters to one for all."""
    kinds = {"dense": "dense", "rows": "rows"}

    def within(tx: Any) -> Any:
        return optax.partition(
            {**ON_TIME, late: tx},
            kinds,
        )

    return within
