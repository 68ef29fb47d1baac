"""One run in plain JAX with late gradients: all steps in one scan, so that runs can be stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim import trained_params

Loss = Callable[[Any, jax.Array], jax.Array]
"""From parameters and a key, which draws the batch or the noise, to a loss."""


def losses(
    tx: Any,
    params: Any,
    key: jax.Array,
    steps: int,
    train: Loss,
    valid: Callable[[Any], jax.Array],
) -> Any:
    """Trains, and gives the mean validation loss after five steps of the last tenth: what a run comes to.

    Args:
      tx: A transform that delays gradients.
      params: At the beginning.
      key: From which each step's is made.
      steps: Updates, those included that still wait for the first gradient.
      train: The loss whose gradient is taken, where models run.
      valid: The loss that counts, of the parameters that are trained.

    Returns:
      The mean, a float32 scalar.
    """
    every = max(1, steps // 50)
    counted = (steps - 1 - np.arange(steps)) % every == 0
    counted &= np.arange(steps) >= steps - max(1, steps // 10)

    def step(
        carry: Any,
        at: tuple[jax.Array, jax.Array],
    ) -> tuple[Any, jax.Array]:
        now, state = carry
        number, is_counted = at
        grads = jax.grad(train)(
            now,
            jax.random.fold_in(key, number),
        )
        updates, state = tx.update(grads, state, now)
        now = optax.apply_updates(now, updates)
        return (now, state), jax.lax.cond(
            is_counted, lambda: valid(trained_params(state, now)), lambda: jnp.float32(0)
        )

    _, found = jax.lax.scan(
        step,
        (params, tx.init(params)),
        (jnp.arange(steps), jnp.asarray(counted)),
    )
    return found.sum() / counted.sum()
