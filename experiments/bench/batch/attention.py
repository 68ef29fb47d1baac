"""Attention of every word to every word of its sentence; by hand padded, with masks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, lengths_of, padded, weights

H = 32


def one_text(amount: Amount) -> Work:
    """A single text of 200 words."""
    return _work([amount.of(200)])


def sentences(amount: Amount) -> Work:
    """64 sentences of 5 to 39 words."""
    rng = np.random.default_rng(0)
    return _work(
        rng.integers(
            5,
            40,
            amount.of(64),
        ).tolist()
    )


def model(p: Any, example: Any) -> jax.Array:
    """Sums the squares of each word's attention.

    Args:
      p: Matrices `[H, H]`: `query`, `key`, `value`.
      example: `x` `[words, H]`.
    """
    queries = amp.map(lambda x: x @ p["query"], example["x"])
    keys = amp.map(lambda x: x @ p["key"], example["x"])
    values = amp.map(lambda x: x @ p["value"], example["x"])

    def attend(query: jax.Array) -> jax.Array:
        scores = amp.map(lambda key: query @ key / H**0.5, keys)
        each = amp.map(
            lambda share, value: share * value,
            amp.softmax(scores),
            values,
        )
        return jnp.sum(amp.sum(each) ** 2)

    return amp.sum(amp.map(attend, queries))


def plain(p: Any, arrays: Any) -> jax.Array:
    """The same over a batch.

    Args:
      p: As `model` takes them.
      arrays: `x` `[sentences, longest, H]` and `lengths`.
    """
    x = arrays["x"]
    is_word = jnp.arange(x.shape[1]) < arrays["lengths"][:, None]
    scores = (
        jnp.einsum(
            "bqh,bkh->bqk",
            x @ p["query"],
            x @ p["key"],
        )
        / H**0.5
    )
    shares = jax.nn.softmax(
        jnp.where(
            is_word[:, None],
            scores,
            -jnp.inf,
        )
    )
    read = jnp.einsum(
        "bqk,bkh->bqh",
        shares,
        x @ p["value"],
    )
    return jnp.sum(
        jnp.where(
            is_word[..., None],
            read,
            0,
        )
        ** 2
    ) / len(x)


def _work(lengths: list[int]) -> Work:
    rng = np.random.default_rng(1)
    texts = [rng.normal(size=(n, H)).astype(np.float32) for n in lengths]
    return Work(
        model,
        {"x": f"float32[t,{H}]"},
        weights(
            0,
            query=(H, H),
            key=(H, H),
            value=(H, H),
        ),
        [{"x": each} for each in texts],
        sum(lengths),
        plain,
        {
            "x": padded(texts),
            "lengths": lengths_of(texts),
        },
    )
