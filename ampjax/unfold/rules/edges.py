"""The edges of a dispatch: where its rows are sent and added up, by the topologies of its instances.

A topology is indexed once, however often its instance comes by; a dispatch of instances that were together before finds its edges ready.
All edges of a type that leave the same row carry the same, unless bodies on them are random: it is computed once for them, as one *sent* row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import EdgeList, Topology
from ampjax.plan.stages import Stage
from ampjax.unfold.rules.routes import find_topology

REMEMBERED_DISPATCHES = 8
"""Dispatches whose edges are remembered, for each stage."""


class SentRows(NamedTuple):
    """The rows that travel over some edges, type by type: a row for each type and sender, or for each edge where bodies on its type are random.

    Args:
      senders: `[sent]`: the row of the dispatch's input that each is made of.
      totals: `[edge types]`: how many there are of each type.
      of_edge: `[edges]`: the place of what each edge carries.
    """

    senders: np.ndarray
    totals: np.ndarray
    of_edge: np.ndarray


@dataclass(frozen=True, eq=False)
class DispatchEdges:
    """The edges of some messages, the first type's edges before the second's, and so on.

    Args:
      senders: `[edges]`: rows of the dispatch's input.
      receivers: `[edges]`: rows of its output.
      counts: `[messages, edge types]`: how many each message has.
      n_rows: `[messages]`: rows that are collected for each.
      random: Whether a body on an edge is random, so that each edge carries something else.
    """

    senders: np.ndarray
    receivers: np.ndarray
    counts: np.ndarray
    n_rows: np.ndarray
    random: bool = False

    @cached_property
    def totals(self) -> np.ndarray:
        """`[edge types]`: the edges of each type."""
        return self.counts.sum(axis=0)

    @cached_property
    def sent(self) -> SentRows:
        """The rows that travel over the edges."""
        # Random bodies differ from edge to edge, so each edge's row is computed by itself.
        if self.random:
            return SentRows(
                self.senders,
                self.totals,
                np.arange(len(self.senders)),
            )
        # Else what a sender sends over a type is computed once: which pairs of type and sender
        # there are.
        edge_type = np.repeat(
            np.arange(len(self.totals)),
            self.totals,
        )
        is_sent = np.zeros(
            (
                len(self.totals),
                int(self.senders.max(initial=-1)) + 1,
            ),
            bool,
        )
        is_sent[edge_type, self.senders] = True
        # Their places, type by type and then by sender.
        place = (np.cumsum(is_sent) - 1).reshape(is_sent.shape)
        return SentRows(
            np.nonzero(is_sent)[1],
            is_sent.sum(axis=1),
            place[edge_type, self.senders],
        )

    def loads(self, sizes: np.ndarray) -> np.ndarray:
        """Counts the rows and edges that each message sends.

        Args:
          sizes: `[messages]`: the rows of each.

        Returns:
          `[messages, edge types + 1]`: what it sends over each type of edges, then its edges.
        """
        n = len(sizes)
        sent = self.sent
        edge_type = np.repeat(
            np.arange(len(sent.totals)),
            sent.totals,
        )
        message = np.searchsorted(
            np.cumsum(sizes),
            sent.senders,
            side="right",
        )
        by_type = np.bincount(
            message * len(sent.totals) + edge_type,
            minlength=n * len(sent.totals),
        )
        return np.column_stack(
            [
                by_type.reshape(
                    n,
                    -1,
                ),
                self.counts.sum(axis=1),
            ]
        )


class EdgeIndex:
    """Looks up the edges of a stage's dispatches.

    Args:
      stage: An `edges` stage.
      topologies: Maps of the instances in flight: pump name to instance handle to `Topology`.
    """

    def __init__(
        self,
        stage: Stage,
        topologies: Mapping[str, Mapping[int, Topology]],
    ):
        assert stage.chain is not None
        self._stage = stage
        self._topologies = topologies
        self._collect = stage.chain.collect
        self._distribute = stage.chain.distribute
        self._outputs = tuple(edge_type.output for edge_type in stage.chain.edge_types)
        self._random = any(edge_type.random for edge_type in stage.chain.edge_types)
        self._known: dict[int, tuple[Topology, EdgeList]] = {}
        self._joined: dict[
            tuple[tuple[int, ...], bytes], tuple[list[Topology | None], DispatchEdges]
        ] = {}

    def of(self, handles: np.ndarray, sizes: np.ndarray) -> DispatchEdges:
        """Finds the edges of messages.

        Args:
          handles: `[n]`: the handles of their instances.
          sizes: `[n]`: their rows.

        Returns:
          The edges of all of them.

        Raises:
          MessageError: If a topology does not fit the graph, or the rows of its message.
        """
        maps = self._topologies.get(str(self._stage.topology), {})
        topologies = [*map(maps.get, handles.tolist())]
        key = (tuple(map(id, topologies)), sizes.tobytes())
        entry = self._joined.get(key)  # holds the topologies, so that no others have their numbers
        # Not seen lately: indexed and checked, then remembered in place of the oldest.
        if entry is None:
            parts = [self._find(handle) for handle in handles.tolist()]
            self._check_rows(parts, sizes)
            if len(self._joined) == REMEMBERED_DISPATCHES:
                del self._joined[next(iter(self._joined))]
            entry = self._joined[key] = topologies, _join_edges(parts, sizes, self._random)
        return entry[1]

    def n_rows(self, handles: np.ndarray) -> np.ndarray:
        """Counts the rows that are collected for messages.

        Args:
          handles: `[n]`: the handles of their instances.

        Returns:
          `[n]` int64.
        """
        return np.array(
            [self._find(handle).n_rows for handle in handles.tolist()],
            np.int64,
        )

    def _find(self, handle: int) -> EdgeList:
        topology = find_topology(
            self._distribute, str(self._stage.topology), self._topologies, handle
        )
        entry = self._known.get(handle)
        if entry is None or entry[0] is not topology:
            entry = self._known[handle] = topology, self._index_topology(topology)
        return entry[1]

    def _index_topology(self, topology: Topology) -> EdgeList:
        """A topology's maps, checked against the graph."""
        n_outputs = len(self._distribute.outputs)
        where = f"node `{{}}`, topology `{self._stage.topology}`"
        if len(topology.gather) != n_outputs:
            raise MessageError(
                where.format(self._distribute.name),
                f"{n_outputs} gather maps, one per output",
                f"{len(topology.gather)}",
                "Make the Topology with one map per wire.",
            )
        counts = [len(topology.gather[output]) for output in self._outputs]
        got = [len(places) for places in topology.scatter[: len(counts)]]
        if got != counts:
            raise MessageError(
                where.format(self._collect.name),
                f"scatter maps of {counts} places, one map per port",
                f"{len(topology.scatter)} maps, of {got} places",
                "Make the Topology with one place per row.",
            )
        return topology.edges(self._outputs)

    def _check_rows(
        self,
        parts: list[EdgeList],
        sizes: np.ndarray,
    ) -> None:
        for part, size in zip(parts, sizes.tolist(), strict=True):
            if part.n_senders > size:
                raise MessageError(
                    f"node `{self._distribute.name}`, topology `{self._stage.topology}`",
                    f"row numbers below {size}, the rows of the message",
                    f"{part.n_senders - 1}",
                    "Give the message a row for each node of the topology.",
                )
            if self._stage.aligned and part.n_rows != size:
                raise MessageError(
                    f"node `{self._stage.name}`, topology `{self._stage.topology}`",
                    f"{size} rows, as the message that is distributed",
                    f"{part.n_rows}",
                    "Let collect make a row for each row of the message, or put a node of its own between them.",
                )


def _join_edges(
    parts: list[EdgeList],
    sizes: np.ndarray,
    random: bool,
) -> DispatchEdges:
    """The edges of several messages side by side: from message by message to type by type."""
    counts = np.stack([part.counts for part in parts])
    n_rows = np.array([part.n_rows for part in parts], np.int64)
    ends = np.concatenate([part.ends for part in parts], axis=1)
    # Senders and receivers count within their messages; now they count within the dispatch.
    first = np.stack([np.cumsum(sizes) - sizes, np.cumsum(n_rows) - n_rows]).astype(np.int32)
    ends += np.repeat(
        first,
        counts.sum(axis=1),
        axis=1,
    )
    # Where each message's edges of each type go, when types stand outside and messages inside.
    by_type = counts.T.reshape(-1)
    starts = (np.cumsum(by_type) - by_type).reshape(counts.shape[::-1]).T.reshape(-1)
    by_message = counts.reshape(-1)
    # From where each edge stands to where it goes.
    places = np.arange(len(ends[0])) + np.repeat(
        starts - (np.cumsum(by_message) - by_message), by_message
    )
    ordered = np.empty_like(ends)
    ordered[:, places] = ends
    return DispatchEdges(ordered[0], ordered[1], counts, n_rows, random)
