"""Pools of numbers that are taken and given back: arena slots, and the cells that stand for messages.

Which slot a payload lies in is the scheduler's decision; what lies in it only the engine knows.
"""

from __future__ import annotations

import numpy as np

from ampjax.errors import InvariantError


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
        return self.limit - self.capacity + self._n_free

    def take(self, n: int) -> np.ndarray:
        """Takes `n` slots, growing if need be.

        Raises:
          InvariantError: If there is no room: the scheduler asks before it takes.
        """
        while self._n_free < n:
            if self.capacity == self.limit:
                raise InvariantError(
                    "slot pool",
                    f"at most {self._n_free} slots to be taken, of {self.limit - 1}",
                    f"{n}",
                    "This is a mistake in ampjax: please report it.",
                )
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


OWNER, STAGE, ROW = 0, 1, 2
"""Columns of the cell table: the cell that counts gradients for this one, the producer, the arena slot."""

N_FIXED = 3


class Cells:
    """The messages in existence, a row of integers each.

    A *cell* is one message's payload: a slot in an arena, or several for a ragged message. A cell that a payload node or a pump
    emitted owns its slots and counts the consumers that still owe it a gradient, in `refs`. A *view* (a row of an ungrouped
    message, the picked rows of a distributed one, a further output of a node) shares its owner's count and dies with it.

    The STAGE of a cell is the number of the stage that emitted it, or `-1 - p` for pump `p`.

    Args:
      width: State columns.
      n_links: Columns for an invocation's input cells, further output cells and parameter versions.
    """

    def __init__(self, width: int, n_links: int):
        self._pool = SlotPool(256, 1 << 40)
        self.table = np.zeros((256, N_FIXED + width + n_links), np.int64)
        self.refs = np.zeros(256, np.int64)
        self.state = slice(N_FIXED, N_FIXED + width)
        self.links = N_FIXED + width
        self.rows: dict[int, np.ndarray] = {}
        self._views: dict[int, list[np.ndarray]] = {}

    @property
    def alive(self) -> int:
        """Cells in existence."""
        return self._pool.used

    def take(
        self, states: np.ndarray, stage: int, slots: np.ndarray | None, links: tuple[np.ndarray, ...] = ()
    ) -> np.ndarray:
        """New owner cells `[n]` for states `[n, width]`, each with one reference: the emission's own, until it has been routed.

        Args:
          states: Their states.
          stage: Their producer.
          slots: Their arena slots `[n]`; None for ragged cells, whose `rows` the caller sets.
          links: Arrays `[n, k]`, or `[k]` for all, that fill the link columns from the left.
        """
        n = len(states)
        cells = self._pool.take(n)
        if self._pool.capacity > len(self.table):
            self._grow()
        block = np.empty((n, self.table.shape[1]), np.int64)
        block[:, OWNER] = cells
        block[:, STAGE] = stage
        block[:, ROW] = 0 if slots is None else slots
        block[:, self.state] = states
        column = self.links
        for link in links:
            block[:, column : column + link.shape[-1]] = link
            column += link.shape[-1]
        self.table[cells] = block
        self.refs[cells] = 1
        return cells

    def view(self, of: np.ndarray, states: np.ndarray, slots: np.ndarray | None) -> np.ndarray:
        """New view cells `[n]` of the cells `of`."""
        owners = self.table[of, OWNER]
        cells = self.take(states, 0, slots)
        self.table[cells, OWNER] = owners
        self.table[cells, STAGE] = self.table[owners, STAGE]
        for owner, cell in zip(owners.tolist(), np.split(cells, len(cells)), strict=True):
            self._views.setdefault(owner, []).append(cell)
        return cells

    def give(self, cells: np.ndarray) -> None:
        """Ends owner cells and their views."""
        if self._views or self.rows:
            for cell in cells.tolist():
                self.rows.pop(cell, None)
                for views in self._views.pop(cell, ()):
                    self.rows.pop(int(views[0]), None)
                    self._pool.give(views)
        self._pool.give(cells)

    def rows_of(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slots of ragged cells, one after the other, and each cell's number of them."""
        parts = [self.rows[c] for c in cells.tolist()]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), sizes

    def set_rows(self, cells: np.ndarray, rows: np.ndarray, sizes: np.ndarray) -> None:
        """Gives ragged cells their slots: `rows` one after the other, `sizes[i]` for cell `i`."""
        ends = np.cumsum(sizes).tolist()
        self.rows.update(
            (cell, rows[end - size : end]) for cell, end, size in zip(cells.tolist(), ends, sizes.tolist(), strict=True)
        )

    def _grow(self) -> None:
        n = self._pool.capacity
        table = np.zeros((n, self.table.shape[1]), np.int64)
        table[: len(self.table)] = self.table
        refs = np.zeros(n, np.int64)
        refs[: len(self.refs)] = self.refs
        self.table, self.refs = table, refs
