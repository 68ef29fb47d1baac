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
        left = self._n_free = self._n_free - n
        self.taken += n
        self.peak = max(self.peak, self.capacity - 1 - left)
        return self._free[left : left + n].copy()

    def give(self, slots: np.ndarray) -> None:
        """Gives slots back."""
        n_free = self._n_free + len(slots)
        self._free[self._n_free : n_free] = slots
        self._n_free = n_free

    def _grow(self, capacity: int) -> None:
        free = np.empty(capacity, np.int64)
        free[: self._n_free] = self._free[: self._n_free]
        added = capacity - self.capacity
        free[self._n_free : self._n_free + added] = np.arange(capacity - 1, self.capacity - 1, -1)
        self._free, self._n_free, self.capacity = free, self._n_free + added, capacity
