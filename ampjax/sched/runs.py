"""Sorted runs: messages that wait in the order of their instances' ages, without being sorted anew whenever some come or go.

What comes is a short run of its own; two neighbours of about the same length become one. So there are few runs, a message is moved a few
times at most, and taking the oldest looks at the beginnings of the runs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(eq=False, slots=True)
class Chunk:
    """Messages that became ready together.

    Args:
      states: `[n, width]`.
      cells: Forward: the input cells `[n, ports]`; backward: the invocations `[n]`.
      sizes: Rows of each message `[n]`, for ragged stages.
      born: The number of the dispatch that made them ready.
    """

    states: np.ndarray
    cells: np.ndarray
    sizes: np.ndarray | None
    born: int

    def __len__(self) -> int:
        return len(self.cells)

    def part(self, rows: slice | np.ndarray) -> Chunk:
        """Some of them."""
        sizes = None if self.sizes is None else self.sizes[rows]
        if isinstance(rows, slice):
            return Chunk(self.states[rows], self.cells[rows], sizes, self.born)
        return Chunk(self.states.take(rows, axis=0), self.cells.take(rows, axis=0), sizes, self.born)

    def fitting(self, max_rows: int, max_items: int) -> int:
        """How many of the first messages hold `max_rows` rows and are `max_items` at most."""
        n = min(len(self.cells), max_items)
        if self.sizes is None:
            return max(0, min(n, max_rows))
        return int(np.searchsorted(np.cumsum(self.sizes[:n]), max_rows, side="right"))


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks one after the other, as one that is as old as the first."""
    if len(chunks) == 1:
        return chunks[0]
    sizes = [c.sizes for c in chunks if c.sizes is not None]
    return Chunk(
        np.concatenate([c.states for c in chunks]),
        np.concatenate([c.cells for c in chunks]),
        np.concatenate(sizes) if sizes else None,
        chunks[0].born,
    )


@dataclass(eq=False, slots=True)
class Run:
    """Messages in order of age: `ages` `[n]` never falls."""

    chunk: Chunk
    ages: np.ndarray

    def part(self, rows: slice | np.ndarray) -> Run:
        """Some of them."""
        return Run(self.chunk.part(rows), self.ages[rows])


class Runs:
    """Messages in order of age; of equal age that which came first goes first."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def first(self) -> Chunk:
        """The oldest message, and some younger ones behind it."""
        return min(self._runs, key=lambda run: run.ages[0]).chunk

    def add(self, chunk: Chunk, ages: np.ndarray) -> None:
        """Adds messages of these ages `[n]`."""
        self._runs.append(_merged([Run(chunk, ages)]))
        while len(self._runs) > 1 and len(self._runs[-2].ages) <= 2 * len(self._runs[-1].ages):
            self._runs[-2:] = [_merged(self._runs[-2:])]

    def everything(self) -> Chunk:
        """All messages in order; they stay."""
        if len(self._runs) > 1:
            self._runs = [_merged(self._runs)]
        return self._runs[0].chunk

    def clear(self) -> None:
        """Forgets everything."""
        self._runs.clear()

    def take(self, max_rows: int, max_items: int, least: int = 0) -> Chunk:
        """Takes the oldest messages, up to `max_rows` rows and `max_items` messages but at least `least`, 0 or 1."""
        counts = [max(least, run.chunk.fitting(max_rows, max_items)) for run in self._runs]
        if len(counts) == 1:
            taken = self._runs[0].chunk.part(slice(0, counts[0]))
        else:  # of no run more is taken than if there were no other; the next one stands in the way of younger ones
            heads = [run.part(slice(0, n + 1)) for run, n in zip(self._runs, counts, strict=True)]
            of = np.repeat(np.arange(len(heads)), [len(head.ages) for head in heads])
            order = np.argsort(np.concatenate([head.ages for head in heads]), kind="stable")
            oldest = joined([head.chunk for head in heads]).part(order)
            n = max(least, oldest.fitting(max_rows, max_items))
            taken = oldest.part(slice(0, n))
            counts = np.bincount(of[order[:n]], minlength=len(heads)).tolist()
        rest = zip(self._runs, counts, strict=True)
        self._runs = [run.part(slice(n, None)) for run, n in rest if n < len(run.ages)]
        return taken


def _merged(runs: Sequence[Run]) -> Run:
    """Messages of several runs as one; runs that came earlier stand first in `runs`."""
    chunk = joined([run.chunk for run in runs])
    ages = runs[0].ages if len(runs) == 1 else np.concatenate([run.ages for run in runs])
    if not np.count_nonzero(ages[1:] < ages[:-1]):
        return Run(chunk, ages)
    return Run(chunk, ages).part(np.argsort(ages, kind="stable"))
