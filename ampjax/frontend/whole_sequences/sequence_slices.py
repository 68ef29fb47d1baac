"""Slices and single elements of whole sequences by JAX's own indexing: elements that are read by numbers that the host knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, filled_up, taken
from ampjax.frontend.batches.room_bodies import Body, is_static, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.long_axes import (
    element_type,
    is_sequence,
    long_axis,
    n_long_axes,
)
from ampjax.frontend.draft.values import Constant, Elements
from ampjax.frontend.jax_functions.element_operations import replace_numbers
from ampjax.frontend.whole_sequences.cut_arrays import cut_array, starts_of
from ampjax.frontend.whole_sequences.numbered_reads import (
    by_known_numbers,
    by_number,
    check_numbers,
    in_front,
    of_part,
    row_of_pairs,
    written_as,
)
from ampjax.frontend.whole_sequences.sequence_parts import length_of, sized
from ampjax.jaxprs.primitives import bind

Numbers = Callable[[Any], np.ndarray]
"""From the data to integers, one or several for each row of a space."""


def sliced(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Slices along the elements alone, as `jax.lax.slice` does; of an array as many rows as a sequence has elements."""
    (xs,) = values
    params = equation.source.params
    given = type_of_atom(equation.inputs[0])
    starts = params["start_indices"]
    steps = params["strides"] or (1,) * len(given.shape)
    if not isinstance(xs, Elements):
        if any(step != 1 for step in steps):
            return None
        return cut_array(body, equation, xs, starts)
    if long_axis(given) or any(starts[1:]):
        return None
    limits = params["limit_indices"][1:]
    if any(each != 1 for each in steps[1:]) or tuple(limits) != given.shape[1:]:
        return None
    first = length_of(
        body,
        starts[0],
        [(xs, given)],
        equation.line,
    )
    return _part(
        body,
        equation,
        xs,
        first,
        steps[0],
        equation.outputs[0].aval,
    )


