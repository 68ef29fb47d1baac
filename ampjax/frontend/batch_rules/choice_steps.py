"""Rules that turn choices into steps.

Where the example chooses, the host parts the rows: each branch has a space of its own, of those rows that choose it, and results are put
together by one read. Where a computed value chooses, a mask does; each branch then has all rows, of which those count that choose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.level_loops import as_column
from ampjax.frontend.batches.programs_of_rows import (
    Rows,
    Run,
    View,
    as_typed,
    taken,
)
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.batches.row_tables import RowTables
from ampjax.frontend.combinators.branches import SWITCH
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.row_origins import rows_at
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.loops.masked_rows import rows_where


@STEP_RULES.of(SWITCH)
def switch(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Runs each branch on the rows that choose the branch."""
    n_closed = sum(call.n_closed)
    index = operands[n_closed]
    shared = operands[n_closed + 1 :]
    given = call.inputs(operands, shared)
    if isinstance(index, Constant):
        return body.run(
            call.functions[int(index.value)],
            given[int(index.value)],
        )
    if isinstance(index, Static):
        return run_parts(body, call, index.column, given)
    return _choose_by_mask(body, call, index, given)


def run_parts(
    body: Body,
    call: Call,
    index: Column,
    given: Sequence[Sequence[Value]],
) -> list[Value]:
    """Functions of which the example chooses one for each row.

    Args:
      body: Where.
      call: The combinator, which has the functions.
      index: For each row the number of its function.
      given: What the variables of each function are.
    """
    column = index.inside(body.space)
    parts: list[Body] = []
    results: list[list[Value]] = []
    for number, (function, values) in enumerate(zip(call.functions, given, strict=True)):
        part = body.inside(body.space.part(column, number))
        parts.append(part)
        results.append(
            part.guarded(
                part.room,
                lambda inside, f=function, v=values: inside.run(f, v),
            )
        )
    merged = _Parts(body, column, parts, call)
    result = []
    for i, kind in enumerate(call.results):
        result.append(merged.value([each[i] for each in results], kind))
    return result


class _Parts:
    """The rows of a space, parted by the choice of the example.

    Args:
      body: Where.
      index: Which part each row belongs to.
      parts: The parts.
      call: The combinator.
    """

    def __init__(
        self,
        body: Body,
        index: Column,
        parts: Sequence[Body],
        call: Call,
    ):
        self._body = body
        self._index = index
        self._parts = parts
        self._call = call

    def value(self, values: Sequence[Value], kind: Any) -> Value:
        """Results of the parts as one value."""
        spaces = [part.space for part in self._parts]

        def row_in(number: int) -> Any:
            return lambda data: spaces[number].first_rows(data)

        choose = lambda data: self._index.of(data)
        return self._together(
            self._body,
            self._parts,
            values,
            kind,
            choose,
            [row_in(i) for i in range(len(spaces))],
        )

    def _together(
        self,
        body: Body,
        parts: Sequence[Body],
        values: Sequence[Value],
        kind: Any,
        choose: Any,
        rows_in: Sequence[Any],
    ) -> Value:
        """Values of parts' spaces in one space.

        Args:
          body: The one space.
          parts: The parts' spaces.
          values: The values.
          kind: Their type.
          choose: From the data to each row's part.
          rows_in: For each part, from the data to the row that each row has there.
        """
        if any(isinstance(value, Elements) for value in values):
            return self._sequences(body, parts, values, kind, choose, rows_in)
        if all(map(is_static, values)):
            columns = []
            for p, v in zip(parts, values, strict=True):
                columns.append(as_column(p, v, kind).column)
            return Static(
                Column(
                    body.space,
                    lambda data: _merge_columns(data, columns, choose(data), rows_in),
                )
            )
        own = []
        for part, value in zip(parts, values, strict=True):
            own.append(part.rows(value, kind))
        places = [part.room.place for part in parts]
        frame = body.room.frame
        space = body.space

        def make(tables: RowTables) -> np.ndarray:
            which = tables.column(frame, space, choose(tables.data))
            at = np.zeros(which.shape, np.int32)
            first = 0
            for number, (place, rows) in enumerate(zip(places, rows_in, strict=True)):
                there = tables.reads(place, (frame, space), rows)
                at = np.where(which == number, first + there, at)
                first += tables.span(place, frame)
            return at.astype(np.int32)

        slot = body.low.slot(("parts", *own), frame, make)
        out = Rows(kind, body.bare())

        def compute(run: Run) -> list[Any]:
            every = [as_typed(run.get(rows), kind) for rows in own]
            return [taken(jnp.concatenate(every), run.slots[slot])]

        body.block.add([out], compute)
        return View(out, body.space)

    def _sequences(
        self,
        body: Body,
        parts: Sequence[Body],
        values: Sequence[Value],
        kind: Any,
        choose: Any,
        rows_in: Sequence[Any],
    ) -> Value:
        """Sequences of the parts as one: of the same elements, if all are copies of one sequence's."""
        low = body.low
        outer = body.space
        inner = [value.space for value in values if isinstance(value, Elements)]
        originals = {low.original(space) for space in inner}
        if len(originals) == 1:
            known = low.copy_space(originals.pop(), outer)
        else:
            known = None

        def sizes(data: Any) -> np.ndarray:
            return _merge_columns(
                data,
                [Column(p.space, s.lengths) for p, s in zip(parts, inner, strict=True)],
                choose(data),
                rows_in,
            )

        space = known or IndexSpace(outer, inner[0].dimension, Column(outer, sizes))
        low.host.lengths.setdefault(
            space.dimension,
            Column(outer, space.lengths),
        )

        def choose_inside(data: Any) -> np.ndarray:
            return choose(data)[space.parents(data)]

        def row_inside(number: int) -> Any:
            own = inner[number]
            rows = rows_in[number]

            def find(data: Any) -> np.ndarray:
                around = rows(data)[space.parents(data)]
                first = rows_at(own.starts(data), around)
                return np.where(around < 0, -1, first + space.numbers(data))

            return find

        bodies = []
        for part, s in zip(parts, inner, strict=True):
            bodies.append(part.inside(s))
        elements = [value.element for value in values if isinstance(value, Elements)]
        rows = [row_inside(i) for i in range(len(inner))]
        element = self._together(
            body.inside(space), bodies, elements, element_type(kind), choose_inside, rows
        )
        return Elements(space, element)


