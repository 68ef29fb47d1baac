"""Translation with a trained model: beam search, which is greedy with a beam of 1.

Hypotheses are ranked by `log P / ((5 + length) / 6)^alpha` (Wu et al. 2016, eq. 14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.data.readers.data_checks import at_least_one
from experiments.data.text import END, START
from experiments.models.layers import functional
from experiments.models.layers.dropout import Dropout
from experiments.models.nmt import Config, Translator

_IMPOSSIBLE = -1e9  # finite: a difference of two is no NaN


def make_translate(
    config: Config,
    beam: int | None = None,
    max_length: int | None = None,
    alpha: float = 1.0,
) -> Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Makes the beam search for the likeliest translation.

    Args:
      config: Sizes of the model.
      beam: Hypotheses kept at each step; by default the configuration's; 1 is greedy search.
      max_length: The most words of a translation; by default twice the source's width.
      alpha: How strongly long translations are favoured.

    Returns:
      `translate(params, source [n, words], source_length [n])`, to be jitted: the words `[n, max_length]` int32, padded with the end
      mark, and their scores `[n]`.

    Raises:
      SettingsError: If `beam` or `max_length` is below 1.
    """
    width = config.beam if beam is None else beam
    at_least_one("make_translate", beam=width, max_length=1 if max_length is None else max_length)

    def translate(
        params: Any, source: jax.Array, source_length: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        model = functional.merge(Translator, config, params)
        memory, state = model.encode(source, source_length, Dropout(None, 0.0))
        # Each sentence's hypotheses stand one after the other.
        memory, state = jax.tree.map(
            lambda x: jnp.repeat(x, width, axis=0),
            (memory, state),
        )
        limit = 2 * source.shape[1] if max_length is None else max_length
        words, scores = _search(
            lambda s, w: model.decode(memory, s, w),
            state,
            len(source),
            width,
            limit,
            alpha,
        )
        return words[:, 0], scores[:, 0]

    return translate


def _search(
    decode: Callable,
    state: Any,
    n: int,
    width: int,
    limit: int,
    alpha: float,
) -> tuple[jax.Array, jax.Array]:
    """Words `[n, width, limit]` and their scores `[n, width]`, best first."""
    words = jnp.full((n, width, limit), END, jnp.int32)
    last = jnp.full((n, width), START, jnp.int32)
    logp = jnp.where(jnp.arange(width) == 0, 0.0, _IMPOSSIBLE) * jnp.ones(
        (n, 1)
    )  # all start alike: one may go on
    lengths = jnp.zeros((n, width), jnp.int32)

    def going(carry: tuple) -> jax.Array:
        t = carry[0]
        last = carry[2]
        return (t < limit) & (last != END).any()

    def step(carry: tuple) -> tuple:
        t, words, last, logp, lengths, _, state = carry
        state, logits = decode(state, last.ravel())
        ended = last == END
        gains = jax.nn.log_softmax(logits).reshape(n, width, -1)
        # An ended hypothesis goes on as it is: with the end mark, for nothing.
        only_end = jnp.where(
            jnp.arange(gains.shape[-1]) == END,
            0.0,
            _IMPOSSIBLE,
        )
        total = logp[..., None] + jnp.where(ended[..., None], only_end, gains)
        lengths = lengths + ~ended
        ranks = total / _penalty(lengths, alpha)[..., None]
        scores, best = jax.lax.top_k(
            ranks.reshape(n, -1),
            width,
        )
        parent = best // gains.shape[-1]
        last = best % gains.shape[-1]
        logp = jnp.take_along_axis(
            total.reshape(n, -1),
            best,
            axis=1,
        )
        lengths = jnp.take_along_axis(lengths, parent, axis=1)
        words = jnp.take_along_axis(words, parent[..., None], axis=1).at[:, :, t].set(last)
        rows = (parent + width * jnp.arange(n)[:, None]).ravel()
        return t + 1, words, last, logp, lengths, scores, jax.tree.map(lambda x: x[rows], state)

    start = (0, words, last, logp, lengths, logp, state)
    _, words, _, _, _, scores, _ = jax.lax.while_loop(
        going,
        step,
        start,
    )
    return words, scores


def _penalty(lengths: jax.Array, alpha: float) -> jax.Array:
    return ((5.0 + lengths) / 6.0) ** alpha
