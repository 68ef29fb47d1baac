"""Row gradients on their way into one update: what each partition has received, from one client or several."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.errors import TableError
from ampjax.sparse.rowgrads import check_finite, merge


class Pending:
    """One update's row gradients, partition by partition. Made by `Table.aggregate`, used up by `Table.apply`.

    Args:
      layout: The table's layout when it was made: what was dealt out for one doesn't fit another.
      dtype: The table's dtype, in which gradients are applied.
    """

    def __init__(self, layout: Any, dtype: np.dtype):
        self.layout, self._dtype = layout, dtype
        self.is_applied = False
        self._received: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def add(self, partition: int, local: np.ndarray, grads: np.ndarray) -> None:
        """Adds one client's gradients for a partition."""
        self._received.setdefault(partition, []).append((local, grads))

    def rows(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """For each touched partition its rows, each once in rising order, and the sums of their gradients, which the table's dtype holds.

        Raises:
          TableError: If a sum has overflowed.
        """
        for partition, parts in self._received.items():
            if len(parts) > 1 or not np.can_cast(parts[0][1].dtype, self._dtype):
                local, grads = merge(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
                with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
                    grads = grads.astype(self._dtype, copy=False)
                self._received[partition] = [(local, check_finite(grads, "apply, gradients"))]
        return {partition: parts[0] for partition, parts in sorted(self._received.items())}

    def check(self, layout: Any) -> None:
        """Whether it may be applied.

        Raises:
          TableError: If it has been, or the table was split anew since.
        """
        if self.is_applied:
            raise TableError(
                "apply", "gradients that were not applied before", "a second call", "Aggregate anew for each update."
            )
        if self.layout != layout:
            raise TableError(
                "apply",
                f"gradients for {self.layout}",
                f"a table of {layout}",
                "Aggregate after `resplit`, not before.",
            )
