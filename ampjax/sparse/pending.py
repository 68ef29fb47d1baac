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
    """

    def __init__(self, layout: Any):
        self.layout = layout
        self.is_applied = False
        self._received: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def add(self, partition: int, local: np.ndarray, grads: np.ndarray) -> None:
        """Adds one client's gradients for a partition."""
        self._received.setdefault(partition, []).append((local, grads))

    def rows(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """For each touched partition its rows, each once in rising order, and the sums of their gradients.

        Raises:
          TableError: If a sum has overflowed.
        """
        for partition, parts in self._received.items():
            if len(parts) > 1:
                local, grads = merge(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
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
