"""The gradients of a table in host memory that wait for its node's update."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ampjax.ir.host_tables import HostTable
from ampjax.optim.row_sums import sum_duplicates

MOST_ROWS = 1 << 16
"""From so many rows on, those of one id are summed before an update is due."""


@jax.tree_util.register_static
class TableGradients:
    """The gradients that a node has accumulated for a table: ids and rows.

    To JAX it is a tree without arrays, so that it can stand among other nodes' accumulators.

    Args:
      table: The table.
      gradient: `mean` or `sum` over an update's gradient rows.

    Attributes:
      n_new: Rows of gradients that have come since those of one id were summed.
    """

    def __init__(self, table: HostTable, gradient: str):
        self.table = table
        self._gradient = gradient
        self._ids: list[np.ndarray] = []
        self._rows: list[Any] = []
        self.n_new = 0

    def add(self, ids: np.ndarray, rows: Any) -> None:
        """Adds gradients; arrays on a device are waited for later, on use.

        Args:
          ids: Whose they are, `[n]`, or `[n, ids]` where a message brings several.
          rows: `[m, *row]` or `[m, ids, *row]`, with `m >= n`: behind the first n stands padding.
        """
        self._ids.append(ids)
        self._rows.append(rows)
        self.n_new += ids.size
        # Many rows: those of one id are summed, so memory is bounded by the table.
        if self.n_new > MOST_ROWS:
            self.restore(*self.sum_by_id(), 0)

    def sum_by_id(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids that have gradients, rising, and the sums of their gradients. Waits for the device.

        Returns:
          `[n]` int64, and `[n, *row]` float32.
        """
        return sum_duplicates(*self.join_all())

    def restore(
        self,
        ids: np.ndarray,
        rows: np.ndarray,
        n_new: int,
    ) -> None:
        """Has these gradients, and no others.

        Args:
          ids: `[n]`, integers.
          rows: `[n, *row]`.
          n_new: How many have come since those of one id were summed.
        """
        self._ids = [ids]
        self._rows = [rows]
        self.n_new = n_new

    def update(self, count: int) -> None:
        """Updates the table by the accumulated gradients, and starts anew."""
        ids, rows = self.join_all()
        self.table.push(
            ids,
            rows / np.float32(max(count, 1)) if self._gradient == "mean" else rows,
        )
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        self._ids = []
        self._rows = []
        self.n_new = 0

    def dense(self) -> np.ndarray:
        """The sums of all rows' gradients, zeros where there are none, `[n_rows, *row]`."""
        ids, sums = self.sum_by_id()
        result = np.zeros(self.table.shape, sums.dtype)
        result[ids] = sums
        return result

    def join_all(self) -> tuple[np.ndarray, np.ndarray]:
        """All ids and their gradients, float32, in the order of arrival. Waits for the device."""
        row = self.table.shape[1:]
        parts = [
            np.asarray(rows, np.float32)[: len(ids)]
            for ids, rows in zip(self._ids, self._rows, strict=True)
        ]
        flat = [part.reshape(-1, *row) for part in parts]
        ids = np.concatenate(
            [
                np.zeros(
                    0,
                    np.int64,
                ),
                *(ids.reshape(-1) for ids in self._ids),
            ]
        )
        return ids, np.concatenate(
            [
                np.zeros(
                    (0, *row),
                    np.float32,
                ),
                *flat,
            ]
        )
