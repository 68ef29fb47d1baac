"""Sampled softmax (Jean et al. 2015): a softmax over the right class and a few drawn ones, so that a step touches few rows of its matrix.

Classes are drawn without replacement from the log-uniform distribution `P(k) = log((k + 2) / (k + 1)) / log(V + 1)`, near to Zipf's law if
ids are sorted by frequency. Logits are corrected by the logarithm of the expected count, so that the drawn sum estimates the full one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_REMOVED = (
    -1e9
)  # a logit that no exponential survives, and finite: differences of two of them are no NaN


def log_uniform(
    ids: Int[Array, "*n"],
    n_classes: int,
) -> Float[Array, "*n"]:
    """Computes the probability `P(k)` with which one draw gives each id.

    Args:
      ids: The ids `k`.
      n_classes: Number of classes.
    """
    return jnp.log1p(1 / (ids + 1.0)) / jnp.log(n_classes + 1.0)


def draw(
    key: jax.Array,
    n_samples: int,
    n_classes: int,
) -> tuple[jax.Array, jax.Array]:
    """Draws classes one by one until `n_samples` different ones have come.

    Draws are made in blocks of `n_samples`. `arrived` holds when each class came first, which tells the new ones of a block.

    Args:
      key: PRNG key.
      n_samples: Classes wanted, at most `n_classes`.
      n_classes: V.

    Returns:
      The classes `[n_samples]` int32, in the order in which they came, and the number of draws that it took, int32.
    """
    never = jnp.iinfo(jnp.int32).max

    def block(carry: tuple) -> tuple:
        arrived, samples, n_found, n_draws, i = carry
        ids = _draw_block(jax.random.fold_in(key, i), n_samples, n_classes)
        order = i * n_samples + jnp.arange(n_samples)
        arrived = arrived.at[ids].min(order)
        new = arrived[ids] == order
        place = jnp.where(
            new,
            n_found + jnp.cumsum(new) - 1,
            n_samples,
        )
        samples = samples.at[place].set(ids, mode="drop")
        n_draws = jnp.where(place == n_samples - 1, order + 1, n_draws).max()
        return arrived, samples, n_found + new.sum(), n_draws, i + 1

    start = (
        jnp.full(n_classes, never),
        jnp.zeros(n_samples, jnp.int32),
        0,
        0,
        0,
    )
    _, samples, _, n_draws, _ = jax.lax.while_loop(
        lambda carry: carry[2] < n_samples,
        block,
        start,
    )
    return samples, jnp.asarray(n_draws)


def expected_count(
    ids: Int[Array, "*n"],
    n_draws: Int[Array, ""],
    n_classes: int,
) -> Float[Array, "*n"]:
    """Computes how likely each id is among some draws: `1 - (1 - P)^n_draws`.

    Args:
      ids: The ids.
      n_draws: Number of draws.
      n_classes: Number of classes.

    Returns:
      A probability for each id, float32.
    """
    return -jnp.expm1(n_draws * jnp.log1p(-log_uniform(ids, n_classes)))


def sampled_loss(
    hidden: Float[Array, "n features"],
    target_rows: tuple[Float[Array, "n features"], Float[Array, " n"]],
    sample_rows: tuple[Float[Array, "s features"], Float[Array, " s"]],
    targets: Int[Array, " n"],
    samples: Int[Array, " s"],
    counts: tuple[Float[Array, " n"], Float[Array, " s"]],
) -> Float[Array, " n"]:
    """Cross entropy of each target among itself and the samples, in nats.

    A sample that is the target itself, an accidental hit, is left out for that target.

    Args:
      hidden: `[n, features]`.
      target_rows: The softmax matrix's rows `[n, features]` and the biases `[n]` of the targets.
      sample_rows: Those of the samples.
      targets: `[n]`.
      samples: `[s]`, all different.
      counts: Expected counts of the targets `[n]` and of the samples `[s]`.

    Returns:
      `[n]`.
    """
    hit = (hidden * target_rows[0]).sum(-1) + target_rows[1] - jnp.log(counts[0])
    others = hidden @ sample_rows[0].T + sample_rows[1] - jnp.log(counts[1])
    others = jnp.where(targets[:, None] == samples, _REMOVED, others)
    return jnp.logaddexp(hit, jax.nn.logsumexp(others, axis=-1)) - hit


def _draw_block(
    key: jax.Array,
    n: int,
    n_classes: int,
) -> jax.Array:
    log_range = jnp.log(n_classes + 1.0)
    coarse, fine = jax.random.uniform(key, (2, n))
    x = jnp.exp(coarse * log_range)
    # A float32 uniform has steps of 2^-23: too few for the rare classes of a large vocabulary. The second number fills each step.
    x = x + x * fine * log_range * 2.0**-23
    return jnp.clip(
        x.astype(jnp.int32) - 1,
        0,
        n_classes - 1,
    )
