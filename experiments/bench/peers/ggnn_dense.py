"""The gated graph network with dense propagation: a molecule's step is one product with a matrix of NH x NH (AMPNet, arXiv version).

The matrix holds, for atoms v and w, the sum of the edge maps of all edges from w to v. Molecules of a minibatch have numbers of atoms within one
of each other, to which they are padded, so hardly any of a matrix is padding; most of it is zero all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.peers.ggnn_batches import Batch, Layout, by_nodes, counts
from experiments.bench.peers.ggnn_jax import Model
from experiments.data.graphs import GraphInstances
from experiments.models.ggnn import GatedReadout, GatedUnit


def regression(
    params: Any,
    batch: Batch,
    steps: int,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """The summed loss of a batch's graphs, and their summed error.

    Args:
      params: As those of `experiments.models.ggnn`.
      batch: `x [b, N, F]`, `adjacency [b, n_kinds, N, N]` (from the last axis to the one before), `n [b]` atoms, `target [b]`.
      steps: Propagation steps.
      scale: The factor of the error.
    """
    x = batch["x"]
    adjacency = batch["adjacency"]
    hidden = params["update"]["candidate"]["b"].size
    maps = [params[f"edge{kind}"] for kind in range(adjacency.shape[1])]
    w, b = (jnp.stack([m[part] for m in maps]) for part in ("w", "b"))
    n_batch, n = x.shape[:2]
    matrix = jnp.einsum("bkvw,kij->bvjwi", adjacency, w).reshape(
        n_batch,
        n * hidden,
        n * hidden,
    )
    bias = jnp.einsum("bkv,kj->bvj", adjacency.sum(axis=3), b)
    h = jnp.pad(
        x,
        (
            (0, 0),
            (0, 0),
            (0, hidden - x.shape[2]),
        ),
    )
    for _ in range(steps):
        arrived = jnp.einsum("bpq,bq->bp", matrix, h.reshape(n_batch, -1)).reshape(h.shape) + bias
        h = GatedUnit(hidden)(params["update"], arrived, h)
    rows = GatedReadout(hidden, x.shape[2])(
        params["readout"],
        h,
        x,
    )
    there = jnp.arange(n) < batch["n"][:, None]
    predictions = jnp.where(there[..., None], rows, 0.0).sum(axis=1)
    difference = predictions[:, 0] - batch["target"]
    return 0.5 * (difference**2).sum(), scale * jnp.abs(difference).sum()


@dataclass(frozen=True)
class DenseLayout(Layout):
    """Molecules of like numbers of atoms, each with its adjacency; `sizes` holds the numbers of atoms that are compiled."""

    def joined(self, ids: np.ndarray) -> Batch:
        """The graphs `ids`, padded to `batch` graphs and to one of the numbers of atoms."""
        own = counts(self.data, ids)[:, 0]
        n = next(int(size) for size in self.sizes[:, 0] if size >= own.max(initial=0))
        return self._padded(ids, n)

    def empty(self) -> Iterator[Batch]:
        """A minibatch of each shape, without graphs: for compilation."""
        return (self._padded(np.arange(0), int(n)) for n in self.sizes[:, 0])

    def _padded(self, ids: np.ndarray, n: int) -> Batch:
        graphs = self.data.graphs
        features = self.data.nodes["x"]
        x = np.zeros(
            (self.batch, n, features.shape[1]),
            features.dtype,
        )
        adjacency = np.zeros(
            (self.batch, graphs.n_kinds, n, n),
            np.float32,
        )
        sizes = np.zeros(self.batch, np.int32)
        target = np.zeros(self.batch, np.float32)
        for row, graph in enumerate(self.data.ids[ids]):
            first = graphs.node_ptr[graph]
            end = graphs.node_ptr[graph + 1]
            edges = slice(graphs.out_ptr[first], graphs.out_ptr[end])
            x[row, : end - first] = features[first:end]
            sizes[row] = end - first
            target[row] = self.data.targets["target"][graph]
            np.add.at(
                adjacency[row],
                (
                    graphs.kinds[edges],
                    graphs.receivers[edges],
                    graphs.senders[edges],
                ),
                1,
            )
        return {"x": x, "adjacency": adjacency, "n": sizes, "target": target}


def dense(data: GraphInstances, batch: int) -> DenseLayout:
    """Molecules whose numbers of atoms are within one of each other, in dense matrices."""
    most = np.unique(counts(data, np.arange(len(data)))[:, 0] // 2) * 2 + 1
    return DenseLayout(
        data,
        batch,
        most[:, None],
        by_nodes(data, batch).groups,
    )


qm9 = partial(Model, "qm9", layout=dense, regress=regression, evaluated=20)
