"""A classifier that attends to the items of a list of any length (Bahdanau et al. 2015)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.priorities import N_PRIORITIES, N_VALUES
from experiments.models.functions.zoo.small_cells import init_linears, init_tables, scored
from experiments.models.layers.linear import linear

SPEC = {"priority": "int32[t]", "value": "int32[t]", "label": "int32[]"}
"""What an instance looks like."""


def init(
    key: jax.Array,
    hidden: int = 32,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features.
    """
    first, second = jax.random.split(key)
    tables = init_tables(first, hidden, priority=N_PRIORITIES, value=N_VALUES, query=1)
    return tables | init_linears(second, classify=(hidden, N_VALUES))


def attention_classifier(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Weighs the items by a softmax over the list, and classifies their weighted sum.

    Args:
      p: The parameters.
      s: `priority` and `value` `[t]`, and `label` `[]`.

    Returns:
      The cross entropy; and the accuracy.
    """
    scores = amp.map(
        lambda a: jnp.tanh(p["priority"][a]) @ p["query"][0],
        s["priority"],
    )
    weighted = amp.map(
        lambda weight, v: weight * p["value"][v],
        amp.softmax(scores),
        s["value"],
    )
    return scored(
        linear(p["classify"], amp.sum(weighted)),
        s["label"],
    )
