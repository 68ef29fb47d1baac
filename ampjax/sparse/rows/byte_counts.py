"""Bytes between a table's clients and its servers, counted at both ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

Columns = tuple[int, int] | None
"""From and to where along the last axis of rows; None for whole rows."""


def cut(rows: np.ndarray, columns: Columns) -> np.ndarray:
    """Some columns of rows, a view.

    Args:
      rows: `[n, *row]`.
      columns: Which columns of the last axis; None for all.

    Returns:
      A view of `rows`.
    """
    if columns is None:
        return rows
    return rows[..., slice(*columns)]


@dataclass
class ByteCounts:
    """Bytes between one server and its clients, counted at one end.

    Args:
      pulled: Rows from the server.
      pushed: Row gradients to the server.
      indices: Row ids, in either kind of call.
    """

    pulled: int = 0
    pushed: int = 0
    indices: int = 0

    def add(
        self,
        row_ids: np.ndarray,
        *,
        pulled: np.ndarray | None = None,
        pushed: np.ndarray | None = None,
    ) -> None:
        """Counts row ids, and the rows that went one way or the other.

        Args:
          row_ids: `[n]`, the ids that have travelled.
          pulled: Rows that the server has sent; None if there are none.
          pushed: Row gradients that the server has received; None if there are none.
        """
        self.indices += row_ids.nbytes
        self.pulled += 0 if pulled is None else pulled.nbytes
        self.pushed += 0 if pushed is None else pushed.nbytes

    def __iadd__(self, other: ByteCounts) -> ByteCounts:
        self.pulled = self.pulled + other.pulled
        self.pushed = self.pushed + other.pushed
        self.indices = self.indices + other.indices
        return self

    def __sub__(self, earlier: ByteCounts) -> ByteCounts:
        return ByteCounts(
            self.pulled - earlier.pulled,
            self.pushed - earlier.pushed,
            self.indices - earlier.indices,
        )

    def copy(self) -> ByteCounts:
        """Copies the present counts."""
        return replace(self)
