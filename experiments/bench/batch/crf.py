"""A conditional random field over a recurrent network's scores (Lafferty et al. 2001; Huang et al. 2015); by hand padded, with masks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, lengths_of, padded, weights

H = 64
WORDS = 1000
TAGS = 12
NEVER = -1e9
"""The score of what can't be."""

SPEC = {
    "words": "int32[t]",
    "tags": "int32[t]",
    "before": "int32[t]",
}


def tagging(amount: Amount) -> Work:
    """64 sentences of 5 to 39 words, of a thousand different ones, with twelve tags."""
    rng = np.random.default_rng(0)
    examples = []
    for n in rng.integers(5, 40, amount.of(64)).tolist():
        tags = rng.integers(0, TAGS, n).astype(np.int32)
        examples.append(
            {
                "words": rng.integers(0, WORDS, n).astype(np.int32),
                "tags": tags,
                "before": np.append(np.int32(TAGS), tags[:-1]),
            }
        )
    arrays = {name: padded([each[name] for each in examples]) for name in SPEC}
    arrays["lengths"] = lengths_of([each["words"] for each in examples])
    return Work(
        model,
        SPEC,
        weights(
            0,
            embed=(WORDS, H),
            cell=(2 * H, H),
            output=(H, TAGS),
            moves=(TAGS + 1, TAGS),
        ),
        examples,
        int(arrays["lengths"].sum()),
        plain,
        arrays,
    )


def model(p: Any, example: Any) -> jax.Array:
    """The negative logarithm of the tags' probability.

    Args:
      p: `embed` `[WORDS, H]`, `cell` `[2 H, H]`, `output` `[H, TAGS]`, and `moves` `[TAGS + 1, TAGS]`, from each tag, or the beginning, to each.
      example: `words`, `tags`, and the tag `before` each; `TAGS` before the first.
    """

    def read(h: jax.Array, word: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(jnp.concatenate([h, p["embed"][word]]) @ p["cell"])
        return h, h @ p["output"]

    def forward(total: jax.Array, score: jax.Array) -> tuple[jax.Array, None]:
        return _next_totals(p, total, score), None

    def own(
        score: jax.Array,
        before: jax.Array,
        tag: jax.Array,
    ) -> jax.Array:
        return score[tag] + p["moves"][before, tag]

    _, scores = amp.scan(read, jnp.zeros(H), example["words"])
    total, _ = amp.scan(forward, _start(), scores)
    path = amp.map(
        own,
        scores,
        example["before"],
        example["tags"],
    )
    return jax.nn.logsumexp(total) - amp.sum(path)


def plain(p: Any, arrays: Any) -> jax.Array:
    """The mean over a batch.

    Args:
      p: As `model` takes them.
      arrays: `words`, `tags` and `before`, padded `[sentences, longest]`, and `lengths`.
    """
    longest = arrays["words"].shape[1]
    is_there = jnp.arange(longest)[:, None] < arrays["lengths"]
    n = len(arrays["lengths"])

    def read(h: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
        both = jnp.concatenate([h, p["embed"][words]], 1)
        h = jnp.tanh(both @ p["cell"])
        return h, h @ p["output"]

    def forward(total: jax.Array, at: Any) -> tuple[jax.Array, None]:
        score, there = at
        new = _next_totals(p, total, score)
        return jnp.where(there[:, None], new, total), None

    _, scores = jax.lax.scan(read, jnp.zeros((n, H)), arrays["words"].T)
    start = jnp.broadcast_to(_start(), (n, TAGS + 1))
    total, _ = jax.lax.scan(forward, start, (scores, is_there))
    tags = arrays["tags"].T
    own = jnp.take_along_axis(scores, tags[..., None], 2)[..., 0]
    path = (own + p["moves"][arrays["before"].T, tags]) * is_there
    return (jax.nn.logsumexp(total, 1) - path.sum(0)).mean()


def _start() -> jax.Array:
    """The totals at the beginning, `[TAGS + 1]`: no tag, but the beginning, which comes last."""
    return jnp.where(jnp.arange(TAGS + 1) == TAGS, 0.0, NEVER)


def _next_totals(
    p: Any,
    total: jax.Array,
    score: jax.Array,
) -> jax.Array:
    """The totals `[..., TAGS + 1]` of all ways to each tag, after one more word."""
    ways = total[..., :, None] + p["moves"]
    new = jax.nn.logsumexp(ways, -2) + score
    never = jnp.full((*new.shape[:-1], 1), NEVER)
    return jnp.concatenate([new, never], -1)
