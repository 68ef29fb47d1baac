"""The shared values of past updates, for rows that missed those updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class SharedHistory:
    """The shared values of the latest updates: step sizes, bias corrections, norms.

    A row that was not touched for k updates needs the last k entries to catch up. There is room for twice as many entries as a row may
    miss, so that old ones are seldom moved out.

    Args:
      max_lag: Updates that a row may miss. 0 if rows never catch up: then it only counts updates.
      version: The number of updates before the first of them.
    """

    def __init__(self, max_lag: int, version: int = 0):
        self.max_lag = max_lag
        self.base = version
        self.length = 0
        self.values: list[np.ndarray] = []

    @property
    def version(self) -> int:
        """Updates so far."""
        return self.base + self.length

    @property
    def is_full(self) -> bool:
        """Tells whether old entries have to be forgotten before the next update."""
        return 0 < 2 * self.max_lag == self.length

    def reserve(self, shared: Sequence[Any]) -> None:
        """Makes room for entries, if there is none yet.

        Args:
          shared: The values of one update, of the same shapes and dtypes in every update.
        """
        if not self.values and self.max_lag:
            arrays = [np.asarray(value) for value in shared]
            values = []
            for array in arrays:
                values.append(
                    np.zeros(
                        (2 * self.max_lag, *array.shape),
                        array.dtype,
                    )
                )
            self.values = values

    def append(self, shared: Sequence[Any]) -> None:
        """Adds one update's shared values."""
        if not self.max_lag:
            self.base += 1
            return
        self.reserve(shared)
        for values, value in zip(self.values, shared, strict=True):
            values[self.length] = value
        self.length += 1

    def forget(self, version: int) -> None:
        """Forgets the entries of old updates, which all rows have seen.

        Args:
          version: The number of updates that are forgotten, of all since the first; at least `base`.
        """
        gone = version - self.base
        for values in self.values:
            values[: self.length - gone] = values[gone : self.length].copy()
        self.base = version
        self.length = self.length - gone
