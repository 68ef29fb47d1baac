"""Parts of a loop's carry known from the elements alone, as the last token is where a decoder is fed with right tokens.

Such a part is no carry: each element reads it of the element before, or takes the loop's initial value. So the host may know it, and products of it
are computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.frontend.batch_rules.waiting_loops import where
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.values import Static


@dataclass(frozen=True, eq=False)
class KnownCarry:
    """A part of a carry known from the elements.

    Args:
      space: The elements' space.
      reverse: Whether the loop goes from the last element to the first.
      init: Its value at the beginning, of each row around.
      after: Its value after each element.
      kind: Its type.
    """

    space: IndexSpace
    reverse: bool
    init: Value
    after: Value
    kind: Any

    def before_each(self, body: Body) -> Value:
        """Its value before each element.

        Args:
          body: The elements.
        """
        return self._read(body, self.init, self._previous, "before")

    def at_end(self, body: Body) -> Value:
        """Its value after the loop.

        Args:
          body: The rows around.
        """
        return self._read(body, self.init, self._last, "at the end")

    def _previous(self, data: Any) -> np.ndarray:
        """`[elements]`: the row of the element before each one; -1 for the first."""
        numbers = self.space.numbers(data)
        own = np.arange(len(numbers))
        if not self.reverse:
            return np.where(numbers > 0, own - 1, -1)
        lengths = self.space.lengths(data)[self.space.parents(data)]
        return np.where(numbers + 1 < lengths, own + 1, -1)

    def _last(self, data: Any) -> np.ndarray:
        """`[rows around]`: the row of the last element; -1 where there is none."""
        lengths = self.space.lengths(data)
        starts = self.space.starts(data)
        return np.where(lengths > 0, starts if self.reverse else starts + lengths - 1, -1)

    def _read(
        self,
        body: Body,
        init: Value,
        row: Callable[[Any], np.ndarray],
        way: str,
    ) -> Value:
        """Reads the value after an element for each row of a space; the initial one where no element is read."""
        is_none = Column(body.space, lambda data: row(data) < 0)
        if is_static(init) and is_static(self.after):
            return Static(self._column(body, init, row))
        read = body.low.value_at(
            self.after,
            self.space,
            body.space,
            row,
            (self, way),
        )
        return where(body, Static(is_none), init, read, self.kind)

    def _column(
        self,
        body: Body,
        init: Value,
        row: Callable[[Any], np.ndarray],
    ) -> Column:
        """The same of values known to the host."""
        host = body.low.host
        first = host.column(init, body.region, self.kind)
        after = host.column(self.after, Region(self.space), self.kind)

        def compute(data: Any) -> np.ndarray:
            found = np.array(first.of(data))
            rows = row(data)
            is_read = rows >= 0
            found[is_read] = after.of(data)[rows[is_read]]
            return found

        return Column(body.space, compute)
