"""The shared values of past updates, for rows that were left out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class SharedHistory:
    """The shared values of the latest updates: step sizes, bias corrections, norms.

    A row that was not touched for k updates needs the last k entries to catch up. The history holds `capacity` entries, so all rows must be
    caught up before one more is added.

    Args:
      capacity: How many updates it holds. 0 if rows never catch up: then it only counts updates.
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
        """Whether all rows have to be caught up before the next update."""
        return 0 < self.capacity == self.length

    def append(self, shared: Sequence[Any]) -> None:
        """Adds one update's shared values.

        Args:
          shared: The values, of the same shapes and dtypes in every update.
        """
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
