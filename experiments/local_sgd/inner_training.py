"""A worker's training during a visit: some steps of AdamW from the server's parameters, on a network with one hidden layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from experiments.data.clusters import N_CLASSES, N_FEATURES

Network = Callable[[jax.Array, jax.Array], jax.Array]
"""From parameters `[p]` and features `[n, 512]` to scores `[n, 4]`."""

Layers = dict[str, jax.Array]
"""Weights and biases of both layers."""

Training = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""From parameters `[p]`, features `[s, b, 512]`, labels `[s, b]` and learning rates `[s]` to an array."""

PEAK = 2e-4
LOWEST = 1e-6
"""Learning rates at the beginning and the end of the cosine."""


def init(seed: int, hidden: int) -> jax.Array:
    """The first parameters as a vector: uniform within one over the square root of a layer's inputs, as in PyTorch.

    Args:
      seed: Of the random numbers.
      hidden: Hidden units.
    """
    return ravel_pytree(_draw(jax.random.key(seed), hidden))[0]


def _draw(key: jax.Array, hidden: int) -> Layers:
    keys = iter(jax.random.split(key, 4))

    def uniform(n_in: int, *shape: int) -> jax.Array:
        bound = 1 / math.sqrt(n_in)
        return jax.random.uniform(
            next(keys),
            shape,
            minval=-bound,
            maxval=bound,
        )

    return {
        "hidden_w": uniform(N_FEATURES, N_FEATURES, hidden),
        "hidden_b": uniform(N_FEATURES, hidden),
        "output_w": uniform(hidden, hidden, N_CLASSES),
        "output_b": uniform(hidden, N_CLASSES),
    }


def logits_of(hidden: int) -> Network:
    """The network.

    Args:
      hidden: Hidden units.
    """
    unravel = _unravel_of(hidden)

    def logits(
        flat: jax.Array,
        features: jax.Array,
    ) -> jax.Array:
        return _scores(unravel(flat), features)

    return logits


def _unravel_of(hidden: int) -> Callable[[jax.Array], Layers]:
    """Makes the function from a vector of parameters to the layers' arrays."""
    key = jax.random.key(0)
    like = jax.eval_shape(lambda: _draw(key, hidden))
    zeros = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, np.float32),
        like,
    )
    return ravel_pytree(zeros)[1]


def _scores(layers: Layers, features: jax.Array) -> jax.Array:
    """The network's scores for some examples."""
    units = jax.nn.relu(features @ layers["hidden_w"] + layers["hidden_b"])
    return units @ layers["output_w"] + layers["output_b"]


def rates(
    first_step: int,
    inner_steps: int,
    total: int,
) -> np.ndarray:
    """The learning rates of a visit: a cosine over all steps on a part of the data. The first step of each visit has the peak, as in the study.

    Args:
      first_step: Steps on this part before.
      inner_steps: Of the visit.
      total: Of the whole training, on this part.

    Returns:
      `[inner_steps]` float32.
    """
    steps = first_step + np.arange(inner_steps)
    done = np.minimum(steps / total, 1)
    share = 0.5 * (1 + np.cos(np.pi * done))
    result = LOWEST + (PEAK - LOWEST) * share
    result[0] = PEAK
    return result.astype(np.float32)


def make_training(
    hidden: int,
    decay: float,
) -> Training:
    """A visit's training, which gives new parameters.

    Args:
      hidden: Hidden units.
      decay: AdamW's weight decay.
    """
    unravel = _unravel_of(hidden)
    moments = optax.scale_by_adam()

    def loss(
        layers: Layers,
        features: jax.Array,
        labels: jax.Array,
    ) -> jax.Array:
        scores = _scores(layers, features)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    # The engine stacks messages; on a CPU products of one stacked visit take four times as long as those of the visit alone.
    @jax.custom_batching.sequential_vmap
    def train(
        flat: jax.Array,
        features: jax.Array,
        labels: jax.Array,
        steps: jax.Array,
    ) -> jax.Array:
        def step(carry: Any, batch: Any) -> tuple[Any, None]:
            layers, state = carry
            x, y, rate = batch
            gradient = jax.grad(loss)(layers, x, y)
            change, state = moments.update(gradient, state)
            layers = jax.tree.map(
                lambda leaf, by: leaf - rate * (by + decay * leaf),
                layers,
                change,
            )
            return (layers, state), None

        # A vector in the loop would be cut into layers, and its gradient put together, at each step.
        layers = unravel(flat)
        start = (layers, moments.init(layers))
        (layers, _), _ = jax.lax.scan(step, start, (features, labels, steps))
        return ravel_pytree(layers)[0]

    return train


def make_visit(
    hidden: int,
    decay: float,
    weight: float,
) -> Training:
    """A visit as a differentiable function: its value is the loss of the first batch, its gradient the pseudo-gradient.

    Args:
      hidden: Hidden units.
      decay: AdamW's weight decay.
      weight: By which the pseudo-gradient is multiplied.
    """
    train = make_training(hidden, decay)
    logits = logits_of(hidden)

    @jax.custom_vjp
    def visit(
        flat: jax.Array,
        features: jax.Array,
        labels: jax.Array,
        steps: jax.Array,
    ) -> jax.Array:
        del steps
        scores = logits(flat, features[0])
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels[0]).mean()

    def forward(*inputs: jax.Array) -> tuple[jax.Array, Any]:
        return visit(*inputs), inputs

    def backward(inputs: Any, cotangent: jax.Array) -> tuple[Any, ...]:
        flat, features, labels, steps = inputs
        moved = flat - train(flat, features, labels, steps)
        return (
            weight * cotangent * moved,
            jnp.zeros_like(features),
            np.zeros(labels.shape, jax.dtypes.float0),
            jnp.zeros_like(steps),
        )

    visit.defvjp(forward, backward)
    return visit
