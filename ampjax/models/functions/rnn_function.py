"""The variable-length RNN of AMPNet's figure 2, for list reduction (section 6 and B.2), as a function of one sequence or one bucket."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.data.list_reduction import N_CLASSES, N_TOKENS
from ampjax.models.layers.linear import linear
from ampjax.models.layers.losses import labelled_cross_entropy
from ampjax.nn import Embed, Linear


def spec(batch: int | None = None) -> dict[str, str]:
    """What an instance looks like.

    Args:
      batch: Sequences in a bucket; None for single sequences.
    """
    return (
        {"tokens": "int32[t]", "label": "int32[]"}
        if batch is None
        else {
            "tokens": f"int32[t,{batch}]",
            "label": f"int32[{batch}]",
        }
    )


def init(key: jax.Array, hidden: int = 128) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of the embedding and of the hidden state.
    """
    keys = jax.random.split(key, 3)
    return {
        "embed": Embed(N_TOKENS, hidden).init(keys[0]),
        "linear1": Linear(2 * hidden, hidden, init_scale="he").init(keys[1]),
        "linear2": Linear(hidden, N_CLASSES).init(keys[2]),
    }


def list_reduction(p: Any, s: Any) -> jax.Array:
    """`h <- relu(linear1([embed(x_t); h]))`, and a classifier on the last state.

    Args:
      p: The parameters.
      s: `tokens` `[t]` and `label` `[]`; or of a bucket `[t, batch]` and `[batch]`, where the label -1 marks padding.

    Returns:
      The mean cross entropy, in nats.
    """

    def step(h: jax.Array, token: jax.Array) -> tuple[jax.Array, None]:
        x = p["embed"].at[token].get(mode="clip")
        return jax.nn.relu(linear(p["linear1"], jnp.concatenate([x, h], axis=-1))), None

    start = jnp.zeros((*s["label"].shape, p["embed"].shape[1]))
    h, _ = amp.scan(step, start, s["tokens"])
    loss, metrics = labelled_cross_entropy(linear(p["linear2"], h), s["label"])
    amp.metric("accuracy", *metrics["accuracy"])
    return loss
