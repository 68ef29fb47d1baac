"""The parts of a loop's carry: arrays, which have a row for each row of the loop's room, and sequences, which have one for each element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.batches.programs_of_rows import Rows, View
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import RowLowering, Value
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Constant, Elements
from ampjax.jaxprs.primitives import shape_text


@dataclass(frozen=True, eq=False)
class CarriedPart:
    """A part of a carry.

    Args:
      body: Whose rows it has: the loop's room around, of a sequence the room of its elements, of a sequence of sequences the innermost ones.
      before: Its rows before the loop.
      line: The user's line.
      spaces: The spaces of a sequence, from the outside.
    """

    body: Body
    before: Rows
    line: str
    spaces: tuple[IndexSpace, ...] = ()

    @property
    def is_sequence(self) -> bool:
        """Whether the part is a sequence."""
        return bool(self.spaces)

    def value(self, rows: Rows) -> Value:
        """Returns rows of the part as a value around the loop.

        Args:
          rows: Rows before the loop, in it or after it.
        """
        view = View(rows, self.body.space)
        found: Value = view
        for space in reversed(self.spaces):
            found = Elements(space, found)
        return found

    def last(self) -> Rows:
        """Makes the rows of the part after the loop."""
        return Rows(self.before.aval, self.body.bare())

    def inside(self, turn: Body) -> Body:
        """Finds the room in which a turn of the loop computes the part.

        Args:
          turn: The room of the turn.
        """
        low = turn.low
        for number, space in enumerate(self.spaces):
            own = Elements(low.original(space) if number else space, Constant(0))
            turn = turn.inside(low.copied(own, turn.space).space)
        return turn

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
        for space in _spaces_around(room.space, len(self.spaces)):
            assert isinstance(value, Elements)
            value = _one_by_one(
                room.low,
                space,
                value,
                self.line,
            )
        return room.rows(value, self.before.aval)


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
      GraphError: If it is a sequence of sequences of lengths of their own.
    """
    spaces = []
    around = body.space.around()
    whole = kind
    while isinstance(value, Elements):
        own = body.low.copied(value, body.space)
        original = body.low.original(own.space)
        if spaces and (original is own.space or original.parent not in around):
            fix = "Carry one inner sequence in a `map` over the outer one, or a sum of each."
            raise GraphError(
                line,
                "arrays, sequences of arrays or matrices of pairs as a carry",
                shape_text(whole),
                fix,
            )
        spaces.append(own.space)
        body = body.inside(own.space)
        value = own.element
        kind = element_type(kind)
    return CarriedPart(
        body,
        body.rows(value, kind),
        line,
        tuple(spaces),
    )


def _spaces_around(space: IndexSpace, n: int) -> list[IndexSpace]:
    """Lists so many spaces, from the outside, of which the last is given."""
    found = []
    for _ in range(n):
        found.append(space)
        assert space.parent is not None
        space = space.parent
    return found[::-1]


def _one_by_one(
    low: RowLowering,
    space: IndexSpace,
    value: Elements,
    line: str,
) -> Value:
    """Returns a sequence's elements as values of a space that has the elements of another one, which must be equally long."""
    own = value.space
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
