"""A recurrent network with adaptive computation time (Graves 2016), as a function of one sequence; the bodies are those of `act`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.models.act import Ponder
from ampjax.models.functions.rnn_function import linear
from ampjax.models.layers.losses import labelled_cross_entropy
from ampjax.nn import Linear


def spec(ponder: Ponder) -> dict[str, str]:
    """What an instance looks like: a sequence of inputs with its label.

    Args:
      ponder: The sizes.
    """
    return {"x": f"float32[t,{ponder.n_in}]", "label": "int32[]"}


def init(key: jax.Array, ponder: Ponder) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      ponder: The sizes.
    """
    keys = jax.random.split(key)
    return {"step": ponder.init_step(keys[0]), "classify": Linear(ponder.hidden, ponder.n_out).init(keys[1])}


def act_rnn(ponder: Ponder) -> Callable[[Any, Any], jax.Array]:
    """The model: a classifier of sequences that ponders every input for as many steps as it decides itself.

    Args:
      ponder: The sizes.

    Returns:
      A function of parameters and an instance to the cross entropy with the ponder costs of all inputs.
    """

    def model(p: Any, s: Any) -> jax.Array:
        def consider(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            start = ponder.begin(state, x), jnp.int32(1)
            row, _ = amp.while_loop(
                lambda carry: amp.read(carry[1]) == 1,
                lambda carry: ponder.step(p["step"], carry[0]),
                start,
                most=ponder.max_steps,
            )
            state, cost = ponder.end(row)
            amp.metric("ponder", cost)
            return state, ponder.cost(cost)[0]

        state, costs = amp.scan(consider, jnp.zeros(ponder.hidden), s["x"])
        logits = linear(p["classify"], state)
        amp.output("logits", logits)
        loss, metrics = labelled_cross_entropy(logits, s["label"])
        amp.metric("accuracy", *metrics["accuracy"])
        return loss + amp.sum(costs)

    return model
