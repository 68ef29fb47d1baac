"""Binary Tree-LSTMs for the sentiment treebank (AMPNet section 6 and B.3), as a function of one tree; the cells are those of `tree_lstm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
from ampjax.models.functions.drawing import drawing
from ampjax.models.tree_lstm import Cells, look_up, uniform_table

SPEC = {"tree": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]", "label": "int32[v]"})}
"""What an instance looks like: branches have a word, too, which nobody reads."""


def init(
    key: jax.Array,
    n_words: int,
    cells: Cells,
    vectors: Callable[[jax.Array], jax.Array] | None = None,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      n_words: Words in the vocabulary.
      cells: Cells and sizes.
      vectors: From a PRNG key to the initial table `[n_words, E]`; by default uniform within 0.05.
    """
    keys = jax.random.split(key, 4)
    return {
        "embed": (vectors or uniform_table(n_words, cells.embedding))(keys[0]),
        "leaf": cells.init_leaf(keys[1]),
        "branch": cells.init_branch(keys[2]),
        "classify": cells.init_classify(keys[3]),
    }


def tree_lstm(cells: Cells) -> Callable[[Any, Any], jax.Array]:
    """The model: classifies every node of a tree.

    Args:
      cells: Cells and sizes.

    Returns:
      A function of parameters and an instance to the summed cross entropy of all nodes, in nats.
    """

    def model(p: Any, s: Any) -> jax.Array:
        tree = s["tree"]

        def leaf(node: Any) -> jax.Array:
            return drawing(cells.keep < 1, cells.leaf, p["leaf"], look_up(p["embed"], node["word"]))

        def branch(_: Any, left: jax.Array, right: jax.Array) -> jax.Array:
            return drawing(cells.keep < 1, cells.branch, p["branch"], 0, left, right)

        def score(state: jax.Array, node: Any, parent: jax.Array) -> jax.Array:
            logits = drawing(cells.keep < 1, cells.classify, p["classify"], state)
            amp.output("logits", logits)
            hit, is_root = (jnp.argmax(logits) == node["label"]).astype(jnp.float32), parent < 0
            amp.metric("accuracy", hit)
            amp.metric("root_accuracy", hit * is_root, is_root)
            return optax.softmax_cross_entropy_with_integer_labels(logits, node["label"])

        states, root = amp.fold_tree(leaf, branch, tree, arity=2)
        amp.output("root", root)
        return amp.sum(amp.map(score, states, tree.value, tree.parent))

    return model
