"""Quadratics whose axes stand at an angle to those of the parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.optim import RandomDelay
from experiments.staleness.remedies import REMEDIES
from experiments.staleness.training import losses


def hessian(n: int, angle: float) -> np.ndarray:
    """A Hessian `[n, n]` with eigenvalues from 1 to 0.01, log-spaced, turned against the axes.

    Large eigenvalues are paired with small ones, and each pair is turned in its plane: at 0 the Hessian is diagonal, at 45 degrees furthest
    from it, for this kind of turn.

    Args:
      n: Rows, even.
      angle: In degrees.
    """
    values = np.logspace(0, -2, n)
    turn = np.eye(n)
    a = np.deg2rad(angle)
    for i in range(n // 2):
        j = n - 1 - i
        turn[[i, i, j, j], [i, j, i, j]] = np.cos(a), -np.sin(a), np.sin(a), np.cos(a)
    return turn @ np.diag(values) @ turn.T


def grid(
    remedy: str,
    delay: int | RandomDelay,
    n: int,
    *,
    angles: Any,
    rates: Any,
    seeds: Any,
    steps: int,
    noise: float,
) -> np.ndarray:
    """What runs come to, for all angles, learning rates and seeds at once.

    The parameters are a matrix `[n, 4]` (`[2, 1]` for n = 2), so that remedies for matrices apply; each column meets the same Hessian.

    Args:
      remedy: By its name.
      delay: In updates.
      n: Rows of the Hessian.
      angles: In degrees.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of starts and noise.
      steps: Updates of a run.
      noise: Standard deviation of each gradient's noise, by parameter.

    Returns:
      The mean loss of the last tenth, `[angles, rates, seeds]`; inf where it diverged.
    """
    made = REMEDIES[remedy]
    columns = 4 if n > 2 else 1

    def run(
        h: jax.Array,
        rate: jax.Array,
        seed: jax.Array,
    ) -> jax.Array:
        def valid(w: jax.Array) -> jax.Array:
            return 0.5 * jnp.sum(w * (h @ w)) / columns

        def train(
            w: jax.Array, key: jax.Array
        ) -> jax.Array:  # its gradient: that of the columns' sum, and noise
            return valid(w) * columns + jnp.sum(w * noise * jax.random.normal(key, w.shape))

        start, key = jax.random.split(jax.random.key(seed))
        w = jax.random.normal(start, (n, columns))
        return losses(
            made.delayed(rate * made.scale, delay, steps),
            w,
            key,
            steps,
            train,
            valid,
        )

    over = jax.vmap(
        jax.vmap(
            jax.vmap(run, (None, None, 0)),
            (None, 0, None),
        ),
        (0, None, None),
    )
    hessians = jnp.asarray(
        np.stack([hessian(n, angle) for angle in angles]),
        jnp.float32,
    )
    found = np.asarray(jax.jit(over)(hessians, jnp.asarray(rates, jnp.float32), jnp.asarray(seeds)))
    return np.where(np.isfinite(found), found, np.inf)
