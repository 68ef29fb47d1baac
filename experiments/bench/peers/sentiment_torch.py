"""The Tree-LSTM in PyTorch: minibatches of trees level by level, by hand, and tree by tree.

A level holds the branches of one height. States that wait for their parent stand side by side; at each level one gather puts the children first,
left ones before right ones, and the cell's results take their place. So every state is moved only while somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from experiments.bench.peers.sentiment_jax import levels as heights
from experiments.bench.peers.torch_program import Parts, Tensor, Torch, linear, tensors
from experiments.data import sst
from experiments.models.tree_lstm import Cells, init
from experiments.sentiment import cell_sizes


@dataclass(frozen=True)
class TorchCells:
    """The cells of `experiments.models.tree_lstm` in PyTorch, on rows of `h` and of `c`.

    Args:
      cells: Kind, sizes and dropout.
      training: Whether dropout acts.
    """

    cells: Cells
    training: bool = True

    def leaf(
        self,
        params: Any,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Word vectors `[n, E]` to `h` and `c` `[n, H]`."""
        if self.cells.kind == "tai":
            c, o = linear(params, x).chunk(2, 1)
        else:
            i, j, o = linear(params, self.dropout(x)).chunk(
                3,
                1,
            )
            c = torch.sigmoid(i) * self.dropout(torch.tanh(j))
        return torch.sigmoid(o) * torch.tanh(c), c

    def branch(
        self, params: Any, h: Tensor, c_left: Tensor, c_right: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`h` of both children side by side `[n, 2H]` and their `c` `[n, H]` to the parents' `h` and `c`."""
        fold = self.cells.kind == "fold"
        i, j, left, right, o = linear(params, h).chunk(
            5,
            1,
        )
        if fold:
            j = self.dropout(torch.tanh(j))
        else:
            j = torch.tanh(j)
        left, right = (torch.sigmoid(f + 1 if fold else f) for f in (left, right))
        c = torch.sigmoid(i) * j + left * c_left + right * c_right
        return torch.sigmoid(o) * torch.tanh(c), c

    def dropout(self, x: Tensor) -> Tensor:
        """Inverted dropout."""
        return F.dropout(x, 1 - self.cells.keep, self.training)


@dataclass(frozen=True)
class Batch:
    """Trees that are laid out.

    Args:
      words: `[leaves]`, by tree.
      labels: `[nodes]`: leaves, then branches, level by level.
      moves: For each level, which waiting states go first (left children, right children), and the others; and how many pairs.
    """

    words: Tensor
    labels: Tensor
    moves: Sequence[tuple[Tensor, int]]


def lay_out(data: sst.Trees, ids: np.ndarray) -> Batch:
    """The trees `ids`, level by level."""
    first = data.ptr[ids]
    sizes = np.diff(data.ptr)[ids]
    nodes = np.concatenate([np.arange(f, f + n) for f, n in zip(first, sizes, strict=True)])
    height = np.concatenate(
        [heights(data.parents[f : f + n]) for f, n in zip(first, sizes, strict=True)]
    )
    offset = np.repeat(np.cumsum(sizes) - sizes, sizes)
    children = np.zeros((2, len(nodes)), np.int64)
    has = np.flatnonzero(data.parents[nodes] >= 0)
    children[data.sides[nodes][has], (data.parents[nodes] + offset)[has]] = has
    order = [np.flatnonzero(height == 0)]
    waiting = np.flatnonzero(height == 0)
    moves = []
    place = np.zeros(len(nodes), np.int64)
    for level in range(1, height.max() + 1):
        own = np.flatnonzero(height == level)
        place[waiting] = np.arange(len(waiting))
        taken = place[children[:, own].reshape(-1)]
        rest = np.delete(np.arange(len(waiting)), taken)
        moves.append((torch.from_numpy(np.concatenate([taken, rest])), len(own)))
        waiting = np.concatenate([waiting[rest], own])
        order.append(own)
    labels = data.labels[nodes[np.concatenate(order)]]
    leaves = nodes[order[0]]
    return Batch(
        torch.as_tensor(data.words[leaves]),
        torch.as_tensor(labels).long(),
        moves,
    )


def by_levels(
    branch: Any,
    cells: TorchCells,
    params: Any,
    batch: Batch,
) -> Tensor:
    """`h [nodes, H]`, in the order of the labels; `branch` is the cell, perhaps compiled."""
    h, c = cells.leaf(
        params["leaf"],
        F.embedding(batch.words, params["embed"], sparse=True),
    )
    every = [h]
    waiting = torch.cat([h, c], 1)
    n_hidden = h.shape[1]
    for move, n in batch.moves:
        left, right, rest = waiting[move].split([n, n, len(move) - 2 * n])
        (h_left, c_left), (h_right, c_right) = (child.split(n_hidden, 1) for child in (left, right))
        h, c = branch(
            cells,
            params["branch"],
            torch.cat([h_left, h_right], 1),
            c_left,
            c_right,
        )
        every.append(h)
        waiting = torch.cat([rest, torch.cat([h, c], 1)])
    return torch.cat(every)


Tree = tuple[sst.Trees, int]
"""Trees, and the number of one of them."""


def by_nodes(
    cells: TorchCells,
    params: Any,
    trees: Sequence[Tree],
) -> Tensor:
    """`h [nodes, H]`, a node at a time, tree after tree."""
    every: list[Tensor] = []
    for data, tree in trees:
        nodes = range(data.ptr[tree], data.ptr[tree + 1])
        waiting: list[list[Any]] = [[None, None] for _ in nodes]
        for node, children in zip(nodes, waiting, strict=True):
            if data.words[node] >= 0:
                word = torch.tensor([data.words[node]])
                h, c = cells.leaf(
                    params["leaf"],
                    F.embedding(word, params["embed"], sparse=True),
                )
            else:
                (h_left, c_left), (h_right, c_right) = children
                h, c = cells.branch(
                    params["branch"],
                    torch.cat([h_left, h_right], 1),
                    c_left,
                    c_right,
                )
            every.append(h)
            if data.parents[node] >= 0:
                waiting[data.parents[node]][data.sides[node]] = h, c
    return torch.cat(every)


def loss(
    cells: TorchCells,
    params: Any,
    h: Tensor,
    labels: Tensor,
) -> Tensor:
    """The summed cross entropy of all nodes."""
    return F.cross_entropy(
        linear(params["classify"], cells.dropout(h)),
        labels,
        reduction="sum",
    )


def hits(
    cells: TorchCells,
    params: Any,
    h: Tensor,
    labels: Tensor,
) -> Tensor:
    """Nodes with the right class."""
    return (linear(params["classify"], h).argmax(1) == labels).sum()


def labels_of(trees: Sequence[Tree]) -> Tensor:
    """The labels of trees' nodes, one after the other."""
    return torch.as_tensor(
        np.concatenate([d.labels[d.ptr[i] : d.ptr[i + 1]] for d, i in trees])
    ).long()


def program(
    states: Callable[..., Tensor],
    lay_out: Callable[[sst.Trees, np.ndarray], tuple[Any, Tensor]],
    *,
    cell: str = "tai",
    embedding: int = 300,
    hidden: int | None = None,
    batch: int = 25,
    n_train: int = 0,
    learning_rate: float = 0.05,
    synthetic: bool = False,
    data_dir: str | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> Torch:
    """Trains on minibatches of trees, an update for each from the sum over their nodes, as ours; the arguments are those of the peer in JAX.

    Args:
      states: From cells, parameters and what is laid out to `h` of all nodes.
      lay_out: From trees and numbers to what `states` takes, and the nodes' labels.
      cell: `fold` or `tai`.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
      batch: Trees in a minibatch.
      n_train: Training trees in a pass; 0 takes all.
      learning_rate: Adagrad's; word vectors take plain steps of twice that.
      synthetic: Generated trees.
      data_dir: Folder with the treebank.
      seed: Of parameters, dropout and order.
      threads: Of PyTorch.
    """
    train, valid = sst.synthetic() if synthetic else sst.load(data_dir)
    default, keep = cell_sizes(cell)
    cells = Cells(cell, embedding, hidden or default, keep)
    params = tensors(init(jax.random.key(seed), len(train.vocabulary), cells))
    n = n_train or len(train)
    own = TorchCells(cells)
    still = TorchCells(cells, training=False)

    def minibatches(
        data: sst.Trees,
        order: np.ndarray,
    ) -> Iterator[Any]:
        return (lay_out(data, order[i : i + batch]) for i in range(0, len(order), batch))

    dense = []
    for name, tree in params.items():
        if name != "embed":
            for leaf in jax.tree.leaves(tree):
                dense.append(leaf)
    parts = Parts(
        lambda b: loss(
            own,
            params,
            states(own, params, b[0]),
            b[1],
        ),
        lambda b: hits(
            still,
            params,
            states(still, params, b[0]),
            b[1],
        ),
        [
            torch.optim.Adagrad(dense, learning_rate, initial_accumulator_value=0.1),
            torch.optim.SGD([params["embed"]], 2 * learning_rate),
        ],
        lambda rng: minibatches(train, rng.permutation(len(train))[:n]),
        lambda: minibatches(valid, np.arange(len(valid))),
        n,
        len(valid),
        valid.n_nodes,
    )
    return Torch(parts, seed, threads)


def levels(branch: Any = TorchCells.branch, **arguments: Any) -> Torch:
    """Level by level."""

    def pair(
        data: sst.Trees,
        ids: np.ndarray,
    ) -> tuple[Batch, Tensor]:
        batch = lay_out(data, ids)
        return batch, batch.labels

    return program(partial(by_levels, branch), pair, **arguments)


def compiled(**arguments: Any) -> Torch:
    """Level by level, the branch cell through `torch.compile` for any number of rows."""
    return levels(torch.compile(TorchCells.branch, dynamic=True), **arguments)


def eager(**arguments: Any) -> Torch:
    """A node at a time, on one thread, which suits small operations best."""

    def pair(
        data: sst.Trees,
        ids: np.ndarray,
    ) -> tuple[list[Tree], Tensor]:
        trees = [(data, int(i)) for i in ids]
        return trees, labels_of(trees)

    return program(by_nodes, pair, threads=1, **arguments)
