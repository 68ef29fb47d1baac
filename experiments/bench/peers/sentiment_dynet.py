"""The Tree-LSTM in DyNet with automatic batching (Neubig et al. 2017): node by node, as DyNet's users write it.

DyNet's releases stop before today's Pythons, so this runs only where somebody has built it from source.
"""

from __future__ import annotations

from typing import Any

import dynet_config  # pyright: ignore[reportMissingImports]
import jax
import numpy as np

dynet_config.set(autobatch=True, mem="1024", random_seed=1)
import dynet as dy  # noqa: E402  # pyright: ignore[reportMissingImports]

from experiments.data import sst  # noqa: E402
from experiments.models.tree_lstm import Cells, init  # noqa: E402
from experiments.sentiment import cell_sizes  # noqa: E402


class Model:
    """Trains on minibatches of trees, an update for each from the sum over their nodes, as ours; the cell is `tai`'s.

    Args:
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
      batch: Trees in a minibatch.
      n_train: Training trees in a pass; 0 takes all.
      learning_rate: Adagrad's; word vectors take plain steps of twice that.
      synthetic: Generated trees.
      data_dir: Folder with the treebank.
      seed: Of parameters and order.
      cell: `tai`; there is no other here.
    """

    def __init__(
        self,
        *,
        embedding: int = 300,
        hidden: int | None = None,
        batch: int = 25,
        n_train: int = 0,
        learning_rate: float = 0.05,
        synthetic: bool = False,
        data_dir: str | None = None,
        seed: int = 0,
        cell: str = "tai",
    ):
        self._train, self._valid = sst.synthetic() if synthetic else sst.load(data_dir)
        default, self._keep = cell_sizes(cell)
        self._n = n_train or len(self._train)
        self._batch = batch
        self._hidden = hidden or default
        cells = Cells(cell, embedding, self._hidden, self._keep)
        start = init(
            jax.random.key(seed),
            len(self._train.vocabulary),
            cells,
        )
        words = dy.ParameterCollection()
        dense = dy.ParameterCollection()
        self._table = words.lookup_parameters_from_numpy(np.asarray(start["embed"]))
        params = {}
        for name, p in start.items():
            if name != "embed":
                params[name] = (
                    dense.parameters_from_numpy(np.asarray(p["b"])),
                    dense.parameters_from_numpy(np.asarray(p["w"]).T),
                )
        self._params = params
        self._trainers = (
            dy.AdagradTrainer(dense, learning_rate),
            dy.SimpleSGDTrainer(words, 2 * learning_rate),
        )
        self._rng = np.random.default_rng(seed)
        self._updates = 0

    def train(self) -> int:
        """A pass over training trees in random order."""
        order = self._rng.permutation(len(self._train))[: self._n]
        self._updates = 0
        for first in range(0, self._n, self._batch):
            dy.renew_cg()
            ids = order[first : first + self._batch]
            losses = []
            for i in ids:
                for z, y in self._nodes(self._train, int(i), True):
                    losses.append(dy.pickneglogsoftmax(z, y))
            loss = dy.esum(losses)
            loss.value()
            loss.backward()
            for trainer in self._trainers:
                trainer.update()
            self._updates += 1
        return self._n

    def infer(self) -> int:
        """A pass over the validation trees."""
        self.evaluate()
        return len(self._valid)

    def evaluate(self) -> float:
        """The accuracy over all nodes of the validation trees."""
        hits = 0
        for first in range(0, len(self._valid), self._batch):
            dy.renew_cg()
            ids = range(
                first,
                min(first + self._batch, len(self._valid)),
            )
            pairs = []
            for i in ids:
                for pair in self._nodes(self._valid, i, False):
                    pairs.append(pair)
            dy.forward([z for z, _ in pairs])
            hits += sum(int(np.argmax(z.npvalue()) == y) for z, y in pairs)
        return hits / self._valid.n_nodes

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return self._updates

    def _nodes(
        self,
        data: sst.Trees,
        tree: int,
        training: bool,
    ) -> list[tuple[Any, int]]:
        """Logits and label of each node of a tree."""
        nodes = range(data.ptr[tree], data.ptr[tree + 1])
        pairs = []
        waiting: list[list[Any]] = [[None, None] for _ in nodes]
        for node, children in zip(nodes, waiting, strict=True):
            word = int(data.words[node])
            if word >= 0:
                h, c = self._leaf(self._table[word])
            else:
                h, c = self._branch(*children)
            z = self._linear(
                "classify",
                dy.dropout(h, 1 - self._keep) if training else h,
            )
            pairs.append((z, int(data.labels[node])))
            if data.parents[node] >= 0:
                waiting[data.parents[node]][data.sides[node]] = h, c
        return pairs

    def _leaf(self, x: Any) -> tuple[Any, Any]:
        c, o = self._gates("leaf", x, 2)
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def _branch(
        self,
        left: tuple[Any, Any],
        right: tuple[Any, Any],
    ) -> tuple[Any, Any]:
        h_left, c_left = left
        h_right, c_right = right
        i, j, f_left, f_right, o = self._gates(
            "branch",
            dy.concatenate([h_left, h_right]),
            5,
        )
        kept = [dy.cmult(dy.logistic(f), c) for f, c in ((f_left, c_left), (f_right, c_right))]
        c = dy.esum([dy.cmult(dy.logistic(i), dy.tanh(j)), *kept])
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def _gates(
        self,
        name: str,
        x: Any,
        n: int,
    ) -> list[Any]:
        z = self._linear(name, x)
        h = self._hidden
        result = []
        for k in range(n):
            result.append(dy.pick_range(z, k * h, (k + 1) * h))
        return result

    def _linear(self, name: str, x: Any) -> Any:
        return dy.affine_transform([*self._params[name], x])
