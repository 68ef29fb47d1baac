"""The shared values of past updates, for rows that were left out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class SharedHistory:
    """What each of the latest updates shared between all rows: step sizes, bias corrections, norms.

    A row that was not touched for k updates needs the last k entries to catch up. It holds `capacity` of them, so all rows
    must be settled before one more comes.

    Args:
      capacity: Updates that it holds; 0 where no row ever needs them: then it counts only.
      version: The number of updates before the first of them.
    """

    def __init__(self, capacity: int, version: int = 0):
        self.capacity = capacity
        self.base = version
        self.length = 0
        self.values: list[np.ndarray] = []

    @property
    def version(self) -> int:
        """Updates so far."""
        return self.base + self.length

    @property
    def is_full(self) -> bool:
        """Whether all rows have to be settled before the next update."""
        return 0 < self.capacity == self.length

    def append(self, shared: Sequence[Any]) -> None:
        """Adds one update's shared values."""
        if not self.capacity:
            self.base += 1
            return
        arrays = [np.asarray(value) for value in shared]
        if not self.values:
            self.values = [np.zeros((self.capacity, *array.shape), array.dtype) for array in arrays]
        for values, array in zip(self.values, arrays, strict=True):
            values[self.length] = array
        self.length += 1

    def clear(self) -> None:
        """Forgets all entries: no row needs them any more."""
        self.base, self.length = self.version, 0
