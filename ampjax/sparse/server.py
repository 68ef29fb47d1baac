"""A parameter server: some partitions, and what has gone over its wire.

Stands for one machine of Parallax's parameter servers. What it is given has travelled; what it gives will travel: it counts
both, and its clients count the same at their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ampjax.sparse.history import History
from ampjax.sparse.partition import Partition


@dataclass
class Traffic:
    """Bytes between one server and its clients.

    Args:
      pulled: Rows from the server.
      pushed: Row gradients to the server.
      indices: Row ids, in either kind of call.
    """

    pulled: int = 0
    pushed: int = 0
    indices: int = 0

    def copy(self) -> Traffic:
        """The counts as they are now."""
        return replace(self)


class Server:
    """Answers for its partitions.

    Args:
      partitions: The partitions, by number.
      wire_dtype: The dtype of rows and gradients while they travel.
      traffic: The counts to go on with.
    """

    def __init__(self, partitions: Mapping[int, Partition], wire_dtype: np.dtype, traffic: Traffic):
        self.partitions = dict(partitions)
        self.wire_dtype = wire_dtype
        self.traffic = traffic

    def pull(self, partition: int, local: np.ndarray, history: History) -> np.ndarray:
        """Rows of a partition, caught up where that is kept, in the wire's dtype: a fresh array."""
        part = self.partitions[partition]
        part.catch_up(history, local)
        rows = part.read(local).astype(self.wire_dtype, copy=False)
        self.traffic.indices += local.nbytes
        self.traffic.pulled += rows.nbytes
        return rows

    def receive(self, local: np.ndarray, grads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One client's row gradients for a partition, counted."""
        self.traffic.indices += local.nbytes
        self.traffic.pushed += grads.nbytes
        return local, grads
