"""Cells: the messages in existence, as columns.

A *cell* is one message's payload: a slot in an arena, or several for a ragged message. A cell that a payload node or a pump
emitted owns its slots and counts the consumers that still owe it a gradient, in `refs`. A *view* (a row of an ungrouped
message, the picked rows of a distributed one, a further output of a node) shares its owner's count and dies with it.

What is read on its own is a column of its own: NumPy takes from one dimension in a third of the time that it needs for two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.sched.slots import SlotPool


class Lines:
    """A table of integers `[n, width]` whose lines are written one item each, which NumPy does many times faster than row by row."""

    def __init__(self, n: int, width: int):
        self.array = np.zeros((n, width), np.int64)
        self._item = np.dtype((np.void, 8 * width))
        self._items = self.array.view(self._item)[:, 0]
        self._zero = np.zeros((), self._item)

    def __len__(self) -> int:
        return len(self.array)

    def empty(self, n: int) -> np.ndarray:
        """`[n, width]` to be filled and put."""
        return np.empty((n, self.array.shape[1]), np.int64)

    def put(self, at: np.ndarray, lines: np.ndarray) -> None:
        """Writes `lines` `[k, width]`, which must be contiguous, at the places `at` `[k]`."""
        self._items[at] = lines.view(self._item)[:, 0]

    def clear(self, at: np.ndarray) -> None:
        """Writes zeros at the places `at`."""
        self._items[at] = self._zero

    def take(self, at: np.ndarray) -> np.ndarray:
        """The lines at the places `at`, `[k, width]`."""
        return self.array.take(at, axis=0)

    def grown(self, n: int) -> Lines:
        """A table of `n` lines that starts with these."""
        new = Lines(n, self.array.shape[1])
        new.array[: len(self)] = self.array
        return new


class Cells:
    """The cell table.

    Args:
      width: State columns.
      n_links: Columns for an invocation's input cells, further output cells and parameter versions.

    Attributes:
      owner: The cell that counts gradients for this one: itself, unless it is a view.
      stage: The number of the stage that emitted it, or `-1 - p` for pump `p`.
      row: Its arena slot.
      refs: Gradients that it is still owed, and 1 while its emission is being routed.
      instance: Of cells that no stage has computed: the slot of their instance.
      lines: Of cells that a stage has computed: their states, then the links.
      rows: Of ragged cells: their arena slots.
    """

    def __init__(self, width: int, n_links: int):
        self._pool = SlotPool(256, 1 << 40)
        self.owner = np.arange(256)
        self.stage, self.row, self.refs, self.instance = (np.zeros(256, np.int64) for _ in range(4))
        self.lines = Lines(256, width + n_links)
        self.width = width
        self.rows: dict[int, np.ndarray] = {}
        self._ragged = np.zeros(256, bool)
        self._view = np.full(256, -1)  # an owner's latest view, and a view's elder sister
        self._n_views = 0

    @property
    def alive(self) -> int:
        """Cells in existence."""
        return self._pool.used

    def take(self, n: int, stage: int, slots: np.ndarray | None, refs: int) -> np.ndarray:
        """New owner cells `[n]`.

        Args:
          n: How many.
          stage: Their producer.
          slots: Their arena slots `[n]`; None for ragged cells, whose `rows` the caller sets.
          refs: References that each has from the start.
        """
        cells = self._pool.take(n)
        if self._pool.capacity > len(self.lines):
            self._grow()
        self.stage[cells] = stage
        if slots is not None:
            self.row[cells] = slots
        self.refs[cells] = refs
        return cells

    def view(self, of: np.ndarray, slots: np.ndarray | None) -> np.ndarray:
        """New view cells `[n]` of the cells `of`."""
        owners = self.owner[of]
        cells = self.take(len(of), 0, slots, 0)
        self.owner[cells] = owners
        self._n_views += len(cells)
        if not len(cells):
            return cells
        order = np.argsort(owners, kind="stable")
        owners, sisters = owners[order], cells[order]
        another = owners[1:] != owners[:-1]
        first, last = np.append(True, another), np.append(another, True)
        elder = np.append(sisters[1:], -1)
        elder[last] = self._view[owners[last]]
        self._view[sisters], self._view[owners[first]] = elder, sisters[first]
        return cells

    def give(self, cells: np.ndarray) -> None:
        """Ends owner cells and their views."""
        of_views = 0
        while len(cells):
            if self.rows:
                self._end_rows(cells)
            self._pool.give(cells)
            if not self._n_views:
                return
            views = self._view[cells]
            self.owner[cells], self._view[cells] = cells, -1
            self._n_views -= of_views
            cells = views[views >= 0]
            of_views = len(cells)

    def _end_rows(self, cells: np.ndarray) -> None:
        """Forgets the slots of those of the cells that are ragged."""
        ragged = cells[self._ragged[cells]]
        self._ragged[ragged] = False
        for cell in ragged.tolist():
            del self.rows[cell]

    def rows_of(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slots of ragged cells, one after the other, and each cell's number of them."""
        parts = [self.rows[c] for c in cells.tolist()]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), sizes

    def sizes_of(self, cells: np.ndarray) -> np.ndarray:
        """Each ragged cell's number of slots."""
        rows = self.rows
        return np.fromiter((len(rows[c]) for c in cells.tolist()), np.int64, len(cells))

    def set_rows(self, cells: np.ndarray, rows: np.ndarray, sizes: np.ndarray) -> None:
        """Gives ragged cells their slots: `rows` one after the other, `sizes[i]` for cell `i`."""
        ends = np.cumsum(sizes)
        self.set_parts(cells, [rows[i:j] for i, j in zip((ends - sizes).tolist(), ends.tolist(), strict=True)])

    def set_parts(self, cells: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Gives ragged cells their slots, `rows[i]` for cell `i`."""
        self._ragged[cells] = True
        self.rows.update(zip(cells.tolist(), rows, strict=True))

    def _grow(self) -> None:
        n, old = self._pool.capacity, len(self.lines)
        self.owner = np.concatenate([self.owner, np.arange(old, n)])
        self._view = np.concatenate([self._view, np.full(n - old, -1)])
        self._ragged = np.concatenate([self._ragged, np.zeros(n - old, bool)])
        more = np.zeros(n - old, np.int64)
        for name in ("stage", "row", "refs", "instance"):
            setattr(self, name, np.concatenate([getattr(self, name), more]))
        self.lines = self.lines.grown(n)
