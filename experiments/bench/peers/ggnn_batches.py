"""Minibatches of whole graphs side by side: which graphs go together, and to what they are padded.

Edges stand in the order of their kinds. Nodes, and edges of each kind, are padded to one of a few sizes, so that few shapes are compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from experiments import babi15, qm9
from experiments.data.graphs import GraphInstances, Graphs

Batch = dict[str, Any]
"""`x [n, F]`; `graph [n]`, each node's (beyond all graphs where padded); `senders`, for each kind `[e]`, and all their `receivers [sum e]`
(beyond all nodes where padded); and `target [b]`, or `answer [n]`."""


@dataclass(frozen=True)
class Layout:
    """How a data set's graphs are laid out in minibatches.

    Args:
      data: The graphs.
      batch: Graphs in a minibatch at most.
      sizes: `[shapes, 1 + n_kinds]`: nodes, and edges of each kind; a minibatch takes the first of these that has room.
      groups: From graphs in an order to those of each minibatch.
    """

    data: GraphInstances
    batch: int
    sizes: np.ndarray
    groups: Callable[[np.ndarray], Iterator[np.ndarray]]

    def joined(self, ids: np.ndarray) -> Batch:
        """The graphs `ids`, padded."""
        return joined(self.data, ids, self.batch, self.sizes)

    def empty(self) -> Iterator[Batch]:
        """A minibatch of each shape, without graphs: for compilation."""
        return (joined(self.data, np.arange(0), self.batch, size[None]) for size in self.sizes)


def examples(
    experiment: str,
    options: Any,
) -> tuple[Any, GraphInstances, float]:
    """An experiment's graphs for training (`babi15`: perhaps `Fresh` ones) and for validation, of seed 0, and the factor of `qm9`'s error.

    Args:
      experiment: `qm9` or `babi15`.
      options: Its options.
    """
    if experiment == "qm9":
        split = qm9.data(options)(0)
        return split.train, split.valid, qm9.scale(split)
    _, train, valid = babi15.data(options, 0)
    return train, cast(GraphInstances, valid), 1.0


def as_they_come(data: GraphInstances, batch: int) -> Layout:
    """Graphs in the given order; two shapes: what `batch` graphs hardly ever exceed, and what they never do."""
    return Layout(
        data,
        batch,
        sizes(counts(data, np.arange(len(data))), batch),
        lambda order: _chunks(order, batch),
    )


def by_nodes(data: GraphInstances, batch: int) -> Layout:
    """Graphs together whose numbers of nodes are within one of each other (AMPNet, B.4); two shapes for each such pair of numbers."""
    each = counts(data, np.arange(len(data)))
    pair = each[:, 0] // 2
    shapes = np.concatenate([sizes(each[pair == p], batch) for p in np.unique(pair)])

    def groups(order: np.ndarray) -> Iterator[np.ndarray]:
        places = []
        for p in np.unique(pair[order]):
            places.append(np.flatnonzero(pair[order] == p))
        parts = []
        for own in places:
            for part in _chunks(own, batch):
                parts.append(part)
        return (
            order[part] for part in sorted(parts, key=lambda part: part[0])
        )  # random, if the order is

    return Layout(data, batch, shapes, groups)


def one_shape(data: GraphInstances, batch: int) -> Layout:
    """One shape, with room for `batch` graphs at random more often than not: graphs go in while there is room (jraph's way)."""
    each = counts(data, np.arange(len(data)))
    room = np.ceil(batch * each.mean(axis=0) + np.sqrt(batch) * each.std(axis=0)).astype(int)
    room = np.maximum(
        room,
        each.max(axis=0, initial=1),
    )

    def groups(order: np.ndarray) -> Iterator[np.ndarray]:
        first = 0
        used = np.zeros_like(room)
        for i, own in enumerate(each[order]):
            if i - first == batch or (used + own > room).any():
                yield order[first:i]
                first = i
                used = np.zeros_like(room)
            used = used + own
        yield order[first:]

    return Layout(data, batch, room[None], groups)


def counts(data: GraphInstances, ids: np.ndarray) -> np.ndarray:
    """`[n, 1 + n_kinds]`: nodes, and edges of each kind, of each of the graphs `ids`."""
    graphs = data.graphs
    ids = data.ids[ids]
    edges, graph = _edges(graphs, ids)
    flat = np.bincount(
        graph * graphs.n_kinds + graphs.kinds[edges],
        minlength=len(ids) * graphs.n_kinds,
    )
    return np.column_stack([np.diff(graphs.node_ptr)[ids], flat.reshape(-1, graphs.n_kinds)])


def sizes(each: np.ndarray, batch: int) -> np.ndarray:
    """`[2, 1 + n_kinds]`: nodes and edges that `batch` graphs at random hardly ever exceed, and that they never do; `each` are their counts."""
    most = np.sort(each, axis=0)[-batch:].sum(axis=0)
    usual = np.ceil(batch * each.mean(axis=0) + 3 * np.sqrt(batch) * each.std(axis=0)).astype(int)
    return np.stack([np.minimum(usual, most), most])


def joined(
    data: GraphInstances,
    ids: np.ndarray,
    batch: int,
    sizes: np.ndarray,
) -> Batch:
    """The graphs `ids` side by side, padded to `batch` graphs and to the first of `sizes` that has room."""
    graphs = data.graphs
    ids = data.ids[ids]
    n = np.diff(graphs.node_ptr)[ids]
    first = np.cumsum(n) - n
    nodes = _ranges(graphs.node_ptr[ids], n)
    edges, graph = _edges(graphs, ids)
    kinds = graphs.kinds[edges]
    n_edges = np.bincount(kinds, minlength=graphs.n_kinds)
    n_nodes, *slots = next(
        size for size in sizes.tolist() if (size >= np.array([len(nodes), *n_edges])).all()
    )
    order = np.argsort(kinds, kind="stable")
    places = _ranges(np.cumsum(slots) - slots, n_edges)
    senders = np.zeros(sum(slots), np.int32)
    receivers = np.full(sum(slots), n_nodes, np.int32)
    senders[places], receivers[places] = (
        (ends[edges] + first[graph])[order] for ends in (graphs.senders, graphs.receivers)
    )
    owner = np.full(n_nodes, batch, np.int32)
    owner[: len(nodes)] = np.repeat(
        np.arange(len(ids)),
        n,
    )
    rows = {}
    for name, values in data.nodes.items():
        rows[name] = _filled(values[nodes], n_nodes)
    targets = {}
    for name, values in data.targets.items():
        targets[name] = _filled(values[ids], batch)
    return {
        **rows,
        **targets,
        "graph": owner,
        "senders": np.split(senders, np.cumsum(slots)[:-1]),
        "receivers": receivers,
    }


def _chunks(
    order: Sequence[int] | np.ndarray,
    batch: int,
) -> Iterator[Any]:
    """An order in pieces of `batch`."""
    return (order[i : i + batch] for i in range(0, len(order), batch))


def _edges(
    graphs: Graphs,
    ids: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The edges that the graphs `ids` send, and for each the place of its graph among `ids`."""
    first = graphs.out_ptr[graphs.node_ptr[ids]]
    end = graphs.out_ptr[graphs.node_ptr[ids + 1]]
    return _ranges(first, end - first), np.repeat(np.arange(len(ids)), end - first)


def _ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`first[i] ... first[i] + sizes[i] - 1` for each `i`, one after the other."""
    return np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)


def _filled(rows: np.ndarray, n: int) -> np.ndarray:
    """`rows` and zeros, `n` together."""
    return np.concatenate([rows, np.zeros((n - len(rows), *rows.shape[1:]), rows.dtype)])
