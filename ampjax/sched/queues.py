"""Queues: what waits to be dispatched at a stage in one direction."""

from __future__ import annotations

from collections import deque

import numpy as np

from ampjax.ir.state import SLOT
from ampjax.sched.runs import Chunk, Runs, joined
from ampjax.sched.stages import Stage

FORWARD, BACKWARD, INFER = "forward", "backward", "infer"


class Queue:
    """What waits at a stage in one direction: `forward`, `backward` or `infer`. Policies read it; only the scheduler changes it.

    Attributes:
      backward: Whether dispatching it answers messages: it holds backward messages, or a loss's, which start the way back.
      items: Messages that wait.
      rows: Their rows.
      ready: Rows that one dispatch can take.
      born: When it began to wait: the number of the dispatch that made the first message ready. Once more wait than one dispatch takes, and
        the oldest instances go first, it stays as it was until the messages that have been put in order since are all gone.
      longest: The most messages that have waited.
      under_way: Forward: messages that have been dispatched and whose gradients have not.
    """

    def __init__(self, stage: Stage, direction: str, max_rows: int):
        self.stage, self.direction, self.max_rows = stage, direction, max_rows
        self.backward = direction == BACKWARD or (direction == FORWARD and stage.kind == "loss")
        self.items = self.rows = self.ready = self.born = self.longest = self.under_way = 0
        self._sorted = Runs()  # what waited when the oldest were last put first; what has come since stands behind
        self._sorted_born = 0
        self._chunks: deque[Chunk] = deque()

    @property
    def first(self) -> Chunk:
        """Messages of which the first one goes first."""
        return self._sorted.first if len(self._sorted) else self._chunks[0]

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
        """Takes the first messages, up to `max_rows` rows and `max_items` messages but at least one."""
        if self.rows <= max_rows and self.items <= max_items:
            everything = joined(self.contents())
            self._forget()
            return everything
        taken: list[Chunk] = []
        rows = items = 0
        while (part := self._take_part(max_rows - rows, max_items - items, not taken)) is not None:
            taken.append(part)
            rows += len(part.cells) if part.sizes is None else int(part.sizes.sum())
            items += len(part.cells)
        self.items -= items
        self.rows -= rows
        self._summarise()
        return joined(taken)

    def oldest_first(self, ages: np.ndarray) -> None:
        """Puts the messages of the oldest instances first; `ages[slot]` grows with each admission."""
        if self._chunks:
            if not len(self._sorted):
                self._sorted_born = self._chunks[0].born
            late = joined(list(self._chunks))
            self._sorted.add(late, ages[late.states[:, SLOT]])
            self._chunks.clear()

    def take_like(self, max_rows: int, marks: np.ndarray) -> Chunk:
        """Takes the first message and those that share its mark (`marks[cell]`, a row of integers), up to `max_rows` rows."""
        everything = self.take(1 << 60)
        own = marks[everything.cells]
        same = np.flatnonzero((own == own[0]).all(axis=1))
        sizes = np.ones(len(same), np.int64) if everything.sizes is None else everything.sizes[same]
        n = max(1, int(np.searchsorted(np.cumsum(sizes), max_rows, side="right")))
        rest = np.setdiff1d(np.arange(len(own)), same[:n])
        if len(rest):
            self.put(everything.part(rest))
        return everything.part(same[:n])

    def contents(self) -> list[Chunk]:
        """What waits, in the order in which it will be taken."""
        if not len(self._sorted):
            return list(self._chunks)
        first = self._sorted.everything()
        first.born = self._sorted_born
        return [first, *self._chunks]

    def clear(self) -> None:
        """Forgets everything."""
        self._forget()
        self.under_way = 0

    def _forget(self) -> None:
        self._sorted.clear()
        self._chunks.clear()
        self.items = self.rows = self.ready = 0

    def _take_part(self, max_rows: int, max_items: int, needed: bool) -> Chunk | None:
        """Takes what fits of the first messages, one at least if it is `needed`; None if nothing does."""
        least = 1 if needed else 0
        if len(self._sorted):
            part = self._sorted.take(max_rows, max_items, least)
            return part if len(part.cells) else None
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        n = max(least, chunk.fitting(max_rows, max_items))
        if n == 0:
            return None
        if n < len(chunk.cells):
            self._chunks[0] = chunk.part(slice(n, None))
            return chunk.part(slice(0, n))
        return self._chunks.popleft()

    def _summarise(self) -> None:
        """Keeps what policies read up to date."""
        self.ready = self.rows if self.rows < self.max_rows else self.max_rows
        if len(self._sorted):
            self.born = self._sorted_born
        elif self._chunks:
            self.born = self._chunks[0].born

    def __repr__(self) -> str:
        return f"Queue({self.direction} of `{self.stage.name}`: {self.items} messages, {self.rows} rows)"
