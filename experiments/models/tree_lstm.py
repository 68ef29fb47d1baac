"""Binary Tree-LSTMs for the sentiment treebank (AMPNet section 6 and B.3), as functions of one tree.

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
from ampjax.errors import SettingsError
from ampjax.sparse import Table
from experiments.data.sst import N_CLASSES
from experiments.models.layers.drawing import drawing
from experiments.models.layers.dropout import dropout
from experiments.models.layers.host_rows import check_table

SPEC = {"tree": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]", "label": "int32[v]"})}
"""What an instance looks like; `experiments.data.sst.plain` gives such instances. Branches have a word, too, which nobody reads."""


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
            raise SettingsError(
                "tree_lstm, `kind`", "`fold` or `tai`", f"{self.kind!r}", "Choose one of them."
            )
        if min(self.embedding, self.hidden) < 1 or not 0 < self.keep <= 1:
            raise SettingsError(
                "tree_lstm, sizes",
                "sizes of at least 1 and 0 < keep <= 1",
                f"{self}",
                "Change what is outside.",
            )

    @property
    def leaf_gates(self) -> int:
        """Gates of a leaf: i, j, o (`fold`; its forget gates would multiply zeros), or c, o (`tai`)."""
        return 3 if self.kind == "fold" else 2

    def init_leaf(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes the parameters of leaves.

        Args:
          key: A PRNG key.

        Returns:
          `w [E, gates * H]`, Glorot uniform, and `b`, zeros.
        """
        return _linear(key, self.embedding, self.leaf_gates * self.hidden)

    def init_branch(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes the parameters of branches.

        Args:
          key: A PRNG key.

        Returns:
          `w [2H, 5H]`, Glorot uniform, and `b`, zeros: gates i, j, f_left, f_right, o.
        """
        return _linear(key, 2 * self.hidden, 5 * self.hidden)

    def leaf(
        self,
        params: Any,
        x: jax.Array,
        key: Any = None,
    ) -> jax.Array:
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
            c, o = jnp.split(
                x @ params["w"] + params["b"],
                2,
                axis=-1,
            )
            return self._state(c, o)
        gates = dropout(in_key, x, self.keep) @ params["w"] + params["b"]
        i, j, o = jnp.split(gates, 3, axis=-1)
        return self._state(
            jax.nn.sigmoid(i) * dropout(key, jnp.tanh(j), self.keep),
            o,
        )

    def branch(
        self,
        params: Any,
        left: jax.Array,
        right: jax.Array,
        key: Any = None,
    ) -> jax.Array:
        """Computes the state of a node with two children.

        Args:
          params: As `init_branch` gives them.
          left: The state `[2H]` of the left child.
          right: The state `[2H]` of the right child.
          key: A PRNG key for dropout; None in inference.

        Returns:
          The state `[2H]`: `h` and `c`.
        """
        (h_l, c_l), (h_r, c_r) = (jnp.split(child, 2, axis=-1) for child in (left, right))
        gates = jnp.concatenate([h_l, h_r], axis=-1) @ params["w"] + params["b"]
        i, j, f_l, f_r, o = jnp.split(
            gates,
            5,
            axis=-1,
        )
        candidate = jnp.tanh(j)
        bias = 0.0
        if self.kind == "fold":
            candidate = dropout(key, candidate, self.keep)
            bias = 1.0
        kept = jax.nn.sigmoid(f_l + bias) * c_l + jax.nn.sigmoid(f_r + bias) * c_r
        return self._state(jax.nn.sigmoid(i) * candidate + kept, o)

    def classify(
        self,
        params: Any,
        state: jax.Array,
        key: Any = None,
    ) -> jax.Array:
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

    def init_classify(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes the parameters of the classifier.

        Args:
          key: A PRNG key.

        Returns:
          `w [H, 5]`, Glorot uniform, and `b`, zeros.
        """
        return _linear(key, self.hidden, N_CLASSES)

    def _state(
        self,
        c: jax.Array,
        o: jax.Array,
    ) -> jax.Array:
        return jnp.concatenate(
            [jax.nn.sigmoid(o) * jnp.tanh(c), c],
            axis=-1,
        )


def init(
    key: jax.Array,
    n_words: int,
    cells: Cells,
    vectors: Callable[[jax.Array], jax.Array] | Table | None = None,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      n_words: Words in the vocabulary.
      cells: Cells and sizes.
      vectors: From a PRNG key to the initial word vectors `[n_words, E]`, by default uniform within 0.05; or a table of them, in host memory
        and with an optimizer of their own.

    Returns:
      `embed`, `leaf`, `branch` and `classify`.

    Raises:
      SettingsError: If `n_words` is below 1, or the table has another shape.
    """
    if n_words < 1:
        raise SettingsError(
            "tree_lstm, `n_words`", "at least 1", f"{n_words}", "Give the vocabulary's size."
        )
    keys = jax.random.split(key, 4)
    if isinstance(vectors, Table):
        check_table("tree_lstm", vectors, n_words, cells.embedding)
        embed: Any = vectors
    else:
        embed = (vectors or uniform_table(n_words, cells.embedding))(keys[0])
    return {
        "embed": embed,
        "leaf": cells.init_leaf(keys[1]),
        "branch": cells.init_branch(keys[2]),
        "classify": cells.init_classify(keys[3]),
    }


def tree_lstm(
    cells: Cells,
    replicas: int = 1,
) -> Callable[[Any, Any], jax.Array]:
    """Makes the model, which classifies every node of a tree.

    Args:
      cells: Cells and sizes.
      replicas: The number of copies of `leaf` and of `branch`, each for some instances (figure 4b).

    Returns:
      A function of parameters and an instance to the summed cross entropy of all nodes, in nats; with the metrics `accuracy` (over all
      nodes) and `root_accuracy`, and the outputs `logits` and `root` (the root's state).
    """
    draws = cells.keep < 1
    in_cells = draws and cells.kind == "fold"

    def node(
        name: str,
        function: Callable[..., jax.Array],
    ) -> Callable[..., jax.Array]:
        if replicas == 1:
            return function
        return amp.node(name, replicas=replicas)(function)

    def model(p: Any, s: Any) -> jax.Array:
        tree = s["tree"]
        leaf = node(
            "leaf",
            lambda x: drawing(in_cells, cells.leaf, p["leaf"], x),
        )
        branch = node(
            "branch",
            lambda left, right: drawing(in_cells, cells.branch, p["branch"], left, right),
        )

        def score(
            state: jax.Array,
            value: Any,
            parent: jax.Array,
        ) -> jax.Array:
            logits = drawing(draws, cells.classify, p["classify"], state)
            amp.output("logits", logits)
            hit = (jnp.argmax(logits) == value["label"]).astype(jnp.float32)
            is_root = parent < 0
            amp.metric("accuracy", hit)
            amp.metric("root_accuracy", hit * is_root, is_root)
            return optax.softmax_cross_entropy_with_integer_labels(logits, value["label"])

        states, root = amp.fold_tree(
            lambda value: leaf(amp.look_up(p["embed"], value["word"])),
            lambda _, left, right: branch(left, right),
            tree,
            arity=2,
        )
        amp.output("root", root)
        return amp.sum(amp.map(score, states, tree.value, tree.parent))

    return model


def _linear(
    key: jax.Array,
    n_in: int,
    n_out: int,
) -> dict[str, jax.Array]:
    w = jax.nn.initializers.glorot_uniform()(
        key,
        (n_in, n_out),
        jnp.float32,
    )
    return {"w": w, "b": jnp.zeros(n_out, jnp.float32)}


def uniform_table(
    n_words: int,
    features: int,
) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a table of word vectors, uniform within 0.05.

    Args:
      n_words: Words.
      features: Features of a vector.

    Returns:
      From a PRNG key to `[n_words, features]`.
    """
    return lambda key: jax.random.uniform(
        key,
        (n_words, features),
        jnp.float32,
        -0.05,
        0.05,
    )
