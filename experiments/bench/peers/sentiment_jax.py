"""The Tree-LSTM in plain JAX: a whole minibatch of trees in one `jax.jit`, level by level.

A node's level is its height. The branches of a batch, sorted by level, are cut into chunks of one width that never mix levels; a `jax.lax.scan` over
chunks gathers the children's states, computes the branch cell, and scatters. Chunks are filled up with a branch that nobody reads, and their
number is rounded up, so that few sizes are compiled: before the first pass, all those that some passes at random need.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data import sst
from experiments.models.tree_lstm import Cells, init
from experiments.sentiment import adagrad, cell_sizes


def levels(parents: np.ndarray) -> np.ndarray:
    """The height of each node of a tree `[n]`, from parents `[n]` (-1 at the root); children stand before parents.

    >>> levels(np.array([2, 2, 4, 4, -1])).tolist()
    [0, 0, 1, 0, 2]
    """
    height = np.zeros(len(parents), np.int64)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            height[parent] = max(height[parent], height[node] + 1)
    return height


def chunks(
    height: np.ndarray,
    width: int,
) -> list[np.ndarray]:
    """Branches `height > 0` in groups of at most `width` of one height, lowest first."""
    order = np.argsort(height, kind="stable")
    order = order[height[order] > 0]
    parts = np.split(
        order,
        np.flatnonzero(np.diff(height[order])) + 1,
    )
    result = []
    for part in parts:
        for i in range(0, len(part), width):
            result.append(part[i : i + width])
    return result


class Model:
    """Trains on minibatches of trees, an update for each from the sum over their nodes, as ours.

    Args:
      cell: `fold` or `tai`.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
      batch: Trees in a minibatch.
      width: Branches in a chunk.
      n_train: Training trees in a pass; 0 takes all.
      learning_rate: Adagrad's; word vectors take plain steps of twice that.
      synthetic: Generated trees.
      data_dir: Folder with the treebank.
      rehearsals: Passes at random whose shapes are compiled before the first one.
      seed: Of parameters, dropout and order.
    """

    def __init__(
        self,
        *,
        cell: str = "tai",
        embedding: int = 300,
        hidden: int | None = None,
        batch: int = 25,
        width: int = 32,
        n_train: int = 0,
        learning_rate: float = 0.05,
        synthetic: bool = False,
        data_dir: str | None = None,
        rehearsals: int = 5,
        seed: int = 0,
    ):
        self._train, self._valid = sst.synthetic() if synthetic else sst.load(data_dir)
        self._n_train = n_train or len(self._train)
        default, keep = cell_sizes(cell)
        self._cells = Cells(cell, embedding, hidden or default, keep)
        self._batch = batch
        self._width = width
        params: Any = init(
            jax.random.key(seed),
            len(self._train.vocabulary),
            self._cells,
        )
        self._table = params.pop("embed")
        self._params = params
        self._tx = adagrad(learning_rate)
        self._rate = 2 * learning_rate
        self._state = self._tx.init(params)
        self._rng = np.random.default_rng(seed)
        self._key = jax.random.key(seed)
        self.n_updates = 0
        self._rehearse(rehearsals)

    def train(self) -> int:
        """A pass over training trees in random order."""
        order = self._rng.permutation(len(self._train))[: self._n_train]
        self.n_updates = 0
        for arrays in self._batches(self._train, order):
            self._key, key = jax.random.split(self._key)
            self._table, self._params, self._state = self._step(
                self._table, self._params, self._state, key, *arrays
            )
            self.n_updates += 1
        jax.block_until_ready(self._params)
        return len(order)

    def infer(self) -> int:
        """A pass over the validation trees."""
        self.evaluate()
        return len(self._valid)

    def evaluate(self) -> float:
        """The accuracy over all nodes of the validation trees."""
        every = np.arange(len(self._valid))
        hits = []
        for arrays in self._batches(self._valid, every):
            hits.append(self._hits(self._table, self._params, *arrays))
        return float(sum(np.asarray(h) for h in hits)) / self._valid.n_nodes

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return self.n_updates

    def summed_loss(
        self, rows: jax.Array, params: Any, key: Any, arrays: Any
    ) -> tuple[jax.Array, jax.Array]:
        """The summed cross entropy of a batch's nodes, and hits; `rows` are the leaves' word vectors."""
        cells = self._cells
        leaves, own, children, labels = arrays
        if key is None:
            keys = [None] * 3
        else:
            keys = list(jax.random.split(key, 3))
        states = (
            jnp.zeros((len(labels), 2 * cells.hidden))
            .at[leaves]
            .set(cells.leaf(params["leaf"], rows, keys[0]))
        )

        def chunk(
            states: jax.Array,
            indices: Any,
        ) -> tuple[jax.Array, None]:
            number, own, (left, right) = indices
            if keys[1] is None:
                key = None
            else:
                key = jax.random.fold_in(keys[1], number)
            new = cells.branch(
                params["branch"],
                states[left],
                states[right],
                key,
            )
            return states.at[own].set(new), None

        states, _ = jax.lax.scan(
            chunk,
            states,
            (jnp.arange(len(own)), own, children),
        )
        logits = cells.classify(params["classify"], states, keys[2])
        real = labels >= 0
        each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        return jnp.where(real, each, 0).sum(), jnp.sum(
            real & (jnp.argmax(logits, axis=-1) == labels)
        )

    def _rehearse(self, n: int) -> None:
        """Runs each shape once, on copies."""
        rng = np.random.default_rng(0)
        seen = set()
        for _ in range(n):
            for arrays in self._batches(
                self._train, rng.permutation(len(self._train))[: self._n_train]
            ):
                if (shapes := tuple(a.shape for a in arrays)) not in seen:
                    seen.add(shapes)
                    self._step(
                        *jax.tree.map(jnp.copy, (self._table, self._params, self._state)),
                        self._key,
                        *arrays,
                    )

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2, 3))
    def _step(
        self,
        table: Any,
        params: Any,
        state: Any,
        key: Any,
        words: Any,
        *arrays: Any,
    ) -> Any:
        (row_grads, grads), _ = jax.grad(self.summed_loss, (0, 1), has_aux=True)(
            table[words], params, key, arrays
        )
        updates, state = self._tx.update(grads, state, params)
        return (
            table.at[words].add(-self._rate * row_grads),
            optax.apply_updates(params, updates),
            state,
        )

    @functools.partial(jax.jit, static_argnums=0)
    def _hits(
        self,
        table: Any,
        params: Any,
        words: Any,
        *arrays: Any,
    ) -> jax.Array:
        return self.summed_loss(table[words], params, None, arrays)[1]

    def _batches(self, data: sst.Trees, order: np.ndarray) -> Any:
        """For each minibatch: words `[l]`, leaves' nodes `[l]`, branches' nodes `[c, width]`, their children `[c, 2, width]`, labels `[n]`."""
        for start in range(0, len(order), self._batch):
            yield batch_arrays(data, order[start : start + self._batch], self._width)


def batch_arrays(
    data: sst.Trees,
    ids: np.ndarray,
    width: int,
) -> tuple[np.ndarray, ...]:
    """A minibatch's arrays, as `Model` takes them; the last node is nobody's, and padding belongs to it. Labels of padding are -1."""
    first = data.ptr[ids]
    sizes = np.diff(data.ptr)[ids]
    offset = np.repeat(np.cumsum(sizes) - sizes, sizes)
    nodes = np.concatenate([np.arange(f, f + n) for f, n in zip(first, sizes, strict=True)])
    height = np.concatenate(
        [levels(data.parents[f : f + n]) for f, n in zip(first, sizes, strict=True)]
    )
    parents = np.where(
        data.parents[nodes] >= 0,
        data.parents[nodes] + offset,
        -1,
    )
    n = _up(len(nodes) + 1, 256)
    children = np.full((2, n), n - 1)
    has = np.flatnonzero(parents >= 0)
    children[data.sides[nodes][has], parents[has]] = has
    groups = chunks(height, width)
    own = np.full(
        (_up(len(groups), 8), width),
        n - 1,
    )
    for row, group in zip(own, groups, strict=False):
        row[: len(group)] = group
    leaves = np.flatnonzero(height == 0)
    padded = np.full(_up(len(leaves), 128), n - 1)
    padded[: len(leaves)] = leaves
    words = np.zeros(len(padded), np.int64)
    words[: len(leaves)] = data.words[nodes[leaves]]
    labels = np.full(n, -1)
    labels[: len(nodes)] = data.labels[nodes]
    arrays = words, padded, own, children[:, own].swapaxes(0, 1), labels
    return tuple(a.astype(np.int32) for a in arrays)


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
