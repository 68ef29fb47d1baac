"""An LSTM over directed acyclic graphs: a node's state comes from those of all its parents, with a forget gate for each.

The nodes are gone through in topological order, with the earlier nodes' states in a memory of fixed size that is carried along.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.circuits import MOST_NODES, N_GATES
from experiments.models.functions.zoo.small_cells import cross_entropy, init_linears, init_tables
from experiments.models.layers.linear import linear

SPEC = {"gate": "int32[v]", "number": "int32[v]", "parents": "int32[v,e]", "label": "int32[v]"}
"""What an instance looks like: nodes in topological order, with the numbers of their parents."""


def init(
    key: jax.Array,
    hidden: int = 24,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of gates and states.
    """
    first, second = jax.random.split(key)
    sizes = {
        "gates": (2 * hidden, 3 * hidden),
        "parent": (2 * hidden, 2 * hidden),
        "classify": (hidden, 2),
    }
    return init_tables(first, hidden, embed=N_GATES) | init_linears(second, **sizes)


def dag_lstm(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A node sees its gate, and the sums over its parents of what each says to that gate and of what is kept of each one's cell.

    Args:
      p: The parameters.
      s: `gate`, `number` and `label` `[v]`, and `parents` `[v, e]`, ragged.

    Returns:
      The summed cross entropy of all nodes; and the accuracy of the last one.
    """
    width = p["embed"].shape[1]

    def node(
        memory: jax.Array,
        one: Any,
    ) -> tuple[jax.Array, jax.Array]:
        x = p["embed"][one["gate"]]

        def parent(number: jax.Array) -> tuple[jax.Array, jax.Array]:
            h, c = memory[number]
            says, keep = jnp.split(
                linear(p["parent"], jnp.concatenate([x, h])),
                2,
            )
            return jax.nn.relu(says), jax.nn.sigmoid(keep) * c

        heard, kept = amp.sum(amp.map(parent, one["parents"]))
        enter, out, new = jnp.split(
            linear(p["gates"], jnp.concatenate([x, heard])),
            3,
        )
        c = jax.nn.sigmoid(enter) * jnp.tanh(new) + kept
        h = jax.nn.sigmoid(out) * jnp.tanh(c)
        return memory.at[one["number"]].set(jnp.stack([h, c])), linear(p["classify"], h)

    _, logits = amp.scan(
        node,
        jnp.zeros((MOST_NODES, 2, width)),
        s,
    )
    hit = jnp.argmax(amp.take(logits, -1)) == amp.take(s["label"], -1)
    return amp.sum(amp.map(cross_entropy, logits, s["label"])), {"accuracy": hit}
