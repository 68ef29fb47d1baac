"""A GRU encoder, both ways, and a decoder that attends to all its states at each step; by hand padded, with masks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, lengths_of, padded, weights

H = 64
WORDS = 500
SPEC = {
    "source": "int32[s]",
    "inputs": "int32[t]",
    "targets": "int32[t]",
}

xent = optax.softmax_cross_entropy_with_integer_labels


def translation(amount: Amount) -> Work:
    """64 pairs of 5 to 29 words each."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(amount.of(64)):
        n, m = rng.integers(5, 30, 2)
        words = rng.integers(0, WORDS, m + 1).astype(np.int32)
        source = rng.integers(0, WORDS, n).astype(np.int32)
        examples.append(
            {
                "source": source,
                "inputs": words[:-1],
                "targets": words[1:],
            }
        )
    params = weights(
        0,
        embed=(WORDS, H),
        left=(2 * H, 3 * H),
        right=(2 * H, 3 * H),
        memory=(2 * H, H),
        decode=(2 * H, 3 * H),
        output=(2 * H, WORDS),
    )
    params["embed"] = params["embed"] * WORDS**0.5
    arrays = {}
    for name in SPEC:
        arrays[name] = padded([each[name] for each in examples])
    arrays["n_source"] = lengths_of([each["source"] for each in examples])
    arrays["n_target"] = lengths_of([each["inputs"] for each in examples])
    n_rows = sum(len(each["source"]) + len(each["inputs"]) for each in examples)
    return Work(
        model,
        SPEC,
        params,
        examples,
        n_rows,
        plain,
        arrays,
    )


def gru(w: jax.Array, h: jax.Array, x: jax.Array) -> jax.Array:
    """The next state of a GRU `[..., H]`.

    Args:
      w: `[2 H, 3 H]`: from input and state to reset, update and candidate.
      h: The state.
      x: The input.
    """
    of_input = x @ w[:H]
    of_state = h @ w[H:]
    reset = jax.nn.sigmoid(of_input[..., :H] + of_state[..., :H])
    update = jax.nn.sigmoid(of_input[..., H : 2 * H] + of_state[..., H : 2 * H])
    new = jnp.tanh(of_input[..., 2 * H :] + reset * of_state[..., 2 * H :])
    return update * h + (1 - update) * new


def model(p: Any, example: Any) -> jax.Array:
    """The mean cross entropy of a pair's target words.

    Args:
      p: The parameters.
      example: `source` `[s]`, `inputs` and `targets` `[t]`.
    """
    start = jnp.zeros(H)
    sides = []
    for name in ("left", "right"):

        def step(h: jax.Array, word: jax.Array, w: jax.Array = p[name]) -> Any:
            h = gru(w, h, p["embed"][word])
            return h, h

        sides.append(
            amp.scan(
                step,
                start,
                example["source"],
                reverse=name == "right",
            )
        )
    (_, left), (first, right) = sides
    memory = amp.map(
        lambda a, b: jnp.concatenate([a, b]) @ p["memory"],
        left,
        right,
    )

    def decode(h: jax.Array, word: jax.Array) -> Any:
        h = gru(
            p["decode"],
            h,
            p["embed"][word],
        )
        shares = amp.softmax(amp.map(lambda m: h @ m / H**0.5, memory))
        read = amp.sum(
            amp.map(
                lambda share, m: share * m,
                shares,
                memory,
            )
        )
        return h, jnp.concatenate([h, read])

    _, states = amp.scan(
        decode,
        first,
        example["inputs"],
    )
    return amp.mean(
        amp.map(
            lambda x, y: xent(x @ p["output"], y),
            states,
            example["targets"],
        )
    )


def plain(p: Any, arrays: Any) -> jax.Array:
    """The same over a batch.

    Args:
      p: The parameters.
      arrays: `source`, `inputs` and `targets`, padded, and their lengths `n_source` and `n_target`.
    """
    source = arrays["source"]
    inside = jnp.arange(source.shape[1])[:, None] < arrays["n_source"]
    start = jnp.zeros((len(source), H))
    xs = (p["embed"][source.T], inside)

    def encode(name: str) -> Any:
        def step(h: jax.Array, now: Any) -> Any:
            x, real = now
            h = jnp.where(
                real[:, None],
                gru(p[name], h, x),
                h,
            )
            return h, h

        return jax.lax.scan(
            step,
            start,
            xs,
            reverse=name == "right",
        )

    _, left = encode("left")
    first, right = encode("right")
    memory = (jnp.concatenate([left, right], -1) @ p["memory"]).swapaxes(
        0,
        1,
    )
    is_word = inside.T

    def decode(h: jax.Array, x: jax.Array) -> Any:
        h = gru(p["decode"], h, x)
        scores = (
            jnp.einsum(
                "bh,bsh->bs",
                h,
                memory,
            )
            / H**0.5
        )
        shares = jax.nn.softmax(
            jnp.where(
                is_word,
                scores,
                -jnp.inf,
            )
        )
        read = jnp.einsum(
            "bs,bsh->bh",
            shares,
            memory,
        )
        return h, jnp.concatenate([h, read], -1)

    _, states = jax.lax.scan(
        decode,
        first,
        p["embed"][arrays["inputs"].T],
    )
    each = xent(states @ p["output"], arrays["targets"].T)
    real = jnp.arange(len(each))[:, None] < arrays["n_target"]
    return jnp.mean(jnp.where(real, each, 0).sum(0) / arrays["n_target"])