def _choose_by_mask(
    body: Body,
    call: Call,
    index: Value,
    given: Sequence[Sequence[Value]],
) -> list[Value]:
    """Functions of which a computed value chooses one for each row."""
    low = body.low
    room = body.room
    which = body.rows(index, jax.ShapeDtypeStruct((), np.int32))
    rooms: list[Body] = []
    results: list[list[Value]] = []
    for number, (function, values) in enumerate(zip(call.functions, given, strict=True)):
        mask = mask_rows(
            body,
            lambda run, n=number: run.get(which) == n,
        )
        part = body.at(low.room(room.frame, room.space, mask, False))
        rooms.append(part)
        results.append(
            part.guarded(
                part.room,
                lambda inside, f=function, v=values: inside.run(f, v),
            )
        )
    result = []
    for i, kind in enumerate(call.results):
        result.append(
            chosen_by_value(
                body,
                rooms,
                which,
                [each[i] for each in results],
                kind,
                call.line,
            )
        )
    return result


def mask_rows(body: Body, holds: Any) -> Rows:
    """Makes a mask of the rows of a room for which a condition holds.

    Args:
      body: The room.
      holds: From the run to truth values, `[rows]`.
    """
    plain = body.bare()
    mask = Rows(jax.ShapeDtypeStruct((), np.bool_), plain)
    outer = body.room.mask

    def compute(run: Run) -> list[Any]:
        around = run.slots[plain.there] if outer is None else run.get(outer)
        return [jnp.asarray(around) & holds(run)]

    body.block.add([mask], compute)
    return mask


def chosen_by_value(
    body: Body,
    rooms: Sequence[Body],
    which: Rows,
    values: Sequence[Value],
    kind: Any,
    line: str,
) -> Value:
    """One of several values for each row.

    Args:
      body: Where.
      rooms: The rooms in which the values are.
      which: The number of each row's value.
      values: The values.
      kind: Their type.
      line: The user's line.
    """
    if any(isinstance(value, Elements) for value in values):
        spaces = {value.space for value in values if isinstance(value, Elements)}
        if len(spaces) > 1:
            fix = "Let each branch return a sequence over the same elements, or reduce it in the branch."
            raise GraphError(
                line, "sequences with the same elements, whatever is chosen", "different ones", fix
            )
        space = spaces.pop()
        inner = body.inside(space)
        parents = body.parents(space)
        each = Rows(which.aval, inner.bare())
        body.block.add(
            [each],
            lambda run: [jnp.append(run.get(which), 0)[run.slots[parents]]],
        )
        elements = [value.element for value in values if isinstance(value, Elements)]
        bodies = [room.inside(space) for room in rooms]
        found = chosen_by_value(inner, bodies, each, elements, element_type(kind), line)
        return Elements(space, found)
    own = []
    for room, value in zip(rooms, values, strict=True):
        own.append(room.rows(value, kind))
    out = Rows(kind, body.bare())

    def compute(run: Run) -> list[Any]:
        cases = [as_typed(run.get(rows), kind) for rows in own]
        choice = run.get(which)
        found = cases[0]
        for number, case in enumerate(cases[1:], 1):
            found = rows_where(choice == number, case, found)
        return [found]

    body.block.add([out], compute)
    return View(out, body.space)


def _merge_columns(
    data: Any,
    columns: Sequence[Column],
    which: np.ndarray,
    rows_in: Sequence[Any],
) -> np.ndarray:
    """Merges the columns of a space's parts to one column of the space."""
    values = [column.of(data) for column in columns]
    found = np.zeros(
        (len(which), *values[0].shape[1:]),
        values[0].dtype,
    )
    for number, (own, rows) in enumerate(zip(values, rows_in, strict=True)):
        at = np.flatnonzero(which == number)
        if len(at):
            found[at] = own[rows(data)[at]]
    return found
