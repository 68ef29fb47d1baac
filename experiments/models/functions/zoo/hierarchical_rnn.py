"""A hierarchical recurrent network: characters make words, words make sentences, sentences make a document."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.documents import N_CHARACTERS, N_CLASSES
from experiments.models.functions.zoo.small_cells import init_linears, init_tables, lstm, scored
from experiments.models.layers.linear import linear

SPEC = {"text": "int32[s,w,c]", "label": "int32[]"}
"""What an instance looks like: sentences of words of characters."""


def init(
    key: jax.Array,
    hidden: int = 24,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of each level.
    """
    first, second = jax.random.split(key)
    levels = dict.fromkeys(
        ["characters", "words", "sentences"],
        (2 * hidden, 4 * hidden),
    )
    return init_tables(first, hidden, embed=N_CHARACTERS) | init_linears(
        second, **levels, classify=(hidden, N_CLASSES)
    )


def hierarchical_rnn(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Three LSTMs, one for each level; each reads the last states of the level below.

    Args:
      p: The parameters.
      s: `text` `[s, w, c]`, ragged, and `label` `[]`.

    Returns:
      The cross entropy; and the accuracy.
    """
    width = p["embed"].shape[1]

    def last(level: str, xs: jax.Array) -> jax.Array:
        state, _ = amp.scan(
            lambda state, x: (lstm(p[level], state, x), None),
            jnp.zeros(2 * width),
            xs,
        )
        return state[:width]

    def word(characters: jax.Array) -> jax.Array:
        return last(
            "characters",
            amp.map(lambda c: p["embed"][c], characters),
        )

    def sentence(words: jax.Array) -> jax.Array:
        return last("words", amp.map(word, words))

    document = last("sentences", amp.map(sentence, s["text"]))
    return scored(linear(p["classify"], document), s["label"])
