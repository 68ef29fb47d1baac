"""SPINN (Bowman et al. 2016): a shift-reduce parser that predicts its own actions composes a formula's value on a stack."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.formulas import MOST_WORDS, N_CLASSES, N_WORDS
from experiments.models.functions.zoo.small_cells import (
    cross_entropy,
    init_linears,
    init_tables,
    lstm,
)
from experiments.models.layers.linear import linear

SPEC = {"words": "int32[w]", "actions": "int32[a]", "label": "int32[]"}
"""What an instance looks like."""


def init(
    key: jax.Array,
    hidden: int = 32,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of words and of the tracking LSTM.
    """
    first, second = jax.random.split(key)
    sizes = {
        "track": (4 * hidden, 4 * hidden),
        "act": (hidden, 2),
        "compose1": (2 * hidden, 4 * hidden),
        "compose2": (4 * hidden, hidden),
        "classify": (hidden, N_CLASSES),
    }
    return init_tables(first, hidden, embed=N_WORDS) | init_linears(second, **sizes)


def spinn(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """In training it does the given actions (and learns to predict them), elsewhere those that it predicts; what can't be done is ruled out.

    Args:
      p: The parameters.
      s: `words` `[w]`, `actions` `[2 w - 1]` and `label` `[]`.

    Returns:
      The cross entropy of the value and of all actions; and the value's accuracy.
    """
    n = amp.length(s["words"])
    width = p["embed"].shape[1]
    empty = jnp.zeros((MOST_WORDS, width)), jnp.int32(0)

    def push(stack, x):
        return (
            stack[0].at[stack[1]].set(x),
            stack[1] + 1,
        )

    (buffer, _), _ = amp.scan(
        lambda filled, w: (push(filled, p["embed"][w]), None),
        empty,
        s["words"],
    )

    def step(
        state: Any,
        action: jax.Array,
    ) -> tuple[Any, jax.Array]:
        (stack, depth), front, tracked = state
        right = stack[depth - 1]
        left = stack[depth - 2]
        ahead = buffer[front]
        tracked = lstm(
            p["track"],
            tracked,
            jnp.concatenate([left, right, ahead]),
        )
        scores = linear(p["act"], tracked[:width])
        own = jnp.argmax(jnp.where(jnp.stack([front < n, depth >= 2]), scores, -jnp.inf))
        chosen = amp.stochastic(
            lambda _, own, given: given,
            lambda own, given: own,
            own,
            action,
        )

        def reduce() -> Any:
            both = jax.nn.relu(linear(p["compose1"], jnp.concatenate([left, right])))
            return push((stack, depth - 2), jnp.tanh(linear(p["compose2"], both))), front

        below, front = amp.switch(
            amp.read(chosen),
            [
                lambda: (push((stack, depth), ahead), front + 1),
                reduce,
            ],
        )
        return (below, front, tracked), cross_entropy(scores, action)

    ((stack, _), *_), wrong = amp.scan(
        step,
        (empty, jnp.int32(0), jnp.zeros(2 * width)),
        s["actions"],
    )
    logits = linear(p["classify"], stack[0])
    return cross_entropy(logits, s["label"]) + amp.sum(wrong), {
        "accuracy": jnp.argmax(logits) == s["label"]
    }
