"""Padded sizes of dispatches of graphs: a ladder for rows, and room for edges that follows from the rows.

A kernel with a size for rows and one for each kind of edge would have as many variants as these have combinations. So the room for edges belongs to
the step of the rows' ladder: what so many rows hardly ever exceed, told from sampled graphs. A dispatch with more takes the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.unfold.rules.edges import Edges

DEVIATIONS = 3.0
"""Standard deviations above the mean for which there is room."""

LEAST = 1 / 16
"""Edges of each kind, per row, for which there is always room: so that a kind that no sampled graph has fits in somewhere."""

MULTIPLE = 8
"""Room for edges is a multiple of this."""


@dataclass(frozen=True)
class EdgeSizes:
    """Edges of each way per row: how many there are, and how they vary.

    Args:
      mean: `[ways]`: edges per row.
      spread: `[ways]`: the standard deviation of the edges that come with `n` rows, divided by the root of `n`.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, dispatches: Sequence[tuple[np.ndarray, np.ndarray]]) -> EdgeSizes:
        """What sampled messages suggest.

        Args:
          dispatches: Of some dispatches, the rows of each message `[n]` and its edges `[n, ways]`.
        """
        rows, edges = (np.concatenate(columns) for columns in zip(*dispatches, strict=True))
        total = max(1, int(rows.sum()))
        mean = edges.sum(axis=0) / total
        spread = np.sqrt(((edges - rows[:, None] * mean) ** 2).sum(axis=0) / total)
        return cls(tuple(mean.tolist()), tuple(spread.tolist()))

    def room(self, rows: int) -> tuple[int, ...]:
        """The edges of each way for which there is room beside so many rows, padding included."""
        usual = rows * np.array(self.mean) + DEVIATIONS * np.sqrt(rows) * np.array(self.spread)
        least = np.maximum(usual, LEAST * rows)
        return tuple((MULTIPLE * np.ceil(np.maximum(least, 1) / MULTIPLE)).astype(int).tolist())

    def fit(self, ladder: Callable[[int], int], rows: int, edges: np.ndarray) -> tuple[int, tuple[int, ...]]:
        """The padded sizes of a dispatch: the first step of a ladder that has room for its rows and its edges `[ways]`."""
        step = ladder(rows)
        while any(n > room for n, room in zip(edges.tolist(), self.room(step), strict=True)):
            step = ladder(step + 1)
        return step, self.room(step)


def padded_edges(edges: Edges, rows: int, sizes: tuple[int, ...]) -> np.ndarray:
    """Senders and receivers `[2, sum(sizes)]`, int32, each way padded to its size.

    Padding repeats the way's first sender (row 0 where it has none), and its receiver is `rows`, out of range.

    Args:
      edges: A dispatch's edges.
      rows: The dispatch's padded rows.
      sizes: The padded edges of each way.
    """
    out = np.empty((2, sum(sizes)), np.int32)
    out[1] = rows
    start = first = 0
    for count, size in zip(edges.totals.tolist(), sizes, strict=True):
        out[0, start : start + count] = edges.senders[first : first + count]
        out[0, start + count : start + size] = edges.senders[first] if count else 0
        out[1, start : start + count] = edges.receivers[first : first + count]
        start, first = start + size, first + count
    return out