def gathered(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Indexes a sequence: neighbouring elements from one on, or elements by their numbers, and a part of each by further numbers."""
    xs, at = values
    params = equation.source.params
    numbers = params["dimension_numbers"]
    given, indices = map(
        type_of_atom,
        equation.inputs,
    )
    axes = tuple(numbers.start_index_map)
    if numbers.operand_batching_dims:
        is_by_number = isinstance(xs, Elements) and 0 in numbers.collapsed_slice_dims
        if not is_by_number or n_long_axes(given) > 1 or long_axis(given):
            return None
        return _along_axis(
            body,
            equation,
            values,
        )
    if not isinstance(xs, Elements):
        return _cut_by_number(
            body,
            equation,
            values,
        )
    long = long_axis(given)
    if long not in axes:
        return None
    if long or _is_mixed(numbers, indices):
        return in_front(body, equation, values)
    if 0 in numbers.collapsed_slice_dims:
        return by_number(body, equation, xs, at)
    if len(indices.shape) > 1 or not is_static(at):
        return _from_each(body, equation, values)
    is_front = tuple(numbers.offset_dims[:1]) == (0,)
    if indices.shape != (len(axes),) or not is_front:
        return None
    return _parts_of_range(body, equation, xs, at)


def _is_mixed(numbers: Any, indices: Any) -> bool:
    """Whether an axis of the elements comes before one of the numbers in the result."""
    n_first = len(indices.shape) - 1
    return any(axis < n_first for axis in numbers.offset_dims)


def _from_each(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Neighbouring elements from a computed number on, or from each of several: by the number of each element.

    So `jax.vmap` writes `xs[i]`, and `jax.lax.dynamic_slice`.
    """
    params = equation.source.params
    numbers = params["dimension_numbers"]
    indices = type_of_atom(equation.inputs[1])
    n_first = len(indices.shape) - 1
    sizes = params["slice_sizes"]
    offsets = tuple(numbers.offset_dims)
    is_behind = offsets == (*range(n_first, n_first + len(offsets)),)
    if not isinstance(sizes[0], int) or not is_behind:
        return None
    _require_neighbours(body, values[0].space, sizes[0], equation.line)
    # axes of which one entry is read are left out at first
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [axis for axis in range(len(sizes)) if axis not in gone]
    ones = [axis for axis in numbers.start_index_map if axis in kept and sizes[axis] == 1]
    is_one = sizes[0] == 1
    first = n_first + 1 - is_one
    others = [axis for axis in kept if axis not in (0, *ones)]
    changed = replace_numbers(
        numbers,
        collapsed_slice_dims=tuple(sorted({0, *numbers.collapsed_slice_dims, *ones})),
        offset_dims=tuple(range(first, first + len(others))),
    )
    source = equation.source.replace(
        params={
            **params,
            "dimension_numbers": changed,
            "slice_sizes": (1, *sizes[1:]),
        }
    )
    place = numbers.start_index_map.index(0)
    back = [n_first + kept.index(axis) for axis in ones]

    def of_whole(x: Any, at: Any) -> Any:
        each = [at.at[..., place].add(behind) for behind in range(sizes[0])]
        numbers = at if is_one else jnp.stack(each, -2)
        (found,) = bind(source, [x, numbers])
        return jnp.expand_dims(found, back)

    return written_as(body, equation, values, of_whole)


def _require_neighbours(
    body: Body,
    space: IndexSpace,
    n: int,
    line: str,
) -> None:
    """Adds the check that each sequence has as many elements as are read together."""
    around = body.space
    _check(
        body,
        lambda data: np.full(around.n_rows(data), n - 1),
        lambda data: np.full(around.n_rows(data), int(n > 1)),
        space.lengths,
        line,
    )


def _cut_by_number(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """As many rows of an array as a sequence has elements, as JAX writes `table[:n, 0]`; None for rows by numbers."""
    array, at = values
    numbers = equation.source.params["dimension_numbers"]
    given, indices = map(
        type_of_atom,
        equation.inputs,
    )
    axes = tuple(numbers.start_index_map)
    if indices.shape != (len(axes),) or numbers.collapsed_slice_dims:
        return None
    starts = starts_of(
        body,
        at,
        axes,
        len(given.shape),
    )
    if starts is None:
        return None
    return cut_array(
        body,
        equation,
        array,
        starts,
    )


def _along_axis(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value]:
    """Elements by numbers of their own for each entry, as `jnp.take_along_axis(xs, order, axis=0)` does: the entries are numbered too."""
    params = equation.source.params
    numbers = params["dimension_numbers"]
    beside = numbers.operand_batching_dims
    changed = replace_numbers(
        numbers,
        collapsed_slice_dims=tuple(sorted([*numbers.collapsed_slice_dims, *beside])),
        start_index_map=(*beside, *numbers.start_index_map),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )
    source = equation.source.replace(
        params={
            **params,
            "dimension_numbers": changed,
        }
    )

    def of_whole(x: Any, at: Any) -> list[Any]:
        shape = (*at.shape[:-1], 1)
        places = []
        for axis in numbers.start_indices_batching_dims:
            places.append(
                jax.lax.broadcasted_iota(
                    at.dtype,
                    shape,
                    axis,
                )
            )
        return bind(
            source,
            [
                x,
                jnp.concatenate(
                    [*places, at],
                    -1,
                ),
            ],
        )

    return written_as(body, equation, values, of_whole)


def _parts_of_range(
    body: Body,
    equation: Equation,
    xs: Elements,
    at: Value,
) -> list[Value] | None:
    """Elements from one on, and the same part of each, as JAX writes `xs[1:, 0]`; None where equally many are an array of sequences."""
    given, indices = map(
        type_of_atom,
        equation.inputs,
    )
    params = equation.source.params
    numbers = params["dimension_numbers"]
    place = numbers.start_index_map.index(0)
    column = body.low.host.column(
        at,
        body.region,
        indices,
    )
    n, *others = params["slice_sizes"]
    kind = jax.ShapeDtypeStruct(
        (n, *given.shape[1:]),
        given.dtype,
    )
    found = _part(
        body,
        equation,
        xs,
        lambda data: column.of(data)[:, place].astype(np.int64),
        1,
        kind,
    )
    is_whole = tuple(others) == given.shape[1:] and indices.shape == (1,)
    if found is None or is_whole:
        return found
    (whole,) = found
    if isinstance(whole, Elements):
        behind = [axis - 1 for axis in numbers.offset_dims[1:]]
        traced = trace(
            of_part(equation, place, behind),
            element_type(given),
            indices,
        )[0]
        return of_elements(
            body,
            whole.space,
            traced,
            [],
            [whole.element, at],
            of_whole=True,
        )
    traced = trace(
        lambda x, own: bind(
            equation.source,
            [x, own.at[place].set(0)],
        ),
        kind,
        indices,
    )[0]
    return body.run(
        traced,
        [whole, at],
    )


def _part(
    body: Body,
    equation: Equation,
    xs: Elements,
    first: Numbers,
    step: int,
    kind: Any,
) -> list[Value] | None:
    """Elements from one on, each so many behind the one before: a sequence, or an array where there are always equally many."""
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

    _check(
        body,
        first,
        count,
        xs.space.lengths,
        equation.line,
    )
    _check(
        body,
        last,
        count,
        xs.space.lengths,
        equation.line,
    )
    if long_axis(kind) != 0:

        def numbers(data: Any) -> np.ndarray:
            return first(data)[:, None] + step * np.arange(kind.shape[0])

        return _array(
            body,
            xs,
            numbers,
            kind,
            equation.line,
        )
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
            body.low.value_within(
                xs.element,
                xs.space,
                space,
                origin,
                way,
            ),
        )
    ]


