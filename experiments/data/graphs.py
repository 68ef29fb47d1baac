"""Graphs whose edges have kinds, stored as columns, and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ampjax.errors import DataError, SettingsError
from ampjax.frontend.combinators.graph_combinators import Edges
from ampjax.frontend.combinators.structures import Ragged, Stacked
from ampjax.ir.instances import Messages, Topology
from ampjax.utils.row_ranges import ranges

ENCODINGS = ("collect", "flatmap")


@dataclass(frozen=True, eq=False)
class Graphs:
    """Directed graphs as columns; an undirected edge is two edges.

    A node has two numbers: one within its graph, from 0, and a global one, which is larger by `node_ptr[graph]`. Edges are sorted by sender,
    so those of one sender are neighbours.

    Args:
      node_ptr: `[n + 1]`: graph `i` has the nodes `node_ptr[i] ... node_ptr[i + 1] - 1`.
      out_ptr: `[nodes + 1]`: node `v` (global) sends the edges `out_ptr[v] ... out_ptr[v + 1] - 1`.
      receivers: `[edges]`: the receiver's number within its graph.
      kinds: `[edges]`, each in `[0, n_kinds)`.
      n_kinds: Kinds of edges.
    """

    node_ptr: np.ndarray
    out_ptr: np.ndarray
    receivers: np.ndarray
    kinds: np.ndarray
    n_kinds: int
    _topologies: dict[int, Topology] = field(
        default_factory=dict,
        init=False,
        repr=False,
    )

    @classmethod
    def from_edges(cls, node_ptr: Any, edges: Any, n_kinds: int) -> Graphs:
        """Makes graphs from edges in any order.

        Args:
          node_ptr: `[n + 1]`, as in the class.
          edges: `[edges, 4]`: each edge's graph, sender and receiver (numbers within the graph), and kind.
          n_kinds: Kinds of edges.

        Returns:
          The graphs, with edges sorted by sender.

        Raises:
          DataError: If an edge leaves its graph, or a kind is out of range.
        """
        node_ptr = np.asarray(node_ptr, np.int64)
        graph, senders, receivers, kinds = np.asarray(edges, np.int64).reshape(-1, 4).T
        sizes = np.diff(node_ptr)[graph]
        for name, column, top in (
            ("sender", senders, sizes),
            ("receiver", receivers, sizes),
            ("kind", kinds, n_kinds),
        ):
            wrong = np.flatnonzero((column < 0) | (column >= top))
            if len(wrong):
                bound = int(np.broadcast_to(top, column.shape)[wrong[0]])
                raise DataError(
                    f"edge {wrong[0]}, {name}",
                    f"a number in [0, {bound})",
                    f"{column[wrong[0]]}",
                    "Mend the edge.",
                )
        sender = node_ptr[graph] + senders
        order = np.argsort(sender, kind="stable")
        out_ptr = np.concatenate([[0], np.cumsum(np.bincount(sender, minlength=int(node_ptr[-1])))])
        return cls(node_ptr, out_ptr, receivers[order], kinds[order], n_kinds)

    @classmethod
    def joined(cls, one: Graphs, other: Graphs) -> Graphs:
        """Joins two collections: the graphs of the first come before those of the second.

        Args:
          one: The first.
          other: The second.

        Returns:
          All graphs.

        Raises:
          DataError: If they differ in their number of edge kinds.
        """
        if one.n_kinds != other.n_kinds:
            raise DataError(
                "Graphs.joined",
                f"{one.n_kinds} kinds of edges in both",
                f"{other.n_kinds}",
                "Number kinds alike.",
            )
        return cls(
            np.concatenate([one.node_ptr, one.node_ptr[-1] + other.node_ptr[1:]]),
            np.concatenate([one.out_ptr, one.out_ptr[-1] + other.out_ptr[1:]]),
            np.concatenate([one.receivers, other.receivers]),
            np.concatenate([one.kinds, other.kinds]),
            one.n_kinds,
        )

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    def __repr__(self) -> str:
        return f"Graphs({len(self)} graphs, {self.node_ptr[-1]} nodes, {len(self.kinds)} edges of {self.n_kinds} kinds)"

    @cached_property
    def sizes(self) -> np.ndarray:
        """`[nodes]`: the number of nodes in each node's graph."""
        sizes = np.diff(self.node_ptr)
        return np.repeat(sizes, sizes)

    @cached_property
    def senders(self) -> np.ndarray:
        """`[edges]`: each edge's sender, within its graph."""
        return np.repeat(
            np.arange(len(self.out_ptr) - 1) - self._first,
            np.diff(self.out_ptr),
        )

    @cached_property
    def out_degree(self) -> np.ndarray:
        """`[nodes]`: edges that each node sends."""
        return np.diff(self.out_ptr)

    @cached_property
    def in_degree(self) -> np.ndarray:
        """`[nodes]`: edges that each node receives."""
        return np.bincount(
            np.repeat(self._first, self.out_degree) + self.receivers,
            minlength=len(self._first),
        )

    @cached_property
    def _first(self) -> np.ndarray:
        """`[nodes]`: the global number of the first node of each node's graph."""
        return np.repeat(
            self.node_ptr[:-1],
            np.diff(self.node_ptr),
        )

    def topology(self, i: int) -> Topology:
        """Gives a graph as the maps of `distribute` and `collect`: one wire per edge kind.

        Args:
          i: The graph's number.

        Returns:
          The maps; the same object on each call.
        """
        if i not in self._topologies:
            first = self.node_ptr[i]
            end = self.node_ptr[i + 1]
            edges = slice(self.out_ptr[first], self.out_ptr[end])
            self._topologies[i] = Topology.from_edges(
                self.senders[edges],
                self.receivers[edges],
                self.kinds[edges],
                int(end - first),
                self.n_kinds,
            )
        return self._topologies[i]


