"""Row gradients on their way into one update, as their client sees them: the gradients themselves wait at the servers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from ampjax.errors import TableError

_numbers = itertools.count()


class Pending:
    """One update's row gradients. Made by `Table.aggregate`, used up by `Table.apply`.

    Servers know it by its `number`; `servers` are those that have received something, in `n_pushes` pushes of `nbytes` together.

    Args:
      layout: The table's layout when it was made: what was dealt out for one doesn't fit another.
      drop: Lets the servers forget an update of that number, when nobody holds it any more. Until then, its gradients can be read.
    """

    def __init__(self, layout: Any, drop: Callable[[int], None]):
        self.layout, self.number = layout, next(_numbers)
        self.is_applied = False
        weakref.finalize(self, drop, self.number).atexit = False
        self.servers: set[int] = set()
        self.n_pushes = self.nbytes = 0

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
