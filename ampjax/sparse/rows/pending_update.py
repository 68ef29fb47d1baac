"""Row gradients on their way into one update, as their client sees them: the gradients themselves wait at the servers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from ampjax.errors import TableError
from ampjax.sparse.servers.server import Key

_numbers = itertools.count()


class Pending:
    """One update's row gradients. Made by `Table.aggregate`, used up by `Table.apply`.

    Servers know it by its `number`; `servers` are those that have received something, in `n_pushes` pushes of `nbytes` together.

    Args:
      key: The table as it was split when this was made: there its gradients wait.
      layout: The rows and partitions of that split.
      drop: Lets the servers forget an update of that number, when nobody holds it any more. Until then, its gradients can be read.
    """

    def __init__(self, key: Key, layout: Any, drop: Callable[[int], None]):
        self._key, self._layout, self.number = key, layout, next(_numbers)
        self.is_applied = False
        weakref.finalize(self, drop, self.number).atexit = False
        self.servers: set[int] = set()
        self.n_pushes = self.nbytes = 0

    def check(self, key: Key, layout: Any) -> None:
        """Whether it may be applied.

        Args:
          key: The table as it is split now.
          layout: Its rows and partitions.

        Raises:
          TableError: If it has been, it is another table's, or the table was split anew since.
        """
        if self.is_applied:
            raise TableError(
                "apply", "gradients that were not applied before", "a second call", "Aggregate anew for each update."
            )
        if self._key.table != key.table:
            raise TableError(
                "apply", "gradients that this table has aggregated", "another table's", "Apply them to that table."
            )
        if self._key != key:
            raise TableError(
                "apply",
                f"gradients for {layout}, as it is split now",
                f"those for an earlier split, {self._layout}",
                "Aggregate after `resplit`, not before.",
            )
