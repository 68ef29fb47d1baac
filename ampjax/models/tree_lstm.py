"""Binary Tree-LSTMs for the sentiment treebank (AMPNet section 6 and B.3).

Two cells. `fold` is TensorFlow Fold's (Looks et al. 2017), which AMPNet's B.3 names: one linear map for all gates, forget bias 1, recurrent
dropout on the candidate (Semeniuta et al. 2016). `tai` is that of Tai et al. 2015: leaves without input gate, forget bias 0. Leaf and
branch cells have weights and biases of their own. A node's state `[2H]` holds `h` and `c`, one after the other; row vectors throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
from ampjax.data.sst import N_CLASSES
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.wires import Wire
from ampjax.models.layers.dropout import dropout
from ampjax.models.layers.host_rows import table_of
from ampjax.nn import ChosenEmbed
from ampjax.sparse import Table


@dataclass(frozen=True)
class Cells:
    """The cells' sizes and dropout.

    Args:
      kind: `fold` or `tai`.
      embedding: Features of a word vector, E.
      hidden: Features of `h` and of `c`, H.
      keep: Probability that dropout keeps an entry. Dropout acts on word vectors, candidates and classifier inputs for `fold`, and on
        classifier inputs alone for `tai`.
    """

    kind: str = "fold"
    embedding: int = 300
    hidden: int = 300
    keep: float = 0.75

    def __post_init__(self) -> None:
        if self.kind not in ("fold", "tai"):
            raise SettingsError("tree_lstm, `kind`", "`fold` or `tai`", f"{self.kind!r}", "Choose one of them.")
        if min(self.embedding, self.hidden) < 1 or not 0 < self.keep <= 1:
            raise SettingsError(
                "tree_lstm, sizes", "sizes of at least 1 and 0 < keep <= 1", f"{self}", "Change what is outside."
            )

    @property
    def leaf_gates(self) -> int:
        """Gates of a leaf: i, j, o (`fold`; its forget gates would multiply zeros), or c, o (`tai`)."""
        return 3 if self.kind == "fold" else 2

    def init_leaf(self, key: jax.Array) -> dict[str, jax.Array]:
        """Makes the parameters of leaves.

        Args:
          key: A PRNG key.

        Returns:
          `w [E, gates * H]`, Glorot uniform, and `b`, zeros.
        """
        return _linear(key, self.embedding, self.leaf_gates * self.hidden)

    def init_branch(self, key: jax.Array) -> dict[str, jax.Array]:
        """Makes the parameters of branches.

        Args:
          key: A PRNG key.

        Returns:
          `w [2H, 5H]`, Glorot uniform, and `b`, zeros: gates i, j, f_left, f_right, o.
        """
        return _linear(key, 2 * self.hidden, 5 * self.hidden)

    def leaf(self, params: Any, x: jax.Array, key: Any = None) -> jax.Array:
        """Computes the state of a leaf.

        Args:
          params: As `init_leaf` gives them.
          x: A word vector `[E]`.
          key: A PRNG key for dropout; None in inference.

        Returns:
          The state `[2H]`: `h` and `c`.
        """
        in_key, key = (None, None) if key is None else jax.random.split(key)
        if self.kind == "tai":
            c, o = jnp.split(x @ params["w"] + params["b"], 2, axis=-1)
            return self._state(c, o)
        gates = dropout(in_key, x, self.keep) @ params["w"] + params["b"]
        i, j, o = jnp.split(gates, 3, axis=-1)
        return self._state(jax.nn.sigmoid(i) * dropout(key, jnp.tanh(j), self.keep), o)

    def branch(self, params: Any, _: jax.Array, left: jax.Array, right: jax.Array, key: Any = None) -> jax.Array:
        """Computes the state of a node with two children.

        Args:
          params: As `init_branch` gives them.
          _: The branch's own message, which has no payload to read.
          left: The state `[2H]` of the left child.
          right: The state `[2H]` of the right child.
          key: A PRNG key for dropout; None in inference.

        Returns:
          The state `[2H]`: `h` and `c`.
        """
        (h_l, c_l), (h_r, c_r) = (jnp.split(child, 2, axis=-1) for child in (left, right))
        gates = jnp.concatenate([h_l, h_r], axis=-1) @ params["w"] + params["b"]
        i, j, f_l, f_r, o = jnp.split(gates, 5, axis=-1)
        candidate, bias = jnp.tanh(j), 0.0
        if self.kind == "fold":
            candidate, bias = dropout(key, candidate, self.keep), 1.0
        kept = jax.nn.sigmoid(f_l + bias) * c_l + jax.nn.sigmoid(f_r + bias) * c_r
        return self._state(jax.nn.sigmoid(i) * candidate + kept, o)

    def classify(self, params: Any, state: jax.Array, key: Any = None) -> jax.Array:
        """Classifies a node.

        Args:
          params: As `init_classify` gives them.
          state: The node's state `[2H]`.
          key: A PRNG key for dropout; None in inference.

        Returns:
          Logits `[5]`.
        """
        h = state[..., : self.hidden]
        return dropout(key, h, self.keep) @ params["w"] + params["b"]

    def init_classify(self, key: jax.Array) -> dict[str, jax.Array]:
        """Makes the parameters of the classifier.

        Args:
          key: A PRNG key.

        Returns:
          `w [H, 5]`, Glorot uniform, and `b`, zeros.
        """
        return _linear(key, self.hidden, N_CLASSES)

    def _state(self, c: jax.Array, o: jax.Array) -> jax.Array:
        return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c], axis=-1)


def tree_lstm(
    n_words: int,
    cells: Cells = Cells(),
    embedding_interval: int | None = None,
    embedding_tx: optax.GradientTransformation | None = None,
    vectors: Callable[[jax.Array], jax.Array] | None = None,
    *,
    replicas: int = 1,
    copies: int = 1,
    table: Table | ChosenEmbed | None = None,
) -> Graph:
    """Makes a Tree-LSTM that classifies every node of a tree; the pumps are those of `ampjax.data.sst.TreeInstances`.

    A message's state says where it goes. When a tree node's `[2H]` has been computed, an Isu swaps `at` and `up` of its message, which is then
    `at` the parent. There the branch cell joins it with its sibling and with the branch's own pumped message, and the result has the state of
    the latter.

    Args:
      n_words: Words in the vocabulary.
      cells: Cells and sizes.
      embedding_interval: `min_update_interval` of the embedding; by default the trainer's.
      embedding_tx: The embedding's optax transform; by default the trainer's.
      vectors: From a PRNG key to the initial table `[n_words, E]`; by default uniform within 0.05.
      replicas: The number of copies of `leaf` and of `branch`, each for some instances (figure 4b).
      copies: The number of copies of the whole network, each for some instances and on a worker of its own.
      table: The word vectors `[n_words, E]`, in host memory and with an optimizer of their own, in place of `vectors` and
        `embedding_tx`; None keeps them on a device. Or what `amp.nn.choose_embed` has chosen.

    Returns:
      The graph, with the parameterised nodes `embed`, `leaf` and `branch` (or `leaf/0` ...) and `classify`, the loss `xent` with the
      metrics `accuracy` (over all nodes) and `root_accuracy`, and the sinks `logits` and `root` (the root's state).

    Raises:
      SettingsError: If `n_words`, `replicas` or `copies` is below 1, or the table has another shape or is combined with `vectors` or
        `embedding_tx`.
    """
    if n_words < 1:
        raise SettingsError("tree_lstm, `n_words`", "at least 1", f"{n_words}", "Give the vocabulary's size.")
    for name, value in (("replicas", replicas), ("copies", copies)):
        if value < 1:
            raise SettingsError(f"tree_lstm, `{name}`", "at least 1", f"{value}", "1 is no replication.")
    fields, uses_key = ("at", "up", "side"), cells.keep < 1
    if table is not None and (vectors is not None or embedding_tx is not None):
        got = "`vectors`" if vectors is not None else "`embedding_tx`"
        raise SettingsError("tree_lstm, `table`", "no vectors or transform beside it", got, "Give both to the table.")
    if table is not None:
        body, initial = table_of("tree_lstm", table, n_words, cells.embedding), None
    else:
        body, initial = look_up, vectors if vectors is not None else uniform_table(n_words, cells.embedding)

    def network(words: Wire, branches: Wire, labels: Wire) -> None:
        embed = amp.ppt("embed", body, params=initial, min_update_interval=embedding_interval, tx=embedding_tx)
        leaf = amp.ppt("leaf", cells.leaf, params=cells.init_leaf, rng=uses_key and cells.kind == "fold")
        leaves = amp.replicate(leaf, replicas)(embed(words))
        node = amp.phi("node")
        left, right, root = amp.cond(node, lambda s: s.side, 3)
        amp.sink("root", root)
        left, right = (amp.isu(child, _swap, _swap) for child in (left, right))
        branch = amp.ppt(
            "branch", cells.branch, params=cells.init_branch, join=("at",), rng=uses_key and cells.kind == "fold"
        )
        node.connect(leaves, amp.replicate(branch, replicas)(branches, left, right))
        logits = amp.ppt("classify", cells.classify, params=cells.init_classify, rng=uses_key)(node)
        amp.sink("logits", logits)
        amp.loss("xent", _loss)(logits, labels)

    with amp.Graph() as graph:
        words = amp.pump("words", (), "int32", fields)
        branches = amp.pump("branches", (), "int32", fields)
        labels = amp.pump("labels", (2,), "int32", fields)
        amp.replicate(network, copies)(words, branches, labels)
    return graph


def _swap(s: Any) -> Any:
    return s.replace(at=s.up, up=s.at)


def look_up(table: jax.Array, number: jax.Array) -> jax.Array:
    """Reads a row of a table; numbers outside the table are clipped.

    Args:
      table: `[n, E]`.
      number: An integer.

    Returns:
      `[E]`.
    """
    return table.at[number].get(mode="clip")


def _loss(logits: jax.Array, label: jax.Array) -> Any:
    """Cross entropy of one node, in nats; `label` holds the class and whether the node is a root."""
    hit = (jnp.argmax(logits) == label[0]).astype(jnp.float32)
    metrics = {"accuracy": (hit, 1.0), "root_accuracy": (hit * label[1], label[1].astype(jnp.float32))}
    return optax.softmax_cross_entropy_with_integer_labels(logits, label[0]), metrics


def _linear(key: jax.Array, n_in: int, n_out: int) -> dict[str, jax.Array]:
    w = jax.nn.initializers.glorot_uniform()(key, (n_in, n_out), jnp.float32)
    return {"w": w, "b": jnp.zeros(n_out, jnp.float32)}


def uniform_table(n_words: int, features: int) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a table of word vectors, uniform within 0.05.

    Args:
      n_words: Words.
      features: Features of a vector.

    Returns:
      From a PRNG key to `[n_words, features]`.
    """
    return lambda key: jax.random.uniform(key, (n_words, features), jnp.float32, -0.05, 0.05)
