"""A recursive network over ListOps, whose operations have any number of members."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.operation_trees import N_CLASSES, N_WORDS
from experiments.models.functions.zoo.small_cells import cross_entropy, init_linears, init_tables
from experiments.models.layers.linear import linear

SPEC = {
    "tree": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]", "label": "int32[v]"}),
    "label": "int32[]",
}
"""What an instance looks like."""


def init(
    key: jax.Array,
    hidden: int = 64,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features.
    """
    first, second = jax.random.split(key)
    sizes = {
        "member": (2 * hidden, 2 * hidden),
        "combine": (3 * hidden, hidden),
        "classify": (hidden, N_CLASSES),
    }
    return init_tables(first, hidden, digit=N_WORDS, operation=N_WORDS) | init_linears(
        second, **sizes
    )


def listops(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Each list's vector comes from its operation and the sum of what each member says to that operation.

    Args:
      p: The parameters.
      s: `tree`, with each node's `word` and `label`, and the root's `label`.

    Returns:
      The summed cross entropy of all nodes; and the accuracy at the root.
    """

    def leaf(node: Any) -> jax.Array:
        return jnp.tanh(p["digit"][node["word"]])

    def branch(node: Any, members: jax.Array) -> jax.Array:
        operation = p["operation"][node["word"]]

        def says(member):
            return jax.nn.relu(linear(p["member"], jnp.concatenate([operation, member])))

        heard = amp.sum(amp.map(says, members))
        return jnp.tanh(linear(p["combine"], jnp.concatenate([operation, heard])))

    def score(h: jax.Array, node: Any) -> jax.Array:
        return cross_entropy(linear(p["classify"], h), node["label"])

    states, root = amp.fold_tree(leaf, branch, s["tree"])
    hit = jnp.argmax(linear(p["classify"], root)) == s["label"]
    return amp.sum(amp.map(score, states, s["tree"].value)), {"accuracy": hit}
