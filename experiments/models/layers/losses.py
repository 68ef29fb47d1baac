"""Losses that several models share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


def labelled_cross_entropy(
    logits: Float[Array, "*batch classes"], labels: Int[Array, "*batch"]
) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """Softmax cross entropy in nats, the mean over the entries of a message that have a label; -1 marks padding.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`, each in `[0, classes)`, or -1.

    Returns:
      The loss, and the metric `accuracy` as hits and labels.

    >>> loss, metrics = labelled_cross_entropy(jnp.array([[0.0, 9.0], [9.0, 0.0]]), jnp.array([1, -1]))
    >>> float(loss) < 0.001, [float(x) for x in metrics["accuracy"]]
    (True, [1.0, 1.0])
    """
    real = labels >= 0
    count = jnp.sum(real)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    loss = jnp.sum(jnp.where(real, each, 0.0)) / jnp.maximum(count, 1)
    hits = jnp.sum(real & (jnp.argmax(logits, axis=-1) == labels))
    return loss, {"accuracy": (hits, count)}
