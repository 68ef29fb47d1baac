"""The child-sum Tree-LSTM (Tai et al. 2015, equations 2 to 8): any number of children, with a forget gate for each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.dependency_trees import N_CLASSES, N_WORDS
from experiments.models.functions.zoo.small_cells import cross_entropy, init_linears, init_tables
from experiments.models.layers.linear import linear

SPEC = {
    "tree": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]", "label": "int32[v]"}),
    "label": "int32[]",
}
"""What an instance looks like."""


def init(
    key: jax.Array,
    hidden: int = 32,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of words and states.
    """
    first, second = jax.random.split(key)
    sizes = {
        "gates": (2 * hidden, 3 * hidden),
        "forget": (2 * hidden, hidden),
        "classify": (hidden, N_CLASSES),
    }
    return init_tables(first, hidden, embed=N_WORDS) | init_linears(second, **sizes)


def child_sum_tree_lstm(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A node's gates see its word and the sum of its children's hidden states; what is kept of each child's cell depends on that child.

    Args:
      p: The parameters.
      s: `tree`, with each node's `word` and `label`, and the root's `label`.

    Returns:
      The summed cross entropy of all nodes; and the accuracy at the root.
    """

    def cell(
        x: jax.Array,
        h: jax.Array,
        kept: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        enter, out, new = jnp.split(
            linear(p["gates"], jnp.concatenate([x, h])),
            3,
        )
        c = jax.nn.sigmoid(enter) * jnp.tanh(new) + kept
        return jax.nn.sigmoid(out) * jnp.tanh(c), c

    def leaf(node: Any) -> tuple[jax.Array, jax.Array]:
        x = p["embed"][node["word"]]
        return cell(x, jnp.zeros_like(x), jnp.zeros_like(x))

    def branch(
        node: Any,
        children: Any,
    ) -> tuple[jax.Array, jax.Array]:
        x = p["embed"][node["word"]]

        def forget(h, c):
            return jax.nn.sigmoid(linear(p["forget"], jnp.concatenate([x, h])) + 1) * c

        return cell(
            x,
            amp.sum(children[0]),
            amp.sum(amp.map(forget, *children)),
        )

    def score(h: jax.Array, node: Any) -> jax.Array:
        return cross_entropy(linear(p["classify"], h), node["label"])

    states, root = amp.fold_tree(leaf, branch, s["tree"])
    hit = jnp.argmax(linear(p["classify"], root[0])) == s["label"]
    return amp.sum(amp.map(score, states[0], s["tree"].value)), {"accuracy": hit}