def _array(
    body: Body,
    xs: Elements,
    numbers: Numbers,
    kind: Any,
    line: str,
) -> list[Value] | None:
    """An array of some elements for each row; None where elements are sequences."""
    found = by_known_numbers(
        body,
        xs,
        numbers,
        kind.shape[:1],
        kind,
        line,
    )
    return None if found is None else [found]


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
    if not isinstance(xs, Elements):
        return _array_where_told(
            body,
            equation,
            xs,
            [start, *starts],
        )
    if long_axis(given):
        return None
    if sizes[0] == given.shape[0]:
        return _part_of_each(body, equation, xs, starts)
    if isinstance(xs.element, Elements):
        return _row_where_told(
            body,
            equation,
            xs,
            [start, *starts],
        )
    if is_sequence(kind):
        return _part_where_told(body, equation, xs, start)
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
            jax.ShapeDtypeStruct(
                (),
                np.int64,
            ),
        )

        def numbers(data: Any) -> np.ndarray:
            most = np.maximum(
                lengths(data) - n,
                0,
            )
            return np.clip(
                column.of(data),
                0,
                most,
            )[:, None] + np.arange(n)

        found = _array(
            body,
            xs,
            numbers,
            whole,
            equation.line,
        )
    else:
        found = [
            _slice_at_computed(
                body,
                xs,
                start,
                whole,
            )
        ]
    if found is None or whole.shape == kind.shape:
        return found
    return [
        _cut(
            body,
            found[0],
            starts,
            whole,
            kind,
        )
    ]


def _part_where_told(
    body: Body,
    equation: Equation,
    xs: Elements,
    start: Value,
) -> list[Value] | None:
    """As many elements as an expression of lengths says, from one on whose number the host knows; None for another number, and for parts of elements."""
    given = type_of_atom(equation.inputs[0])
    kind = equation.outputs[0].aval
    if not is_static(start) or kind.shape[1:] != given.shape[1:]:
        return None
    number = jax.ShapeDtypeStruct(
        (),
        np.int64,
    )
    column = body.low.host.column(
        start,
        body.region,
        number,
    )
    count = length_of(
        body,
        kind.shape[0],
        [(xs, given)],
        equation.line,
    )

    def first(data: Any) -> np.ndarray:
        most = xs.space.lengths(data) - count(data)
        return np.clip(
            column.of(data).astype(np.int64),
            0,
            np.maximum(most, 0),
        )

    return _part(
        body,
        equation,
        xs,
        first,
        1,
        kind,
    )


def _part_of_each(
    body: Body,
    equation: Equation,
    xs: Elements,
    starts: Sequence[Value],
) -> list[Value]:
    """The same part of each element, which begins where the numbers of its axes say."""
    given, _, *kinds = map(
        type_of_atom,
        equation.inputs,
    )
    _, *sizes = equation.source.params["slice_sizes"]

    def of_one(*args: Any) -> Any:
        *own, x = args
        return (
            jax.lax.dynamic_slice(
                x,
                own,
                sizes,
            )
            if own
            else x
        )

    traced = trace(
        of_one,
        *kinds,
        element_type(given),
    )[0]
    return of_elements(
        body,
        xs.space,
        traced,
        starts,
        [xs.element],
        of_whole=True,
    )