@dataclass(frozen=True, eq=False)
class GraphInstances:
    """Instances of one graph each (`ampjax.ir.instances.Instances`), in one of two encodings.

    `collect` pumps a graph's nodes as one ragged message with the field `t` = 0, and its edges as the topology `edges`. `flatmap` pumps
    each node as a message of its own, with the fields `first` (the global number of its graph's first node), `node` (its number within
    the graph) and `t` = 0; the model looks edges up in `graphs`. Joins need `node` alone, which is small.

    Args:
      graphs: The graphs.
      ids: `[n]`: the graphs that belong to this data set.
      nodes: By pump, a row for each node of all graphs: `[nodes, *shape]`.
      targets: By pump, a row for each graph, without state fields: `[len(graphs), *shape]`.
      encoding: `collect` or `flatmap`.

    Raises:
      SettingsError: If the encoding is neither.
    """

    graphs: Graphs
    ids: np.ndarray
    nodes: Mapping[str, np.ndarray]
    targets: Mapping[str, np.ndarray] = field(default_factory=dict)
    encoding: str = "collect"

    def __post_init__(self) -> None:
        check_encoding("GraphInstances", self.encoding)

    def __len__(self) -> int:
        return len(self.ids)

    def plain(self) -> Stacked:
        """Gives the instances as columns of node rows, targets and `edges`, for models that are functions.

        Returns:
          The data set.
        """
        graphs = self.graphs
        ids = self.ids
        ends = graphs.out_ptr[graphs.node_ptr]
        sizes = np.diff(graphs.node_ptr)[ids]
        n_edges = np.diff(ends)[ids]
        node = ranges(graphs.node_ptr[ids], sizes)
        edge = ranges(ends[ids], n_edges)

        def ragged(column):
            return Ragged(column[edge].astype(np.int32), n_edges)

        edges = Edges(
            ragged(graphs.senders),
            ragged(graphs.receivers),
            ragged(graphs.kinds),
        )
        own = {}
        for name, rows in self.nodes.items():
            own[name] = Ragged(rows[node], sizes)
        return Stacked(
            {name: rows[ids] for name, rows in self.targets.items()} | own | {"edges": edges}
        )

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the instances `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        ids = self.ids[np.asarray(ids, np.int64)]
        first = self.graphs.node_ptr[ids]
        sizes = np.diff(self.graphs.node_ptr)[ids]
        each = np.arange(len(ids))
        graph = np.repeat(each, sizes)
        node = np.arange(len(graph)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        result = {}
        for name, rows in self.targets.items():
            result[name] = Messages(rows[ids], each)
        for name, rows in self.nodes.items():
            payload = rows[first[graph] + node]
            if self.encoding == "collect":
                result[name] = Messages(payload, each, {"t": 0}, sizes)
            else:
                result[name] = Messages(
                    payload, graph, {"first": first[graph], "node": node, "t": 0}
                )
        if self.encoding == "collect":
            result["edges"] = Messages(
                [self.graphs.topology(i) for i in ids.tolist()],
                each,
            )
        return result


def check_encoding(where: str, encoding: str) -> None:
    """Checks the name of an encoding.

    Args:
      where: What an error calls the caller.
      encoding: The name.

    Raises:
      SettingsError: If it is neither `collect` nor `flatmap`.
    """
    if encoding not in ENCODINGS:
        raise SettingsError(
            f"{where}, `encoding`", "`collect` or `flatmap`", f"{encoding!r}", "Choose one of them."
        )
