"""The parts of a loop's carry: arrays, which have a row for each row of the loop's room, and sequences, which have one for each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.batches.programs_of_rows import ChangedRows, Rows, Run, View, as_typed
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import RowLowering, Value
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.payload_types import is_key
from ampjax.frontend.draft.values import Constant, Elements
from ampjax.frontend.loops.changed_rows import changed_rows, set_rows
from ampjax.frontend.loops.masked_rows import rows_where
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

    def _inside(self, turn: Body) -> Body:
        """Finds the room in which a turn of the loop computes the part."""
        low = turn.low
        for number, space in enumerate(self.spaces):
            own = Elements(low.original(space) if number else space, Constant(0))
            turn = turn.inside(low.copied(own, turn.space).space)
        return turn

    def after(
        self,
        turn: Body,
        value: Value,
        before: Rows,
    ) -> Rows:
        """Returns the part after a turn; rows that the turn leaves out stay as before.

        Args:
          turn: The room of the turn, with a mask.
          value: What the turn's function returned.
          before: The part before the turn.
        """
        changed = self._changed_in_place(turn, value, before)
        if changed is not None:
            return changed
        room = self._inside(turn)
        mask = room.room.mask
        assert mask is not None
        new = self._rows(room, value)
        out = Rows(before.aval, before.room)

        def compute(run: Run) -> list[Any]:
            values = as_typed(run.get(new), before.aval)
            return [rows_where(run.get(mask), values, run.get(before))]

        turn.block.add([out], compute)
        return out

    def _changed_in_place(
        self,
        turn: Body,
        value: Value,
        before: Rows,
    ) -> Rows | None:
        """The part after a turn that has changed single elements, or none; None for other turns."""
        source = turn.low.contiguous(value) if isinstance(value, Elements) else None
        if source is None:
            return None
        first = source.rows
        if isinstance(first, ChangedRows):
            first = first.first(lambda rows: rows is not before)
        return source.rows if first is before else None

    def _rows(self, room: Body, value: Value) -> Rows:
        """The part after a turn, as rows of the turn's room."""
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


def own_elements(body: Body, xs: Elements) -> View | None:
    """Finds the array with each row's own copy of a sequence, as a round of a loop or a branch has one; None elsewhere.

    Args:
      body: The rows.
      xs: The sequence that each row sees.
    """
    source = body.low.contiguous(xs)
    if source is None or is_key(source.rows.aval):
        return None
    room = source.rows.room
    assert room is not None
    frame = body.room.frame
    if room.place == (frame, xs.space):
        return source if body.room.mask is not None else None
    if frame.outer is None or room.place != (frame.outer, frame.alongside(xs.space)):
        return None
    return source


def changed_in_place(
    body: Body,
    xs: Elements,
    own: View,
    changes: Callable[[Run], tuple[Any, Sequence[Any]]],
    change: Callable[..., Any] | None,
) -> Value:
    """Changes some elements of each row's own sequence, in as much time as these elements take, however many others there are.

    Args:
      body: The rows.
      xs: The sequences.
      own: Their elements, as `own_elements` finds them.
      changes: From the run to the numbers of the elements, `[rows, n]`, of which those that a sequence lacks change nothing, and to values of
        each, `[rows, n, ...]`.
      change: From an element and its values to the new element; None for the last of the values itself.
    """
    low = body.low
    assert own.rows.room is not None
    starts = body.starts(own.rows.room.place)
    sizes = body.lengths(xs.space)
    mask = body.room.mask
    out = ChangedRows(own.rows.aval, own.rows.room, own.rows)

    def compute(run: Run) -> list[Any]:
        every = run.get(own.rows)
        number, values = changes(run)
        counts = run.slots[body.room.there] if mask is None else run.get(mask)
        is_there = counts[:, None] & (number >= 0) & (number < run.get(sizes)[:, None])
        rows = run.slots[starts][:, None] + number
        # dropped rows have numbers of their own, as no two may be equal
        beyond = len(every) + jnp.arange(number.size)
        at = jnp.where(is_there.ravel(), rows.ravel(), beyond)
        flat = [x.reshape(-1, *x.shape[2:]) for x in values]
        if change is None:
            return [set_rows(every, at, as_typed(flat[-1], own.rows.aval))]
        return [changed_rows(change, every, at, flat)]

    body.block.add([out], compute)
    changed: Value = View(out, own.space)
    return low.copied(Elements(own.space, changed), body.space)


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
