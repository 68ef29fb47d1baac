"""A network with one hidden layer on classes that are mixtures of Gaussians, in plain JAX: the toy of the study of asynchronous local SGD."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim import RandomDelay
from experiments.data import clusters
from experiments.data.clusters import N_CLASSES, N_FEATURES
from experiments.staleness.training import grid_of_losses

HIDDEN = 64
BATCH = 32
CLUSTERS = 2
N_TRAIN = 16_000
N_VALID = 2_000


def grid(
    remedy: str,
    delay: int | RandomDelay,
    *,
    rates: Any,
    seeds: Any,
    steps: int,
) -> np.ndarray:
    """The losses at the ends of runs, for all learning rates and seeds.

    Args:
      remedy: By its name.
      delay: In updates.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters and batches; the data are the same.
      steps: Updates of a run.

    Returns:
      The mean validation loss of the last tenth, in nats an example, `[rates, seeds]`; inf where it diverged.
    """
    data = _data()
    features = jnp.asarray(data.features)
    labels = jnp.asarray(data.labels)

    def loss(params: Any, chosen: Any) -> jax.Array:
        units = jax.nn.relu(features[chosen] @ params["hidden_w"] + params["hidden_b"])
        scores = units @ params["output_w"] + params["output_b"]
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels[chosen]).mean()

    def train(params: Any, key: jax.Array) -> jax.Array:
        chosen = jax.random.randint(
            key,
            (BATCH,),
            0,
            N_TRAIN,
        )
        return loss(params, chosen)

    return grid_of_losses(
        remedy,
        delay,
        init,
        train,
        lambda params: loss(params, slice(N_TRAIN, None)),
        rates=rates,
        seeds=seeds,
        steps=steps,
    )


def init(key: jax.Array) -> dict[str, jax.Array]:
    """Parameters.

    Args:
      key: Draws them.
    """
    hidden, output = jax.random.split(key)
    return {
        "hidden_w": jax.random.normal(hidden, (N_FEATURES, HIDDEN)) / N_FEATURES**0.5,
        "hidden_b": jnp.zeros(HIDDEN),
        "output_w": jax.random.normal(output, (HIDDEN, N_CLASSES)) / HIDDEN**0.5,
        "output_b": jnp.zeros(N_CLASSES),
    }


@functools.cache
def _data() -> clusters.Clusters:
    """Draws examples, in random order: the last ones are for validation."""
    data = clusters.generate(
        N_TRAIN + N_VALID + CLUSTERS * N_CLASSES,
        CLUSTERS,
        0,
    )
    order = np.random.default_rng(1).permutation(len(data))[: N_TRAIN + N_VALID]
    return clusters.Clusters(
        data.features[order],
        data.labels[order],
    )
