"""The floor of the Tree-LSTM: its matrix products alone, at the rate of the branch product of 256 rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import sst
from experiments.models.tree_lstm import Cells
from experiments.sentiment import cell_sizes

ROWS = 256


class Floor:
    """Does as many flops as training takes, in branch products and nothing else; learns nothing.

    Args:
      cell: `fold` or `tai`.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
      n_train: Training trees in a pass; 0 takes all.
      synthetic: Generated trees.
      data_dir: Folder with the treebank.
    """

    def __init__(
        self,
        cell: str = "tai",
        embedding: int = 300,
        hidden: int | None = None,
        n_train: int = 0,
        synthetic: bool = False,
        data_dir: str | None = None,
    ):
        self._train, self._valid = sst.synthetic() if synthetic else sst.load(data_dir)
        default, keep = cell_sizes(cell)
        self._cells = Cells(cell, embedding, hidden or default, keep)
        self._n = n_train or len(self._train)
        key = jax.random.key(0)
        n = self._cells.hidden
        self._rows = jax.random.normal(key, (ROWS, 2 * n))
        self._w = jax.random.normal(
            key,
            (2 * n, 5 * n),
        )
        jax.block_until_ready(product(self._rows, self._w))

    def train(self) -> int:
        """As many products as the training trees' steps have flops: three times those of the way forth."""
        return self._work(
            3 * self._n * tree_flops(self._cells, self._train),
            self._n,
        )

    def infer(self) -> int:
        """As many products as the validation trees' way forth has flops."""
        return self._work(
            len(self._valid) * tree_flops(self._cells, self._valid),
            len(self._valid),
        )

    def evaluate(self) -> float:
        """No accuracy."""
        return 0.0

    def updates(self) -> float:
        """No step."""
        return 0.0

    def _work(self, flops: float, n_trees: int) -> int:
        for _ in range(round(flops / (2 * ROWS * self._w.size))):
            result: Any = product(self._rows, self._w)
        jax.block_until_ready(result)
        return n_trees


def tree_flops(cells: Cells, data: sst.Trees) -> float:
    """Floating-point operations of an average tree's way forth, in matrix products."""
    leaf = 2 * cells.embedding * cells.leaf_gates * cells.hidden
    branch = 2 * 2 * cells.hidden * 5 * cells.hidden
    classes = 2 * cells.hidden * sst.N_CLASSES
    n_leaves = np.count_nonzero(data.words >= 0)
    return (n_leaves * leaf + (data.n_nodes - n_leaves) * branch + data.n_nodes * classes) / len(
        data
    )


@jax.jit
def product(rows: jax.Array, w: jax.Array) -> jax.Array:
    """The product of `ROWS` rows `[ROWS, in]` with a matrix `[in, out]`."""
    return jnp.dot(rows, w)
