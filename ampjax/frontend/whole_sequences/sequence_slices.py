"""Slices and single elements of whole sequences by JAX's own indexing: elements that are read by numbers that the host knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, filled_up, taken
from ampjax.frontend.batches.room_bodies import Body, is_static, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import element_type, is_sequence
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.whole_sequences.sequence_parts import length_of, sized
from ampjax.frontend.whole_sequences.sorted_sequences import in_computed_order

Numbers = Callable[[Any], np.ndarray]
"""From the data to integers, one or several for each row of a space."""


def sliced(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Slices along the elements alone, as `jax.lax.slice` does."""
    (xs,) = values
    params = equation.source.params
    given = type_of_atom(equation.inputs[0])
    start, *starts = params["start_indices"]
    limits = params["limit_indices"][1:]
    step, *steps = params["strides"] or (1,) * len(given.shape)
    if not isinstance(xs, Elements) or any(starts):
        return None
    if any(each != 1 for each in steps) or tuple(limits) != given.shape[1:]:
        return None
    first = length_of(
        body,
        start,
        [(xs, given)],
        equation.line,
    )
    return _part(body, equation, xs, first, step)


def gathered(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Indexes a sequence: neighbouring elements from one on, or elements by numbers that follow from the example."""
    xs, at = values
    params = equation.source.params
    numbers = params["dimension_numbers"]
    given, indices = map(type_of_atom, equation.inputs)
    is_first_axis = tuple(numbers.start_index_map) == (0,) and not numbers.operand_batching_dims
    is_whole = tuple(params["slice_sizes"][1:]) == given.shape[1:]
    if not isinstance(xs, Elements) or not is_first_axis or not is_whole:
        return None
    if indices.shape == (1,) and not numbers.collapsed_slice_dims and is_static(at):
        column = body.low.host.column(at, body.region, indices)
        return _part(
            body,
            equation,
            xs,
            lambda data: column.of(data)[:, 0].astype(np.int64),
            1,
        )
    if tuple(numbers.collapsed_slice_dims) != (0,) or indices.shape[1:] != (1,):
        return None
    if not isinstance(at, Elements):
        return _several(body, equation, xs, at, indices)
    at = body.low.copied(at, body.space)
    if not is_static(at.element):
        return _in_computed_order(body, equation, xs, at)
    inside = body.inside(at.space)
    column = body.low.host.column(
        at.element,
        inside.region,
        element_type(indices),
    )
    space = at.space

    def number(data: Any) -> np.ndarray:
        return column.of(data)[:, 0].astype(np.int64)

    def sizes(data: Any) -> np.ndarray:
        return xs.space.lengths(data)[space.parents(data)]

    _check(
        inside,
        number,
        lambda data: np.ones(space.n_rows(data), int),
        sizes,
        equation.line,
    )

    def origin(data: Any) -> np.ndarray:
        return xs.space.starts(data)[space.parents(data)] + number(data)

    way = ("gathered", at.element, column)
    return [
        Elements(
            space,
            body.low.value_at(xs.element, xs.space, space, origin, way),
        )
    ]


def _in_computed_order(
    body: Body,
    equation: Equation,
    xs: Elements,
    at: Elements,
) -> list[Value] | None:
    """Elements by computed numbers, of a sequence that has any wherever there is a number."""
    n_rows = body.space.n_rows
    _check(
        body,
        lambda data: np.zeros(n_rows(data), int),
        at.space.lengths,
        xs.space.lengths,
        equation.line,
    )
    return in_computed_order(body, equation, xs, at)


def _part(
    body: Body,
    equation: Equation,
    xs: Elements,
    first: Numbers,
    step: int,
) -> list[Value] | None:
    """Elements from one on, each so many behind the one before: a sequence, or an array where there are always equally many."""
    kind = equation.outputs[0].aval
    around = body.space
    given = [(xs, type_of_atom(equation.inputs[0]))]
    count = length_of(
        body,
        kind.shape[0],
        given,
        equation.line,
    )

    def last(data: Any) -> np.ndarray:
        return (
            first(data)
            + (
                np.maximum(
                    count(data),
                    1,
                )
                - 1
            )
            * step
        )

    _check(body, first, count, xs.space.lengths, equation.line)
    _check(body, last, count, xs.space.lengths, equation.line)
    if not is_sequence(kind):

        def numbers(data: Any) -> np.ndarray:
            return first(data)[:, None] + step * np.arange(kind.shape[0])

        return _array(body, xs, numbers, kind)
    space = body.low.lengths.space(
        str(kind.shape[0]),
        around,
        sized(given),
        equation.line,
    )

    def origin(data: Any) -> np.ndarray:
        own = (xs.space.starts(data) + first(data))[space.parents(data)]
        return own + step * space.numbers(data)

    way = ("sliced", xs.space, first, step)
    return [
        Elements(
            space,
            body.low.value_at(xs.element, xs.space, space, origin, way),
        )
    ]


def _several(
    body: Body,
    equation: Equation,
    xs: Elements,
    at: Value,
    indices: Any,
) -> list[Value] | None:
    """An array of elements by their numbers, equally many for each row."""
    if not is_static(at):
        return None
    column = body.low.host.column(at, body.region, indices)

    def numbers(data: Any) -> np.ndarray:
        return column.of(data)[..., 0].astype(np.int64)

    for i in range(indices.shape[0]):
        _check(
            body,
            lambda data, i=i: numbers(data)[:, i],
            lambda data: np.ones(
                body.space.n_rows(data),
                int,
            ),
            xs.space.lengths,
            equation.line,
        )
    return _array(body, xs, numbers, equation.outputs[0].aval)


def _array(
    body: Body,
    xs: Elements,
    numbers: Numbers,
    kind: Any,
) -> list[Value] | None:
    """An array `[k, ...]` of elements for each row; None where elements are sequences.

    Args:
      body: The rows.
      xs: The sequence.
      numbers: The elements' numbers, `[rows, k]`.
      kind: The array's type.
    """
    low = body.low
    if isinstance(xs.element, Elements):
        return None
    values = []
    for i in range(kind.shape[0]):

        def origin(data: Any, i: int = i) -> np.ndarray:
            return xs.space.starts(data) + numbers(data)[:, i]

        values.append(
            low.value_at(
                xs.element,
                xs.space,
                body.space,
                origin,
                ("one", numbers, i),
            )
        )
    each = element_type(kind)
    if all(map(is_static, values)):
        columns = [
            low.host.column(
                value,
                body.region,
                each,
            )
            for value in values
        ]
        whole = Column(
            body.space,
            lambda data: np.stack(
                [column.of(data) for column in columns],
                1,
            ),
        )
        return [Static(whole)]
    rows = [body.rows(value, each) for value in values]
    out = Rows(kind, body.room)
    body.block.add(
        [out],
        lambda run: [jnp.stack([run.get(each) for each in rows], 1)],
    )
    return [View(out, body.space)]


def sliced_where_told(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Slices as `jax.lax.dynamic_slice` does: `xs[i]`, and some elements from one on, of which the first number may be computed."""
    xs, start, *starts = values
    given = type_of_atom(equation.inputs[0])
    kind = equation.outputs[0].aval
    sizes = equation.source.params["slice_sizes"]
    if (
        not isinstance(
            xs,
            Elements,
        )
        or is_sequence(kind)
        or isinstance(xs.element, Elements)
    ):
        return None
    n = sizes[0]
    whole = jax.ShapeDtypeStruct(
        (n, *given.shape[1:]),
        given.dtype,
    )
    lengths = xs.space.lengths
    _check(
        body,
        lambda data: np.full(
            body.space.n_rows(data),
            n - 1,
        ),
        lambda data: np.ones(
            body.space.n_rows(data),
            int,
        ),
        lengths,
        equation.line,
    )
    if is_static(start):
        column = body.low.host.column(
            start,
            body.region,
            jax.ShapeDtypeStruct((), np.int64),
        )

        def numbers(data: Any) -> np.ndarray:
            most = np.maximum(lengths(data) - n, 0)
            return np.clip(
                column.of(data),
                0,
                most,
            )[:, None] + np.arange(n)

        found = _array(body, xs, numbers, whole)
    else:
        found = [_computed(body, xs, start, whole)]
    if found is None or whole.shape == kind.shape:
        return found
    return [_cut(body, found[0], starts, whole, kind)]


def _computed(
    body: Body,
    xs: Elements,
    start: Value,
    kind: Any,
) -> View:
    """Some elements, from one on whose number is computed."""
    space = xs.space
    values = body.inside(space).rows(
        xs.element,
        element_type(kind),
    )
    number = body.rows(
        start,
        jax.ShapeDtypeStruct((), np.int32),
    )
    sizes = Static(
        Column(
            body.space,
            lambda data: space.lengths(data),
        )
    )
    length = body.rows(
        sizes,
        jax.ShapeDtypeStruct((), np.int32),
    )
    parents = body.parents(space)
    room = body.bare()
    out = Rows(kind, room)

    def compute(run: Run) -> list[Any]:
        own = run.get(number)
        every = run.get(values)
        first = jnp.searchsorted(
            run.slots[parents],
            jnp.arange(len(own)),
        )
        place = first + jnp.clip(
            own,
            0,
            jnp.maximum(run.get(length) - kind.shape[0], 0),
        )
        at = place[:, None] + jnp.arange(kind.shape[0])
        found = taken(
            every,
            jnp.clip(at, 0, max(len(every) - 1, 0)),
        )
        return [filled_up(run, room, found)]

    body.block.add([out], compute)
    return View(out, body.space)


def _cut(
    body: Body,
    value: Value,
    starts: Sequence[Value],
    given: Any,
    kind: Any,
) -> View:
    """Part of each row's array along its other axes."""
    number = jax.ShapeDtypeStruct((), np.int32)
    rows = body.rows(value, given)
    places = [body.rows(start, number) for start in starts]
    out = Rows(kind, body.room)

    def one(array: Any, *own: Any) -> Any:
        starts = [
            jnp.asarray(
                start,
                jnp.int32,
            )
            for start in (0, *own)
        ]
        return jax.lax.dynamic_slice(array, starts, kind.shape)

    def compute(run: Run) -> list[Any]:
        own = [run.get(place) for place in places]
        return [
            jax.vmap(one)(
                run.get(rows),
                *own,
            )
        ]

    body.block.add([out], compute)
    return View(out, body.space)


def _check(
    body: Body,
    number: Numbers,
    count: Numbers,
    lengths: Numbers,
    line: str,
) -> None:
    """Checks that elements are there that are read, where any is."""
    space = body.space
    body.low.host.draft.checks.append(
        lambda data: _check_numbers(
            data,
            space,
            (number, count, lengths),
            line,
        )
    )


def _check_numbers(
    data: Any,
    space: IndexSpace,
    told: tuple[Numbers, Numbers, Numbers],
    line: str,
) -> None:
    number, count, lengths = (each(data) for each in told)
    wrong = np.flatnonzero((count > 0) & ((number < 0) | (number >= lengths)))
    for row in wrong[:1].tolist():
        raise DataError(
            f"{line}, instance {space.instances(data)[row]}",
            "an element that the sequence has",
            f"number {number[row]} of {lengths[row]} elements",
            "Take what is there; `amp.cond` of `amp.length` chooses what to do without.",
        )
