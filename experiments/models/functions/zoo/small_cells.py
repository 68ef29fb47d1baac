"""Cells that several of these models share, as functions of one node's parameters and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.nn import Embed, Linear
from experiments.models.layers.linear import linear


def init_linears(
    key: jax.Array,
    **sizes: tuple[int, int],
) -> dict[str, Any]:
    """Makes linear layers.

    Args:
      key: A PRNG key.
      **sizes: By name, features in and out.
    """
    keys = jax.random.split(key, len(sizes))
    result = {}
    for (name, size), one in zip(sizes.items(), keys, strict=True):
        result[name] = Linear(*size, init_scale="glorot").init(one)
    return result


def init_tables(
    key: jax.Array,
    features: int,
    scale: float = 1.0,
    **rows: int,
) -> dict[str, Any]:
    """Makes tables of vectors.

    Args:
      key: A PRNG key.
      features: Length of a vector.
      scale: Standard deviation of the initial normal values.
      **rows: By name, how many.
    """
    keys = jax.random.split(key, len(rows))
    result = {}
    for (name, n), one in zip(rows.items(), keys, strict=True):
        result[name] = Embed(n, features, scale).init(one)
    return result


def lstm(
    p: Mapping[str, jax.Array],
    state: jax.Array,
    x: jax.Array,
) -> jax.Array:
    """A step of an LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000), whose state is the hidden one and the cell's in one vector.

    Args:
      p: `w` `[x + H, 4 H]` and `b`.
      state: `[2 H]`.
      x: The input.

    Returns:
      The next state, `[2 H]`.
    """
    h, c = jnp.split(state, 2)
    new, enter, keep, out = jnp.split(
        linear(p, jnp.concatenate([x, h])),
        4,
    )
    c = jax.nn.sigmoid(enter) * jnp.tanh(new) + jax.nn.sigmoid(keep + 1) * c
    return jnp.concatenate([jax.nn.sigmoid(out) * jnp.tanh(c), c])


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Softmax cross entropy in nats.

    Args:
      logits: `[classes]`.
      label: The class.
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def scored(
    logits: jax.Array,
    label: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The cross entropy, with the metric `accuracy`.

    Args:
      logits: `[classes]`.
      label: The class.
    """
    return cross_entropy(logits, label), {"accuracy": jnp.argmax(logits) == label}
