"""Queues: what waits to be dispatched at a stage in one direction."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ampjax.ir.state import SLOT
from ampjax.sched.stages import Stage

FORWARD, BACKWARD, INFER = "forward", "backward", "infer"


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


class Queue:
    """What waits at a stage in one direction: `forward`, `backward` or `infer`. Policies read it; only the scheduler changes it.

    Attributes:
      backward: Whether dispatching it answers messages: it holds backward messages, or a loss's, which start the way back.
      items: Messages that wait.
      rows: Their rows.
      ready: Rows that one dispatch can take.
      born: The number of the dispatch that made the oldest message ready.
      longest: The most messages that have waited.
      under_way: Forward: messages that have been dispatched and whose gradients have not.
    """

    def __init__(self, stage: Stage, direction: str, max_rows: int):
        self.stage, self.direction, self.max_rows = stage, direction, max_rows
        self.backward = direction == BACKWARD or (direction == FORWARD and stage.kind == "loss")
        self.items = self.rows = self.ready = self.born = self.longest = self.under_way = 0
        self._chunks: deque[Chunk] = deque()

    @property
    def first(self) -> Chunk:
        """The oldest messages."""
        return self._chunks[0]

    def put(self, chunk: Chunk) -> None:
        """Adds messages."""
        n = len(chunk.cells)
        self._chunks.append(chunk)
        self.items += n
        self.rows += n if chunk.sizes is None else int(chunk.sizes.sum())
        if self.items > self.longest:
            self.longest = self.items
        self._summarise()

    def take(self, max_rows: int, max_items: int = 1 << 60) -> Chunk:
        """Takes the oldest messages, up to `max_rows` rows and `max_items` messages but at least one."""
        if self.rows <= max_rows and self.items <= max_items:
            everything = _joined(list(self._chunks))
            self._chunks.clear()
            self.items = self.rows = self.ready = 0
            return everything
        taken: list[Chunk] = []
        rows = items = 0
        while self._chunks:
            chunk = self._chunks[0]
            fits, n_rows = _fitting(chunk, max_rows - rows, max_items - items, bool(taken))
            if fits == 0:
                break
            if fits < len(chunk.cells):
                self._chunks[0] = _part(chunk, slice(fits, None))
                chunk = _part(chunk, slice(0, fits))
            else:
                self._chunks.popleft()
            taken.append(chunk)
            rows += n_rows
            items += fits
        self.items -= items
        self.rows -= rows
        self._summarise()
        return _joined(taken)

    def oldest_first(self, ages: np.ndarray) -> None:
        """Puts the messages of the oldest instances first; `ages[slot]` grows with each admission."""
        if len(self._chunks) > 1 or len(self._chunks[0].cells) > 1:
            everything = _joined(list(self._chunks))
            order = np.argsort(ages[everything.states[:, SLOT]], kind="stable")
            self._chunks = deque([_part(everything, order)])

    def take_like(self, max_rows: int, marks: np.ndarray) -> Chunk:
        """Takes the oldest message and those that share its mark (`marks[cell]`, a row of integers), up to `max_rows` rows."""
        everything = self.take(1 << 60)
        own = marks[everything.cells]
        same = np.flatnonzero((own == own[0]).all(axis=1))
        sizes = np.ones(len(same), np.int64) if everything.sizes is None else everything.sizes[same]
        n = max(1, int(np.searchsorted(np.cumsum(sizes), max_rows, side="right")))
        rest = np.setdiff1d(np.arange(len(own)), same[:n])
        if len(rest):
            self.put(_part(everything, rest))
        return _part(everything, same[:n])

    def contents(self) -> list[Chunk]:
        """What waits, oldest first."""
        return list(self._chunks)

    def clear(self) -> None:
        """Forgets everything."""
        self._chunks.clear()
        self.items = self.rows = self.ready = self.under_way = 0

    def _summarise(self) -> None:
        """Keeps what policies read up to date."""
        self.ready = self.rows if self.rows < self.max_rows else self.max_rows
        if self._chunks:
            self.born = self._chunks[0].born

    def __repr__(self) -> str:
        return f"Queue({self.direction} of `{self.stage.name}`: {self.items} messages, {self.rows} rows)"


def _fitting(chunk: Chunk, room: int, most: int, optional: bool) -> tuple[int, int]:
    """How many of a chunk's messages fit into `room` rows, `most` at most, and their rows; at least one unless `optional`."""
    least = 0 if optional else 1
    if chunk.sizes is None:
        n = max(min(len(chunk.cells), room, most), least)
        return n, n
    rows = np.cumsum(chunk.sizes)
    n = max(min(int(np.searchsorted(rows, room, side="right")), most), least)
    return n, int(rows[n - 1]) if n else 0


def _part(chunk: Chunk, rows: slice | np.ndarray) -> Chunk:
    return Chunk(chunk.states[rows], chunk.cells[rows], None if chunk.sizes is None else chunk.sizes[rows], chunk.born)


def _joined(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    sizes = [c.sizes for c in chunks if c.sizes is not None]
    return Chunk(
        np.concatenate([c.states for c in chunks]),
        np.concatenate([c.cells for c in chunks]),
        np.concatenate(sizes) if sizes else None,
        chunks[0].born,
    )
