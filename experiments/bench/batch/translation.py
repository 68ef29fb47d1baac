"""A GRU encoder, both ways, and a decoder that attends to all its states at each step; by hand padded, with masks."""

from __future__ import annotations

from collections.abc import Callable
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
    return pairs_of(amount, model, plain, 2 * H)


def input_feeding(amount: Amount) -> Work:
    """The same with input feeding: the decoder's cell also gets the attention of the state before."""
    return pairs_of(amount, feeding_model, feeding_plain, 3 * H)


def pairs_of(
    amount: Amount,
    model: Callable[[Any, Any], jax.Array],
    plain: Callable[[Any, Any], jax.Array],
    n_inputs: int,
) -> Work:
    """Makes a work of pairs of sentences.

    Args:
      amount: How many pairs.
      model: From parameters and a pair to the pair's loss.
      plain: The mean loss of the batch by hand.
      n_inputs: How many numbers the decoder's cell gets, its state included.
    """
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
        decode=(n_inputs, 3 * H),
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
      w: `[inputs + H, 3 H]`: from input and state to reset, update and candidate.
      h: The state.
      x: The input.
    """
    of_input = x @ w[:-H]
    of_state = h @ w[-H:]
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
    first, memory = encoded(p, example["source"])

    def decode(h: jax.Array, word: jax.Array) -> Any:
        h = gru(
            p["decode"],
            h,
            p["embed"][word],
        )
        return h, jnp.concatenate([h, attended(h, memory)])

    _, states = amp.scan(
        decode,
        first,
        example["inputs"],
    )
    return loss_of(p, states, example)


def feeding_model(p: Any, example: Any) -> jax.Array:
    """The same, where the cell also gets the attention of the state before.

    Args:
      p: The parameters.
      example: As for `model`.
    """
    first, memory = encoded(p, example["source"])

    def decode(h: jax.Array, word: jax.Array) -> Any:
        read = attended(h, memory)
        x = jnp.concatenate([p["embed"][word], read])
        h = gru(p["decode"], h, x)
        return h, jnp.concatenate([h, read])

    _, states = amp.scan(
        decode,
        first,
        example["inputs"],
    )
    return loss_of(p, states, example)


def encoded(p: Any, source: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The decoder's first state `[H]`, and the memory `[s, H]`.

    Args:
      p: The parameters.
      source: Words, `[s]`.
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
                source,
                reverse=name == "right",
            )
        )
    (_, left), (first, right) = sides
    memory = amp.map(
        lambda a, b: jnp.concatenate([a, b]) @ p["memory"],
        left,
        right,
    )
    return first, memory


def attended(h: jax.Array, memory: jax.Array) -> jax.Array:
    """The attention of a state: the memory's elements, each by its share.

    Args:
      h: The state `[H]`.
      memory: `[s, H]`.
    """
    shares = amp.softmax(amp.map(lambda m: h @ m / H**0.5, memory))
    return amp.sum(
        amp.map(
            lambda share, m: share * m,
            shares,
            memory,
        )
    )


def loss_of(p: Any, states: jax.Array, example: Any) -> jax.Array:
    """The mean cross entropy of the words that states predict.

    Args:
      p: The parameters.
      states: Of the decoder, with what it has read, `[t, 2 H]`.
      example: As for `model`.
    """
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
    first, memory, is_word = plain_encoded(p, arrays)

    def decode(h: jax.Array, x: jax.Array) -> Any:
        h = gru(p["decode"], h, x)
        read = plain_attended(h, memory, is_word)
        return h, jnp.concatenate([h, read], -1)

    xs = p["embed"][arrays["inputs"].T]
    _, states = jax.lax.scan(decode, first, xs)
    return plain_loss(p, states, arrays)


def feeding_plain(p: Any, arrays: Any) -> jax.Array:
    """The decoder with input feeding over a batch.

    Args:
      p: The parameters.
      arrays: As for `plain`.
    """
    first, memory, is_word = plain_encoded(p, arrays)

    def decode(h: jax.Array, x: jax.Array) -> Any:
        read = plain_attended(h, memory, is_word)
        h = gru(
            p["decode"],
            h,
            jnp.concatenate([x, read], -1),
        )
        return h, jnp.concatenate([h, read], -1)

    xs = p["embed"][arrays["inputs"].T]
    _, states = jax.lax.scan(decode, first, xs)
    return plain_loss(p, states, arrays)


def plain_encoded(p: Any, arrays: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The decoder's first states `[pairs, H]`, the memory `[pairs, s, H]`, and which of its elements count.

    Args:
      p: The parameters.
      arrays: As for `plain`.
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
    return first, memory, inside.T


def plain_attended(h: jax.Array, memory: jax.Array, is_word: jax.Array) -> jax.Array:
    """The attention of states over the memory, `[pairs, H]`.

    Args:
      h: The states.
      memory: `[pairs, s, H]`.
      is_word: Which of its elements count.
    """
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
    return jnp.einsum(
        "bs,bsh->bh",
        shares,
        memory,
    )


def plain_loss(p: Any, states: jax.Array, arrays: Any) -> jax.Array:
    """The mean over pairs of the words' mean cross entropy.

    Args:
      p: The parameters.
      states: `[t, pairs, 2 H]`.
      arrays: As for `plain`.
    """
    each = xent(states @ p["output"], arrays["targets"].T)
    real = jnp.arange(len(each))[:, None] < arrays["n_target"]
    return jnp.mean(jnp.where(real, each, 0).sum(0) / arrays["n_target"])
