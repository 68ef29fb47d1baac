"""Binary Tree-LSTMs by hand: states say which node of the tree a message belongs to; `experiments.models.tree_lstm` has the cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.wires import Wire
from experiments.models.tree_lstm import Cells, uniform_table


def tree_lstm(
    n_words: int,
    cells: Cells,
    embedding_interval: int | None = None,
    embedding_tx: optax.GradientTransformation | None = None,
    *,
    replicas: int = 1,
    copies: int = 1,
) -> Graph:
    """Makes a Tree-LSTM that classifies every node of a tree; the pumps are those of `experiments.data.sst.TreeInstances`.

    A message's state says where it goes. When a tree node's `[2H]` has been computed, an Isu swaps `at` and `up` of its message, which is then
    `at` the parent. There the branch cell joins it with its sibling and with the branch's own pumped message, and the result has the state of
    the latter.

    Args:
      n_words: Words in the vocabulary.
      cells: Cells and sizes.
      embedding_interval: `min_update_interval` of the embedding; by default the trainer's.
      embedding_tx: The embedding's optax transform; by default the trainer's.
      replicas: The number of copies of `leaf` and of `branch`, each for some instances (figure 4b).
      copies: The number of copies of the whole network, each for some instances and on a worker of its own.

    Returns:
      The graph, with the parameterised nodes `embed`, `leaf` and `branch` (or `leaf/0` ...) and `classify`, the loss `xent` with the
      metrics `accuracy` (over all nodes) and `root_accuracy`, and the sinks `logits` and `root` (the root's state).

    Raises:
      SettingsError: If `n_words`, `replicas` or `copies` is below 1.
    """
    if n_words < 1:
        raise SettingsError(
            "tree_lstm, `n_words`", "at least 1", f"{n_words}", "Give the vocabulary's size."
        )
    for name, value in (("replicas", replicas), ("copies", copies)):
        if value < 1:
            raise SettingsError(
                f"tree_lstm, `{name}`", "at least 1", f"{value}", "1 is no replication."
            )
    fields = ("at", "up", "side")
    uses_key = cells.keep < 1

    def network(words: Wire, branches: Wire, labels: Wire) -> None:
        initial = uniform_table(n_words, cells.embedding)
        embed = ag.ppt(
            "embed",
            amp.look_up,
            params=initial,
            min_update_interval=embedding_interval,
            tx=embedding_tx,
        )
        leaf = ag.ppt(
            "leaf",
            cells.leaf,
            params=cells.init_leaf,
            rng=uses_key and cells.kind == "fold",
        )
        leaves = ag.replicate(leaf, replicas)(embed(words))
        node = ag.phi("node")
        left, right, root = ag.cond(
            node,
            lambda s: s.side,
            3,
        )
        ag.sink("root", root)
        left, right = (ag.isu(child, _swap, _swap) for child in (left, right))
        branch = ag.ppt(
            "branch",
            _Branch(cells),
            params=cells.init_branch,
            join=("at",),
            rng=uses_key and cells.kind == "fold",
        )
        node.connect(
            leaves,
            ag.replicate(branch, replicas)(branches, left, right),
        )
        logits = ag.ppt("classify", cells.classify, params=cells.init_classify, rng=uses_key)(node)
        ag.sink("logits", logits)
        ag.loss("xent", _loss)(logits, labels)

    with ag.Graph() as graph:
        words = ag.pump("words", (), "int32", fields)
        branches = ag.pump("branches", (), "int32", fields)
        labels = ag.pump("labels", (2,), "int32", fields)
        ag.replicate(network, copies)(words, branches, labels)
    return graph


def _swap(s: Any) -> Any:
    return s.replace(at=s.up, up=s.at)


@dataclass(frozen=True)
class _Branch:
    """The branch cell; a branch's own message, which comes first, has no payload to read."""

    cells: Cells

    def __call__(
        self,
        params: Any,
        _: jax.Array,
        left: jax.Array,
        right: jax.Array,
        key: Any = None,
    ) -> jax.Array:
        return self.cells.branch(params, left, right, key)


def _loss(logits: jax.Array, label: jax.Array) -> Any:
    """Cross entropy of one node, in nats; `label` holds the class and whether the node is a root."""
    hit = (jnp.argmax(logits) == label[0]).astype(jnp.float32)
    metrics = {
        "accuracy": (hit, 1.0),
        "root_accuracy": (hit * label[1], label[1].astype(jnp.float32)),
    }
    return optax.softmax_cross_entropy_with_integer_labels(logits, label[0]), metrics
