"""The tagger of words with a model of characters for rare ones (AMPNet B.5), as a function of one sentence; cells are those of `tagger`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
from ampjax.data.wikiner import N_TAGS, OUTSIDE
from ampjax.models.layers.drawing import drawing
from ampjax.models.tagger import Noise, Sizes, glorot, init_gates, input_gates, lstm_cell, lstm_outputs, random_table
from ampjax.nn import Linear

SPEC = {"words": "int32[w]", "chars": "int32[w,c]", "tags": "int32[w]"}
"""What an instance looks like: a rare word is -1 and spelled, a frequent one has no characters."""


def init(key: jax.Array, n_words: int, n_characters: int, sizes: Sizes) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      n_words: Frequent words in the vocabulary.
      n_characters: Characters in the vocabulary.
      sizes: The sizes.
    """
    of_char, of_word = sizes.char_hidden, sizes.word_hidden
    makers = {
        "char_embed": random_table(n_characters, sizes.char),
        "embed": random_table(n_words, sizes.word),
        "char_input": init_gates(sizes.char, of_char),
        "char_forward": glorot(of_char, 4 * of_char),
        "char_backward": glorot(of_char, 4 * of_char),
        "word_input": init_gates(sizes.word, of_word),
        "word_forward": glorot(of_word, 4 * of_word),
        "word_backward": glorot(of_word, 4 * of_word),
        "hidden": glorot(2 * of_word, sizes.mlp),
        "output": Linear(sizes.mlp, N_TAGS, bias=False, init_scale="glorot").init,
    }
    keys = jax.random.split(key, len(makers))
    return {name: make(one) for (name, make), one in zip(makers.items(), keys, strict=True)}


def tagger(noise: float = 0.1) -> Callable[[Any, Any], jax.Array]:
    """The model: two LSTMs over a sentence's words, one each way; a rare word's vector comes from two LSTMs over its characters.

    Args:
      noise: Standard deviation of the Gaussian noise on word vectors, in training only.

    Returns:
      A function of parameters and an instance to the summed cross entropy of all words, in nats.
    """

    def model(p: Any, s: Any) -> jax.Array:
        def lstm(name: str, gates: Any, reverse: bool) -> tuple[jax.Array, Any]:
            def step(state: jax.Array, gate: jax.Array) -> tuple[jax.Array, jax.Array]:
                state = lstm_cell(p[name], gate, state)
                return state, state

            return amp.scan(step, jnp.zeros(2 * p[name].shape[0]), gates, reverse=reverse)

        def both_ways(name: str, vectors: Callable[..., Any], *xs: Any) -> Any:
            left, right = amp.map(lambda *x: input_gates(p[f"{name}_input"], vectors(*x)), *xs)
            return lstm(f"{name}_forward", left, False), lstm(f"{name}_backward", right, True)

        def word(number: jax.Array, chars: Any) -> jax.Array:
            def spell() -> jax.Array:
                (left, _), (right, _) = both_ways("char", lambda c: amp.look_up(p["char_embed"], c), chars)
                return lstm_outputs(left, right)

            vector = amp.cond(number < 0, spell, lambda: amp.look_up(p["embed"], number))
            return drawing(noise > 0, Noise(noise), vector)

        def score(left: jax.Array, right: jax.Array, tag: jax.Array) -> jax.Array:
            logits = jnp.tanh(lstm_outputs(left, right) @ p["hidden"]) @ p["output"]["w"]
            amp.output("logits", logits)
            hit, inside = jnp.argmax(logits) == tag, tag != OUTSIDE
            amp.metric("accuracy", hit)
            amp.metric("accuracy_without_o", hit & inside, inside)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tag)

        (_, left), (_, right) = both_ways("word", word, s["words"], s["chars"])
        return amp.sum(amp.map(score, left, right, s["tags"]))

    return model
