"""A parameter server: some partitions, and what has gone over its wire.

Stands for one machine of Parallax's parameter servers. What it is given has travelled; what it gives will travel: it counts
both, and its clients count the same at their end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ampjax.sparse.partition import Partition

Columns = tuple[int, int] | None
"""From and to where along the last axis of rows; None for whole rows."""


def cut(rows: np.ndarray, columns: Columns) -> np.ndarray:
    """Some columns of rows, a view."""
    return rows if columns is None else rows[..., slice(*columns)]


@dataclass
class Traffic:
    """Bytes between one server and its clients, as one end counts them.

    Args:
      pulled: Rows from the server.
      pushed: Row gradients to the server.
      indices: Row ids, in either kind of call.
    """

    pulled: int = 0
    pushed: int = 0
    indices: int = 0

    def add(self, row_ids: np.ndarray, *, pulled: np.ndarray | None = None, pushed: np.ndarray | None = None) -> None:
        """Counts row ids, and the rows that went one way or the other."""
        self.indices += row_ids.nbytes
        self.pulled += 0 if pulled is None else pulled.nbytes
        self.pushed += 0 if pushed is None else pushed.nbytes

    def copy(self) -> Traffic:
        """The counts as they are now."""
        return replace(self)


class Server:
    """Answers for the partitions that are on it, and counts."""

    def __init__(self):
        self.traffic = Traffic()

    def pull(
        self, partition: Partition, local: np.ndarray, wire_dtype: np.dtype, columns: Columns = None
    ) -> np.ndarray:
        """Rows of a partition, or some columns of them, in the dtype in which they will travel: a fresh array."""
        # `take` is twice as fast as indexing, and would copy the whole partition were that cut before.
        rows = cut(np.take(partition.arrays[0], local, 0, mode="clip"), columns).astype(wire_dtype, copy=False)
        self.traffic.add(local, pulled=rows)
        return rows

    def receive(
        self, local: np.ndarray, grads: np.ndarray, row: tuple[int, ...], columns: Columns = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One client's row gradients for a partition: whole rows again, zero where nothing came."""
        self.traffic.add(local, pushed=grads)
        if columns is None:
            return local, grads
        whole = np.zeros((len(grads), *row), grads.dtype)
        cut(whole, columns)[:] = grads
        return local, whole

    def send(self, local: np.ndarray, grads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row gradients that a partition has gathered."""
        self.traffic.add(local, pulled=grads)
        return local, grads
