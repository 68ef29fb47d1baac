"""A memory network (Sukhbaatar et al. 2015) with as many hops as the instance says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.pointer_facts import N_PLACES
from experiments.models.functions.zoo.small_cells import init_linears, init_tables, scored
from experiments.models.layers.linear import linear

SPEC = {
    "source": "int32[f]",
    "target": "int32[f]",
    "start": "int32[]",
    "hops": "int32[]",
    "label": "int32[]",
}
"""What an instance looks like: facts, where to start, and how many hops to make."""


def init(
    key: jax.Array,
    hidden: int = 32,
) -> dict[str, Any]:
    """Makes the parameters; tables start small (the paper's standard deviation is 0.1), so that attention is spread over all facts at first.

    Args:
      key: A PRNG key.
      hidden: Features.
    """
    first, second = jax.random.split(key)
    tables = init_tables(
        first,
        hidden,
        scale=0.1,
        source=N_PLACES,
        target=N_PLACES,
        start=N_PLACES,
    )
    return tables | init_linears(second, hop=(hidden, hidden), classify=(hidden, N_PLACES))


def memory_network(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Each hop attends to the facts by the state, and what it reads gives the next state.

    Args:
      p: The parameters.
      s: `source` and `target` `[f]`, `start`, `hops` and `label` `[]`.

    Returns:
      The cross entropy; and the accuracy.
    """
    keys = amp.map(
        lambda place: p["source"][place],
        s["source"],
    )
    values = amp.map(
        lambda place: p["target"][place],
        s["target"],
    )

    def hop(_: Any, state: jax.Array) -> jax.Array:
        weights = amp.softmax(amp.map(lambda key: key @ state, keys))
        read = amp.sum(amp.map(jnp.multiply, weights, values))
        return linear(p["hop"], read)

    state = amp.fori_loop(
        s["hops"],
        hop,
        p["start"][s["start"]],
    )
    return scored(linear(p["classify"], state), s["label"])
