"""Values of several index spaces as values of one: the host knows the space of each row's value; arrays as sequences, and matrices of pairs the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, taken
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import element_type, is_known_length, long_axis
from ampjax.frontend.draft.payload_types import raw_type
from ampjax.frontend.draft.row_origins import Origin, RowOrigin
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.loops.masked_rows import along


def merge_values(
    inner: Body,
    parts: Sequence[tuple[Value, IndexSpace, Origin]],
    which: Column,
    kind: Any,
) -> Value:
    """For each row a value of one of several spaces.

    Args:
      inner: The rows.
      parts: Values, the spaces that have them, and for each row the row there.
      which: Which of them each row has.
      kind: The type.
    """
    low = inner.low
    space = inner.space
    if len(parts) == 1:
        ((value, outer, origin),) = parts
        return low.value_at(
            value,
            outer,
            space,
            origin,
            ("only", which),
        )
    values = []
    for number, (value, outer, origin) in enumerate(parts):
        values.append(
            low.value_at(
                value,
                outer,
                space,
                origin,
                ("part", which, number),
            )
        )
    if any(
        isinstance(
            value,
            Elements,
        )
        for value in values
    ):
        return _merged_sequences(inner, values, which, kind)
    if all(is_static(value) for value in values):
        columns = [
            low.host.column(
                value,
                inner.region,
                kind,
            )
            for value in values
        ]

        def selected(data: Any) -> np.ndarray:
            result = columns[0].of(data).copy()
            for number, column in enumerate(
                columns[1:],
                1,
            ):
                own = which.of(data) == number
                result[own] = column.of(data)[own]
            return result

        return Static(Column(space, selected))
    rows = [
        inner.rows(
            value,
            kind,
        )
        for value in values
    ]
    choice = inner.rows(
        Static(which),
        jax.ShapeDtypeStruct(
            (),
            np.int32,
        ),
    )
    out = Rows(kind, inner.room)

    def compute(run: Run) -> list[Any]:
        result = run.get(rows[0])
        own = along(
            run.get(choice),
            result,
        )
        for number, each in enumerate(
            rows[1:],
            1,
        ):
            result = jnp.where(
                own == number,
                run.get(each),
                result,
            )
        return [result]

    inner.block.add(
        [out],
        compute,
    )
    return View(out, space)


def _merged_sequences(
    inner: Body,
    values: Sequence[Any],
    which: Column,
    kind: Any,
) -> Elements:
    """For each row one of several sequences that each row has."""
    low = inner.low
    spaces = [value.space for value in values]

    def sizes(data: Any) -> np.ndarray:
        every = np.stack([space.lengths(data) for space in spaces])
        return np.take_along_axis(
            every,
            which.of(data)[None].astype(np.int64),
            0,
        )[0]

    key = ("merged", *spaces, which)
    space = low.host.once(
        key,
        lambda: IndexSpace(
            inner.space,
            spaces[0].dimension,
            Column(inner.space, sizes),
        ),
    )
    chosen = which.inside(space)

    def origin(own: IndexSpace) -> Origin:
        return lambda data: own.starts(data)[space.parents(data)] + space.numbers(data)

    parts = []
    for value in values:
        parts.append((value.element, value.space, origin(value.space)))
    return Elements(
        space,
        merge_values(
            inner.inside(space),
            parts,
            chosen,
            element_type(kind),
        ),
    )


def of_array(body: Body, value: Value, kind: Any) -> Elements:
    """An array of each row as a sequence, all of one length.

    Args:
      body: The rows.
      value: Their arrays.
      kind: The arrays' type.
    """
    low = body.low
    around = body.space
    n = kind.shape[0]
    space = low.host.once(
        ("array", around, n),
        lambda: IndexSpace(
            around,
            f"array{n}",
            Column(
                around,
                lambda data: np.full(
                    around.n_rows(data),
                    n,
                ),
            ),
        ),
    )
    if is_static(value):
        column = low.host.column(
            value,
            body.region,
            kind,
        )
        raw = raw_type(element_type(kind)).shape
        return Elements(
            space,
            Static(
                Column(
                    space,
                    lambda data: column.of(data).reshape(
                        -1,
                        *raw,
                    ),
                )
            ),
        )
    rows = body.rows(value, kind)
    frame = body.room.frame
    inner = low.room(frame, space)
    around_rows = low.reads(
        (frame, around),
        inner.place,
        space.parents,
        "array",
    )
    numbers = low.slot(
        ("numbers in an array", space),
        frame,
        lambda tables: tables.column(
            frame,
            space,
            space.numbers(tables.data).astype(np.int32),
        ),
    )
    out = Rows(element_type(kind), inner)

    def compute(run: Run) -> list[Any]:
        every = run.get(rows)
        at = run.slots[around_rows] * n + run.slots[numbers]
        return [
            taken(
                every.reshape(
                    -1,
                    *every.shape[2:],
                ),
                at,
            )
        ]

    body.block.add(
        [out],
        compute,
    )
    found: Value = View(out, space)
    return Elements(space, found)


def turned(
    body: Body,
    values: Sequence[Value],
    kinds: Sequence[Any],
    axes: Sequence[int | None],
) -> list[Value] | None:
    """Values with the elements of given axes; None where an axis has no elements of its own.

    Args:
      body: Where.
      values: The values.
      kinds: Their types.
      axes: For each value the axis, or None where it does not matter.
    """
    found: list[Value] = []
    for value, kind, axis in zip(
        values,
        kinds,
        axes,
        strict=True,
    ):
        if axis is None or axis == long_axis(kind):
            found.append(value)
            continue
        long = [number for number, size in enumerate(kind.shape) if not is_known_length(size)]
        other = (
            _other_way_round(
                body,
                value,
            )
            if long[1:2] == [axis]
            else None
        )
        if other is None:
            return None
        found.append(other)
    return found


def _other_way_round(body: Body, value: Value) -> Elements | None:
    """A sequence of sequences with both in the other order; None where the inner ones are not the same sequence for all elements."""
    if not isinstance(value, Elements) or not isinstance(
        value.element,
        Elements,
    ):
        return None
    low = body.low
    rows = value.element.space
    original = low.original(rows)
    if original is rows or original.parent not in body.space.around():
        return None
    outer = low.copied(
        Elements(original, Constant(0)),
        body.space,
    ).space
    inner = low.copied(
        Elements(value.space, Constant(0)),
        outer,
    ).space
    first = value.space

    def every(data: Any) -> np.ndarray:
        return some(
            data,
            np.arange(inner.n_rows(data)),
        )

    def some(data: Any, at: np.ndarray) -> np.ndarray:
        column = inner.parents_of(data, at)
        number = at - inner.starts(data)[column]
        row = first.starts(data)[outer.parents(data)[column]] + number
        return rows.starts(data)[row] + outer.numbers(data)[column]

    origin = RowOrigin(inner, every, some)
    element = low.value_at(
        value.element.element,
        rows,
        inner,
        origin,
        ("other way", rows),
    )
    return Elements(
        outer,
        Elements(inner, element),
    )