def _row_where_told(
    body: Body,
    equation: Equation,
    xs: Elements,
    starts: Sequence[Value],
) -> list[Value] | None:
    """One row of a matrix of pairs, or a part of that row, as JAX writes `scores[0]`; None for several rows."""
    given, _, *kinds = map(
        type_of_atom,
        equation.inputs,
    )
    n, *sizes = equation.source.params["slice_sizes"]
    if n != 1:
        return None
    one = element_type(given)
    number = jax.ShapeDtypeStruct((), np.int32)
    row: Value | None
    if is_static(starts[0]):
        column = body.low.host.column(starts[0], body.region, number)
        lengths = xs.space.lengths

        def numbers(data: Any) -> np.ndarray:
            most = np.maximum(lengths(data) - 1, 0)
            return np.clip(column.of(data).astype(np.int64), 0, most)

        row = by_known_numbers(body, xs, numbers, (), one, equation.line)
    else:
        own = body.rows(starts[0], number)
        number_in = lambda run: run.get(own)
        row = row_of_pairs(body, xs, number_in, element_type(one), equation.line)
    if row is None:
        return None
    traced = trace(
        lambda x, *own: jax.lax.dynamic_slice(
            x,
            own,
            sizes,
        )[None],
        one,
        *kinds,
    )[0]
    return body.run(
        traced,
        [row, *starts[1:]],
    )


def _array_where_told(
    body: Body,
    equation: Equation,
    array: Value,
    starts: Sequence[Value],
) -> list[Value] | None:
    """As many rows of an array as a sequence has elements, from one on; None where the number is computed."""
    kind = equation.outputs[0].aval
    found: list[Any] = []
    for number, start in enumerate(starts):
        own = (
            starts_of(
                body,
                start,
                (0,),
                1,
            )
            if number == long_axis(kind)
            else None
        )
        if own is not None:
            found += own
        elif isinstance(start, Constant):
            found.append(int(start.value))
        else:
            return None
    return cut_array(
        body,
        equation,
        array,
        found,
        is_clamped=True,
    )


def _slice_at_computed(
    body: Body,
    xs: Elements,
    start: Value,
    kind: Any,
) -> View:
    """Some elements, from one on whose number is computed."""
    space = xs.space
    values, starts = body.rows_and_starts(body, xs, element_type(kind))
    number = body.rows(
        start,
        jax.ShapeDtypeStruct(
            (),
            np.int32,
        ),
    )
    length = body.lengths(space)
    room = body.bare()
    out = Rows(kind, room)

    def compute(run: Run) -> list[Any]:
        own = run.get(number)
        every = run.get(values)
        place = starts(run) + jnp.clip(
            own,
            0,
            jnp.maximum(
                run.get(length) - kind.shape[0],
                0,
            ),
        )
        at = place[:, None] + jnp.arange(kind.shape[0])
        found = taken(
            every,
            jnp.clip(
                at,
                0,
                max(len(every) - 1, 0),
            ),
        )
        return [filled_up(run, room, found)]

    body.block.add(
        [out],
        compute,
    )
    return View(out, body.space)


def _cut(
    body: Body,
    value: Value,
    starts: Sequence[Value],
    given: Any,
    kind: Any,
) -> View:
    """Part of each row's array along its other axes."""
    number = jax.ShapeDtypeStruct(
        (),
        np.int32,
    )
    rows = body.rows(value, given)
    places = [
        body.rows(
            start,
            number,
        )
        for start in starts
    ]
    out = Rows(kind, body.room)

    def one(array: Any, *own: Any) -> Any:
        starts = [
            jnp.asarray(
                start,
                jnp.int32,
            )
            for start in (0, *own)
        ]
        return jax.lax.dynamic_slice(
            array,
            starts,
            kind.shape,
        )

    def compute(run: Run) -> list[Any]:
        own = [run.get(place) for place in places]
        return [
            jax.vmap(one)(
                run.get(rows),
                *own,
            )
        ]

    body.block.add(
        [out],
        compute,
    )
    return View(out, body.space)


def _check(
    body: Body,
    number: Numbers,
    count: Numbers,
    lengths: Numbers,
    line: str,
) -> None:
    """Checks that elements are there that are read, where any is."""
    region = body.region
    body.low.host.draft.checks.append(
        lambda data: check_numbers(
            data,
            region,
            number(data),
            count(data),
            lengths(data),
            line,
        )
    )
