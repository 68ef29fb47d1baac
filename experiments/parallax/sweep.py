"""The constructed language model of Parallax's table 6: how much of its tables a step touches follows from the words of a sequence.

A vocabulary of as many words as the longest batch holds, words that do not repeat in a batch, and as many sampled classes as words. So at
120 words a worker touches every row of both tables, and at one word a hundred-and-twentieth. An LSTM of 128 units lies between.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.models import lm
from experiments.models.layers import functional
from experiments.models.layers.dropout import Dropout
from experiments.models.layers.sampled_softmax import sampled_loss
from experiments.parallax.workloads import Workload

LONGEST = 120


def sweep(
    words: int,
    replicas: int,
    batch: int,
    units: int,
    n_batches: int,
    seed: int = 0,
) -> Workload:
    """The model with batches of one length.

    Args:
      words: Of a sequence, at most 120.
      replicas: Parts of each batch.
      batch: Sequences of a part.
      units: Features of embedding and LSTM; the paper's LSTM has 128.
      n_batches: Batches that there are.
      seed: Of parameters and data.
    """
    vocabulary = LONGEST * batch
    config = lm.Config(
        vocabulary,
        None,
        units,
        units,
        None,
        batch * words,
        batch,
        words,
        dropout=0.0,
    )
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(n_batches):
        batches.append(_joined([_part(rng, vocabulary, batch, words) for _ in range(replicas)]))
    return Workload(
        f"sweep-{words}",
        _loss(config),
        lm.init(config, seed),
        optax.sgd(0.1),
        batches,
        replicas * batch * words,
    )


def _part(
    rng: np.random.Generator, vocabulary: int, batch: int, words: int
) -> dict[str, np.ndarray]:
    """One worker's batch: every word once at most, and every sample."""
    inputs, samples = (
        rng.permutation(vocabulary)[: batch * words].astype(np.int32) for _ in range(2)
    )
    shape = (batch, words)
    return {
        "inputs": inputs.reshape(shape),
        "targets": samples.reshape(shape),
        "samples": rng.permutation(samples).reshape(shape),
    }


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    result = {}
    for name in parts[0]:
        result[name] = np.concatenate([part[name] for part in parts])
    return result


def _loss(config: lm.Config) -> Any:
    """LM's loss with uniform samples that come with the batch, among them all targets: the tables' rows are each touched once."""

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        model = functional.merge(lm.LanguageModel, config, params)
        _, outputs = model(batch, Dropout(None, 0.0))
        targets = batch["targets"].ravel()
        samples = batch["samples"].ravel()
        even = (
            jnp.ones(targets.shape),
            jnp.ones(samples.shape),
        )  # all classes are equally likely
        hidden = outputs.reshape(len(targets), -1)
        softmax = model.softmax
        return sampled_loss(
            hidden,
            softmax.rows(targets),
            softmax.rows(samples),
            targets,
            samples,
            even,
        ).mean()

    return loss_fn
