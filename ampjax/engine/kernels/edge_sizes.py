"""The padded sizes of dispatches of graphs: a ladder for rows, and room for edges that follows from the rows.

A kernel with a size for rows, one for what is sent over each type of edges and one for edges would have as many variants as these have
combinations. So the room for these belongs to the step of the rows' ladder: what so many rows hardly ever exceed, estimated from sampled
graphs. A dispatch with more takes the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ampjax.unfold.rules.edges import DispatchEdges

DEVIATIONS = 3.0
"""Standard deviations above the mean for which there is room."""

LEAST = 1 / 16
"""Sent rows of each edge type, and edges, per row, for which there is always room: so that a type that no sampled graph has fits in,
too."""

MULTIPLE = 8
"""Room is a multiple of this."""

Sizes = tuple[int, ...]
"""The padded number of sent rows of each edge type, then that of edges."""


class PaddedEdges(NamedTuple):
    """A dispatch's edges in the layout of kernels.

    Args:
      senders: `[sum(sent)]`, int32: the rows that travel, each type padded with its first one (row 0 where it has none).
      totals: `[edge types]`, int32: how many rows of each type are no padding.
      ends: `[2, edges]`, int32: the place of what each edge carries, and its receiver; padding has place 0 and a receiver out of range.
    """

    senders: np.ndarray
    totals: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class EdgeSizes:
    """The numbers of sent rows of each edge type, and of edges, for each row: their means and deviations.

    Args:
      mean: `[edge types + 1]`: their number per row.
      spread: `[edge types + 1]`: the standard deviation of those that come with `n` rows, divided by the root of `n`.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(
        cls,
        dispatches: Sequence[tuple[np.ndarray, np.ndarray]],
    ) -> EdgeSizes:
        """Estimates sizes from sampled messages.

        Args:
          dispatches: Of some dispatches, the rows of each message `[n]` and its `DispatchEdges.loads` `[n, edge types + 1]`.
        """
        # What comes with a message is a sum over its rows, whose variance grows with them: so both
        # are taken per row.
        rows, loads = (np.concatenate(columns) for columns in zip(*dispatches, strict=True))
        total = max(1, int(rows.sum()))
        mean = loads.sum(axis=0) / total
        spread = np.sqrt(((loads - rows[:, None] * mean) ** 2).sum(axis=0) / total)
        return cls(
            tuple(mean.tolist()),
            tuple(spread.tolist()),
        )

    def room(self, rows: int) -> Sizes:
        """The edges that there is room for.

        Returns:
          The padded sizes.
        """
        usual = rows * np.array(self.mean) + DEVIATIONS * np.sqrt(rows) * np.array(self.spread)
        least = np.maximum(usual, LEAST * rows)
        return tuple((MULTIPLE * np.ceil(np.maximum(least, 1) / MULTIPLE)).astype(int).tolist())

    def fit(
        self,
        ladder: Callable[[int], int],
        rows: int,
        edges: DispatchEdges,
    ) -> tuple[int, Sizes]:
        """The padded sizes of a dispatch: the first step of a ladder that has room for its rows and its edges.

        Returns:
          Its padded rows, and the padded sizes of its edges.
        """
        step = ladder(rows)
        loads = (
            *edges.sent.totals.tolist(),
            len(edges.receivers),
        )
        # More edges than usual: the next step has room for more of them.
        while any(n > room for n, room in zip(loads, self.room(step), strict=True)):
            step = ladder(step + 1)
        return step, self.room(step)


def fit_edges(
    expected: EdgeSizes,
    ladder: Callable[[int], int],
    rows: int,
    edges: DispatchEdges,
) -> tuple[int, Sizes, PaddedEdges]:
    """Pads a dispatch's edges, and gives the sizes chosen for the dispatch.

    Returns:
      Its padded rows, the padded sizes of its edges, and these.
    """
    k, sizes = expected.fit(ladder, rows, edges)
    return k, sizes, pad_edges(edges, k, sizes)


def pad_edges(edges: DispatchEdges, rows: int, sizes: Sizes) -> PaddedEdges:
    """A dispatch's edges, padded.

    Args:
      edges: The edges.
      rows: The dispatch's padded rows, the receiver of padding.
      sizes: The padded number of sent rows of each edge type, then that of edges.
    """
    sent = edges.sent
    *of_ways, n_edges = sizes
    senders = np.empty(sum(of_ways), np.int32)
    places = np.empty(len(sent.senders), np.int32)
    start = first = 0
    # Type by type: its senders, then padding up to the type's size.
    for count, size in zip(sent.totals.tolist(), of_ways, strict=True):
        of_type = sent.senders[first : first + count]
        senders[start : start + count] = of_type
        senders[start + count : start + size] = of_type[0] if count else 0
        places[first : first + count] = np.arange(start, start + count)
        start = start + size
        first = first + count
    # Edges name the padded places of what they carry; padding edges have a receiver out of range.
    n = len(edges.receivers)
    ends = np.empty((2, n_edges), np.int32)
    ends[0, :n] = places[sent.of_edge]
    ends[1, :n] = edges.receivers
    ends[0, n:] = 0
    ends[1, n:] = rows
    return PaddedEdges(senders, sent.totals.astype(np.int32), ends)
