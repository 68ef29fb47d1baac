"""One run in plain JAX with late gradients: all steps in one scan, so that runs can be stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim import RandomDelay, trained_params
from experiments.staleness.remedies import REMEDIES

Loss = Callable[[Any, jax.Array], jax.Array]
"""From parameters and a key, which draws the batch or the noise, to a loss."""


def grid_of_losses(
    remedy: str,
    delay: int | RandomDelay,
    init: Callable[[jax.Array], Any],
    train: Loss,
    valid: Callable[[Any], jax.Array],
    *,
    rates: Any,
    seeds: Any,
    steps: int,
    within: Callable[[Any], Any] = lambda tx: tx,
) -> np.ndarray:
    """The losses at the ends of runs, for all learning rates and seeds, one after the other in one program.

    Side by side (`vmap`) they would be no faster on a CPU, and what a remedy does every tenth step would be done in each.

    Args:
      remedy: By its name.
      delay: In updates.
      init: From a key to parameters.
      train: The loss whose gradient is taken.
      valid: The loss that counts.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters and batches.
      steps: Updates of a run.
      within: From the remedy with its gradients late to the transform of all parameters.

    Returns:
      The mean validation loss of the last tenth, `[rates, seeds]`; inf where it diverged.
    """
    made = REMEDIES[remedy]

    def run(rate: jax.Array, seed: jax.Array) -> jax.Array:
        start, key = jax.random.split(jax.random.key(seed))
        late = made.delayed(rate * made.scale, delay, steps)
        return losses(
            within(late),
            init(start),
            key,
            steps,
            train,
            valid,
        )

    each = np.meshgrid(
        np.asarray(rates, np.float32),
        np.asarray(seeds),
        indexing="ij",
    )
    over = jax.jit(lambda *each: jax.lax.map(lambda one: run(*one), each))
    found = np.asarray(over(*map(np.ravel, each))).reshape(each[0].shape)
    return np.where(np.isfinite(found), found, np.inf)


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
