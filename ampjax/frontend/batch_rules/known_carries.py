"""Parts of a loop's carry known from the elements alone, as the last token is where a decoder is fed with right tokens.

Such a part is no carry: each element reads it of the element before, or takes the loop's initial value. So the host may know it, and products of it
are computed before the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.frontend.batch_rules.waiting_loops import where
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.row_origins import Origin, last_row, row_before
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
        return self._read(body, row_before(self.space, self.reverse), "before")

    def at_end(self, body: Body) -> Value:
        """Its value after the loop.

        Args:
          body: The rows around.
        """
        return self._read(body, last_row(self.space, self.reverse), "at the end")

    def _read(
        self,
        body: Body,
        row: Origin,
        way: str,
    ) -> Value:
        """Reads the value after an element for each row of a space; the initial one where no element is read."""
        if is_static(self.init) and is_static(self.after):
            return Static(self._column(body, row))
        is_none = Column(body.space, lambda data: row(data) < 0)
        read = body.low.value_at(
            self.after,
            self.space,
            body.space,
            row,
            (self, way),
        )
        return where(body, Static(is_none), self.init, read, self.kind)

    def _column(
        self,
        body: Body,
        row: Origin,
    ) -> Column:
        """The same of values known to the host."""
        host = body.low.host
        first = host.column(self.init, body.region, self.kind)
        after = host.column(self.after, Region(self.space), self.kind)

        def compute(data: Any) -> np.ndarray:
            found = np.array(first.of(data))
            rows = row(data)
            is_read = rows >= 0
            found[is_read] = after.of(data)[rows[is_read]]
            return found

        return Column(body.space, compute)
