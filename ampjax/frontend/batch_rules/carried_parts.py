"""The parts of a loop's carry: arrays, which have a row for each row of the loop's room, and sequences, which have one for each element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.batches.programs_of_rows import Rows, View
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Constant, Elements
from ampjax.jaxprs.primitives import shape_text


@dataclass(frozen=True, eq=False)
class CarriedPart:
    """A part of a carry.

    Args:
      body: Whose rows it has: the loop's room around, of a sequence the room of its elements.
      is_sequence: Whether it is a sequence.
      before: Its rows before the loop.
      line: The user's line.
    """

    body: Body
    is_sequence: bool
    before: Rows
    line: str

    def value(self, rows: Rows) -> Value:
        """Returns rows of the part as a value around the loop.

        Args:
          rows: Rows before the loop, in it or after it.
        """
        space = self.body.space
        view = View(rows, space)
        found: Value = view
        return Elements(space, found) if self.is_sequence else found

    def last(self) -> Rows:
        """Makes the rows of the part after the loop."""
        return Rows(self.before.aval, self.body.bare())

    def inside(self, turn: Body) -> Body:
        """Finds the room in which a turn of the loop computes the part.

        Args:
          turn: The room of the turn.
        """
        if not self.is_sequence:
            return turn
        own = Elements(self.body.space, Constant(0))
        return turn.inside(turn.low.copied(own, turn.space).space)

    def after(
        self,
        room: Body,
        value: Value,
    ) -> Rows:
        """Returns the part after a turn, as rows of a room.

        Args:
          room: The turn's room, as `inside` finds it.
          value: What the turn's function returned.
        """
        kind = self.before.aval
        if not self.is_sequence:
            return room.rows(value, kind)
        assert isinstance(value, Elements)
        return room.rows(
            _one_by_one(
                room,
                value,
                self.line,
            ),
            kind,
        )


def carried_part(
    body: Body,
    value: Value,
    kind: Any,
    line: str,
) -> CarriedPart:
    """Makes a part of a carry from its value before the loop.

    Args:
      body: Where the loop is.
      value: The value before the loop.
      kind: Its type.
      line: The user's line.

    Raises:
      GraphError: If it is a sequence of sequences.
    """
    if not isinstance(value, Elements):
        return CarriedPart(
            body,
            False,
            body.rows(value, kind),
            line,
        )
    own = body.low.copied(value, body.space)
    if isinstance(own.element, Elements):
        fix = "Carry one inner sequence in a `map` over the outer one, or a sum of each."
        raise GraphError(
            line,
            "arrays or sequences of arrays as a carry",
            shape_text(kind),
            fix,
        )
    inner = body.inside(own.space)
    return CarriedPart(
        inner,
        True,
        inner.rows(own.element, element_type(kind)),
        line,
    )


def _one_by_one(
    room: Body,
    value: Elements,
    line: str,
) -> Value:
    """Returns a sequence's elements as values of a room that has the elements of another one, which must be equally long."""
    own = value.space
    space = room.space
    low = room.low
    if own is space:
        return value.element
    low.host.draft.checks.append(
        lambda data: _check_lengths(
            data,
            own,
            space,
            line,
        )
    )
    return low.value_at(
        value.element,
        own,
        space,
        _rows_in(own, space),
        ("one by one", own),
    )


def _rows_in(own: IndexSpace, space: IndexSpace) -> Callable[[Any], np.ndarray]:
    """From the data to the row of one space for each row of another, by the numbers of the elements."""

    def rows(data: Any) -> np.ndarray:
        first = own.starts(data)[space.parents(data)]
        return first + space.numbers(data)

    return rows


def _check_lengths(
    data: Any,
    own: IndexSpace,
    space: IndexSpace,
    line: str,
) -> None:
    """Checks that a carried sequence has the same length after a turn."""
    found = own.lengths(data)
    wanted = space.lengths(data)
    for row in np.flatnonzero(found != wanted)[:1].tolist():
        assert space.parent is not None
        raise DataError(
            f"{line}, instance {space.parent.instances(data)[row]}",
            f"a carried sequence of {wanted[row]} elements after a turn, as before",
            f"{found[row]} elements",
            "Return as many elements as the function is given.",
        )
