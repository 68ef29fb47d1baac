"""Pools of numbers that are taken and given back: arena slots, and the cells that stand for messages.

Which slot a payload lies in is the scheduler's decision; what lies in it only the engine knows.
"""

from __future__ import annotations

import numpy as np


class SlotPool:
    """Numbers `1 .. capacity-1` to take and give back; grows by doubling up to a limit. Number 0 is the trash slot.

    Args:
      capacity: Slots at the start, the trash slot included.
      limit: Slots at most.
    """

    def __init__(self, capacity: int, limit: int):
        self.limit = max(2, limit)
        self.capacity = min(max(2, capacity), self.limit)
        self._free = np.arange(self.capacity - 1, 0, -1, dtype=np.int64)
        self._n_free = self.capacity - 1
        self.peak = self.taken = 0

    @property
    def used(self) -> int:
        """Slots taken now."""
        return self.capacity - 1 - self._n_free

    @property
    def room(self) -> int:
        """Slots that can still be taken, growth included."""
        return self.limit - 1 - self.used

    def take(self, n: int) -> np.ndarray:
        """Takes `n` slots, growing if need be; the caller has checked `room`."""
        while self._n_free < n:
            self._grow(min(self.limit, 2 * self.capacity))
        self._n_free -= n
        self.taken += n
        taken = self._free[self._n_free : self._n_free + n].copy()
        self.peak = max(self.peak, self.used)
        return taken

    def give(self, slots: np.ndarray) -> None:
        """Gives slots back."""
        n = len(slots)
        self._free[self._n_free : self._n_free + n] = slots
        self._n_free += n

    def _grow(self, capacity: int) -> None:
        free = np.empty(capacity, np.int64)
        free[: self._n_free] = self._free[: self._n_free]
        added = capacity - self.capacity
        free[self._n_free : self._n_free + added] = np.arange(capacity - 1, self.capacity - 1, -1)
        self._free, self._n_free, self.capacity = free, self._n_free + added, capacity


OWNER, REFS, STAGE, ROW = 0, 1, 2, 3
"""Columns of the cell table: the cell that counts gradients for this one, gradients still owed, the producer, the arena slot."""

PUMP = -1
"""The STAGE of pumped cells."""

N_FIXED = 4


class Cells:
    """The messages in existence, a row of integers each.

    A *cell* is one message's payload: a slot in an arena, or several for a ragged message. A cell that a payload node or a pump
    emitted owns its slots and counts the consumers that still owe it a gradient. A *view* (a row of an ungrouped message, the
    picked rows of a distributed one) shares its owner's slots and count.

    Args:
      width: State columns.
      n_links: Columns for an invocation's input cells, further output cells and parameter versions.
    """

    def __init__(self, width: int, n_links: int):
        self._width = width
        self._pool = SlotPool(256, 1 << 40)
        self.table = np.zeros((256, N_FIXED + width + n_links), np.int64)
        self.state = slice(N_FIXED, N_FIXED + width)
        self.links = N_FIXED + width
        self.rows: dict[int, np.ndarray] = {}
        self.children: dict[int, list[np.ndarray]] = {}

    @property
    def alive(self) -> int:
        """Cells in existence."""
        return self._pool.used

    def take(self, states: np.ndarray, stage: int, slots: np.ndarray | None) -> np.ndarray:
        """New owner cells `[n]` for states `[n, width]`, with no gradient owed yet."""
        n = len(states)
        cells = self._new(n)
        block = np.zeros((n, self.table.shape[1]), np.int64)
        block[:, OWNER] = cells
        block[:, STAGE] = stage
        if slots is not None:
            block[:, ROW] = slots
        block[:, self.state] = states
        self.table[cells] = block
        return cells

    def view(self, of: np.ndarray, states: np.ndarray, slots: np.ndarray | None) -> np.ndarray:
        """New view cells `[n]` of the cells `of`."""
        owners = self.table[of, OWNER]
        cells = self.take(states, PUMP, slots)
        self.table[cells, OWNER] = owners
        self.table[cells, STAGE] = self.table[owners, STAGE]
        self.adopt(owners, cells)
        return cells

    def adopt(self, owners: np.ndarray, cells: np.ndarray) -> None:
        """Lets `cells` die together with `owners`."""
        children = self.children
        for owner, cell in zip(owners.tolist(), np.split(cells, len(cells)), strict=True):
            children.setdefault(owner, []).append(cell)

    def give(self, cells: np.ndarray) -> None:
        """Ends owner cells and their views."""
        if self.children or self.rows:
            for cell in cells.tolist():
                self.rows.pop(cell, None)
                for views in self.children.pop(cell, ()):
                    self.rows.pop(int(views[0]), None)
                    self._pool.give(views)
        self._pool.give(cells)

    def rows_of(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slots of ragged cells, one after the other, and each cell's number of them."""
        parts = [self.rows[c] for c in cells.tolist()]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), sizes

    def _new(self, n: int) -> np.ndarray:
        cells = self._pool.take(n)
        if self._pool.capacity > len(self.table):
            grown = np.zeros((self._pool.capacity, self.table.shape[1]), np.int64)
            grown[: len(self.table)] = self.table
            self.table = grown
        return cells
