"""Operations in an order of each instance's own (AMPNet, ICLR version, section 7), as a function of one instance."""

from __future__ import annotations

from typing import Any

import jax

import ampjax as amp
from ampjax.data.permutation import N_DIGITS, N_PLACES
from ampjax.models.functions.rnn_function import linear
from ampjax.models.layers.losses import labelled_cross_entropy
from ampjax.models.permutation import digit_tables, embed
from ampjax.nn import Linear

SPEC = {"digits": f"int32[{N_PLACES}]", "order": "int32[t]", "label": "int32[]"}
"""What an instance looks like."""


def init(key: jax.Array, n_operations: int = 8, hidden: int = 128) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      n_operations: Operations, K.
      hidden: Features of the state.
    """
    operation = Linear(hidden, hidden, init_scale="he")
    keys = jax.random.split(key, n_operations + 2)
    return {
        "embed": digit_tables(hidden)(keys[0]),
        "output": Linear(hidden, N_DIGITS).init(keys[1]),
        **{f"operation{k}": operation.init(keys[2 + k]) for k in range(n_operations)},
    }


def permutation(p: Any, s: Any) -> jax.Array:
    """A state goes through each operation `h <- relu(h W_k + b_k)` once, in its own order, and is classified.

    Args:
      p: The parameters.
      s: `digits` `[6]`, `order` `[t]`: the operations' numbers, and `label` `[]`.

    Returns:
      The cross entropy, in nats.
    """
    operations = [name for name in p if name.startswith("operation")]

    def step(h: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        choices = [lambda h, name=name: jax.nn.relu(linear(p[name], h)) for name in operations]
        return amp.switch(k, choices, h), None

    h, _ = amp.scan(step, embed(p["embed"], s["digits"]), s["order"])
    loss, metrics = labelled_cross_entropy(linear(p["output"], h), s["label"])
    amp.metric("accuracy", *metrics["accuracy"])
    return loss
