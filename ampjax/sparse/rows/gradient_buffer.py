"""Row gradients that a server has received for one update, from one client or several."""

from __future__ import annotations

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.optim.row_sums import sum_duplicates
from ampjax.sparse.rows.partition_layout import PartitionLayout
from ampjax.sparse.rows.row_gradients import check_finite

Rows = tuple[np.ndarray, np.ndarray]
"""A partition's rows, `[n]`, and their gradients, `[n, *row]`."""


class GradientBuffer:
    """One update's row gradients, partition by partition.

    Args:
      types: The types of rows: gradients are applied in their dtype, and sums that are not finite are refused or not.
      layout: The table's rows and partitions.
    """

    def __init__(self, types: RowTypes, layout: PartitionLayout):
        self._types = types
        self._layout = layout
        self._received: dict[int, dict[int, Rows]] = {}
        self._clients: set[tuple[int, int]] = set()

    def add(
        self,
        partition: int,
        local: np.ndarray,
        grads: np.ndarray,
        client: int | None = None,
    ) -> None:
        """Adds one client's gradients for a partition. The sum follows the order of clients, whatever the order of arrival.

        Args:
          partition: The partition's number.
          local: `[n]`, rows by their numbers in the partition, each once.
          grads: `[n, *row]`, in the wire's dtype.
          client: The client's number, from 0: what the same one sends again is not added. None for the next number.
        """
        parts = self._received.setdefault(partition, {})
        if client is None:
            number = 1 + max(parts, default=-1)
        else:
            number = client
        if client is not None and (partition, client) in self._clients:
            return
        self._clients.add((partition, number))
        parts[number] = local, grads

    @property
    def n_clients(self) -> int:
        """The number of clients that have sent gradients."""
        return len({client for _, client in self._clients})

    def rows(self) -> dict[int, Rows]:
        """Sums the clients' gradients.

        Returns:
          By touched partition its rows, each once in rising order, and the sums of their gradients, in the table's dtype.

        Raises:
          TableError: If a sum has overflowed.
        """
        dtype = self._types.dtype
        for partition, by_client in self._received.items():
            parts = [part for _, part in sorted(by_client.items())]
            if len(parts) > 1 or not np.can_cast(
                parts[0][1].dtype,
                dtype,
            ):
                local, grads = sum_duplicates(
                    *(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                )
                with np.errstate(
                    over="ignore"
                ):  # what is too large becomes infinite, and is refused
                    grads = grads.astype(dtype, copy=False)
                if self._types.check_finite:
                    check_finite(
                        grads,
                        self._layout.row_ids(partition, local),
                        "apply, gradients",
                        self._types.row_name,
                    )
                self._received[partition] = {max(by_client): (local, grads)}
        return {
            partition: next(iter(parts.values()))
            for partition, parts in sorted(self._received.items())
        }
