"""Elements of whole sequences by their numbers, which the host knows or which are computed, and parts of such elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.programs_of_rows import Rows, Run, View
from ampjax.frontend.batches.room_bodies import Body, is_static, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.blocks.pair_rows import row_by_number
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.long_axes import element_type, long_axis, n_long_axes
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.jax_functions.element_operations import replace_numbers
from ampjax.frontend.whole_sequences.sorted_sequences import in_computed_order, or_filled
from ampjax.jaxprs.primitives import bind

Numbers = Callable[[Any], np.ndarray]
"""From the data to integers, one or several for each row of a space."""


def by_number(
    body: Body,
    equation: Equation,
    xs: Elements,
    at: Value,
) -> list[Value] | None:
    """Elements by numbers, and parts of elements by further numbers; None for another order of axes.

    Args:
      body: Where.
      equation: JAX's `gather`, of which the elements' axis is indexed.
      xs: The sequence.
      at: The numbers: `[..., axes]`, a sequence of such arrays, or one array.
    """
    params = equation.source.params
    numbers = params["dimension_numbers"]
    given, indices = map(
        type_of_atom,
        equation.inputs,
    )
    n_first = len(indices.shape) - 1
    if any(axis < n_first for axis in numbers.offset_dims):
        return None
    is_sequence = isinstance(at, Elements)
    home = body
    own: Any = at
    if is_sequence:
        if n_long_axes(indices) > 1 or long_axis(indices):
            return None
        at = body.low.copied(
            at,
            body.space,
        )
        indices = element_type(indices)
        home = body.inside(at.space)
        own = at.element
    axes = tuple(numbers.start_index_map)
    place = axes.index(0)
    is_part = len(axes) > 1 or tuple(params["slice_sizes"][1:]) != given.shape[1:]
    shape = indices.shape[:-1]
    # the elements
    one = element_type(given)
    kind = jax.ShapeDtypeStruct(
        (*shape, *one.shape),
        one.dtype,
    )
    found = _elements(
        body,
        home,
        equation,
        xs,
        (own, indices, place),
        kind,
    )
    if found is None:
        return None
    # the same part of each, or one by numbers of its own
    if not is_part:
        return [
            Elements(
                at.space,
                found,
            )
            if is_sequence
            else found
        ]
    behind = [axis - n_first for axis in numbers.offset_dims]
    part = of_part(equation, place, behind)
    for _ in shape:
        part = jax.vmap(part)
    traced = trace(
        part,
        kind,
        indices,
    )[0]
    if is_sequence:
        return of_elements(
            body,
            at.space,
            traced,
            [],
            [found, own],
            of_whole=True,
        )
    return body.run(
        traced,
        [found, own],
    )


def in_front(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Reads along another axis than the first, as `jax.vmap` writes `c[::-1]` of columns, after a transposition; None for several long axes.

    Args:
      body: Where.
      equation: JAX's `gather`.
      values: The sequence, and the numbers.
    """
    params = equation.source.params
    numbers = params["dimension_numbers"]
    given, indices = map(
        type_of_atom,
        equation.inputs,
    )
    long = long_axis(given)
    if long is None or n_long_axes(given) > 1 or numbers.operand_batching_dims:
        return None
    others = [axis for axis in range(len(given.shape)) if axis != long]
    order = [long, *others]
    gone = numbers.collapsed_slice_dims
    # axes of the result: first those of the numbers, then what is read, in the new order
    n_first = len(indices.shape) - 1
    kept = [axis for axis in range(len(order)) if axis not in gone]
    read = [axis for axis in order if axis not in gone]
    n_axes = n_first + len(kept)
    places = [axis for axis in range(n_axes) if axis not in numbers.offset_dims]
    places += [numbers.offset_dims[kept.index(axis)] for axis in read]
    back = [places.index(axis) for axis in range(n_axes)]
    changed = replace_numbers(
        numbers,
        offset_dims=tuple(range(n_first, n_axes)),
        collapsed_slice_dims=tuple(sorted(map(order.index, gone))),
        start_index_map=tuple(map(order.index, numbers.start_index_map)),
    )
    sizes = tuple(params["slice_sizes"][axis] for axis in order)
    source = equation.source.replace(
        params={
            **params,
            "dimension_numbers": changed,
            "slice_sizes": sizes,
        }
    )

    def of_whole(x: Any, at: Any) -> Any:
        (found,) = bind(source, [jnp.transpose(x, order), at])
        return jnp.transpose(found, back)

    return written_as(body, equation, values, of_whole)


def _elements(
    body: Body,
    home: Body,
    equation: Equation,
    xs: Elements,
    at: tuple[Value, Any, int],
    kind: Any,
) -> Value | None:
    """For each row an element by its number, or an array of several; None for sequences by computed numbers.

    Args:
      body: The rows that have the sequence.
      home: The rows that read.
      equation: JAX's `gather`.
      xs: The sequence.
      at: The numbers, their type, and which of them are those of elements.
      kind: The type of the result.
    """
    own, indices, place = at
    if is_static(own):
        column = home.low.host.column(
            own,
            home.region,
            indices,
        )
        numbers = lambda data: column.of(data)[..., place].astype(np.int64)
        if equation.source.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP:
            return _or_filled(
                home,
                equation,
                xs,
                numbers,
                indices.shape[:-1],
                kind,
            )
        return by_known_numbers(
            home,
            xs,
            numbers,
            indices.shape[:-1],
            kind,
            equation.line,
        )
    if isinstance(xs.element, Elements):
        return _row_at(home, equation, xs, (own, indices, place))
    _require_elements(home, xs, equation.line)
    return in_computed_order(
        body,
        home,
        equation,
        xs,
        home.rows(own, indices),
        place,
    )


def _row_at(
    home: Body,
    equation: Equation,
    xs: Elements,
    at: tuple[Value, Any, int],
) -> Value | None:
    """One row of a matrix of pairs for each row that reads, by a computed number; None for several rows.

    Args:
      home: The rows that read.
      equation: JAX's `gather`.
      xs: The matrix.
      at: The number, its type, and which of the axes' numbers it is.
    """
    own, indices, place = at
    if len(indices.shape) > 1:
        return None
    kind = element_type(element_type(type_of_atom(equation.inputs[0])))
    numbers = home.rows(own, indices)
    fill = None
    if equation.source.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP:
        fill = lambda values, is_there: or_filled(values, is_there, equation)
    number = lambda run: run.get(numbers)[..., place]
    return row_of_pairs(home, xs, number, kind, equation.line, fill)


def row_of_pairs(
    home: Body,
    xs: Elements,
    number: Callable[[Run], Any],
    kind: Any,
    line: str,
    fill: Callable[[Any, Any], Any] | None = None,
) -> Value | None:
    """One row of a matrix of pairs by a computed number, with the check that the matrix has rows; None as `row_by_number`.

    Args:
      home: The rows that read.
      xs: The matrix.
      number: As for `row_by_number`.
      kind: The type of a pair.
      line: The line of the model that reads.
      fill: As for `row_by_number`.
    """
    found = row_by_number(home, xs, number, kind, fill)
    if found is not None:
        _require_elements(home, xs, line)
    return found


def within(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value]:
    """Reads or updates with JAX's mode `clip`: at the nearest numbers that an element or a part of one has.

    Args:
      body: Where.
      equation: JAX's `gather`, or an update.
      values: Its operands.
    """
    source = equation.source
    params = source.params
    numbers = params["dimension_numbers"]
    given, _, *changes = map(
        type_of_atom,
        equation.inputs,
    )
    if changes:
        axes = numbers.scatter_dims_to_operand_dims
        sizes = _window_sizes(numbers, given, changes[0])
    else:
        axes = numbers.start_index_map
        sizes = params["slice_sizes"]
    changed = source.replace(
        params={
            **params,
            "mode": jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
        }
    )

    def of_whole(x: Any, own: Any, *others: Any) -> list[Any]:
        most = []
        for axis in axes:
            left = jnp.asarray(x.shape[axis], own.dtype) - sizes[axis]
            most.append(jnp.maximum(left, 0))
        nearest = jnp.clip(own, 0, jnp.stack(most))
        return bind(changed, [x, nearest, *others])

    return written_as(body, equation, values, of_whole)


def written_as(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
    function: Callable[..., Any],
) -> list[Value]:
    """Adds the steps of a function that computes the same as an operation.

    Args:
      body: Where.
      equation: The operation.
      values: Its operands.
      function: The function.
    """
    traced, constants, _ = trace(function, *map(type_of_atom, equation.inputs))
    return body.run(
        traced,
        [*map(Constant, constants), *values],
    )


def _window_sizes(
    numbers: Any,
    given: Any,
    change: Any,
) -> list[Any]:
    """For each axis of an array how much an update covers."""
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    covered = iter(numbers.update_window_dims)
    sizes = []
    for axis in range(len(given.shape)):
        sizes.append(1 if axis in gone else change.shape[next(covered)])
    return sizes


def _or_filled(
    home: Body,
    equation: Equation,
    xs: Elements,
    numbers: Numbers,
    shape: Sequence[int],
    kind: Any,
) -> Value | None:
    """Elements by known numbers, and JAX's filling where a number is none of an element's; None for sequences.

    Args:
      home: The rows that read.
      equation: JAX's `gather`.
      xs: The sequence.
      numbers: The numbers.
      shape: Of the array of elements.
      kind: The type of the result.
    """
    if isinstance(xs.element, Elements):
        return None
    space = home.space

    def is_there(data: Any) -> np.ndarray:
        own = numbers(data)
        sizes = _sizes(xs, space, data)
        every = sizes.reshape(-1, *[1] * len(shape))
        return (own >= 0) & (own < every)

    found = by_known_numbers(
        home,
        xs,
        lambda data: np.where(
            is_there(data),
            numbers(data),
            -1,
        ),
        shape,
        kind,
        equation.line,
        may_lack=True,
    )
    there = jax.ShapeDtypeStruct(shape, np.bool_)
    traced = trace(
        lambda x, own: or_filled(x, own, equation),
        kind,
        there,
    )[0]
    (filled,) = home.run(
        traced,
        [found, Static(Column(space, is_there))],
    )
    return filled


def of_part(
    equation: Equation,
    place: int,
    offset_dims: Sequence[int],
) -> Callable[[Any, Any], list[Any]]:
    """The function that reads a part of one element, by the numbers of its other axes.

    Args:
      equation: JAX's `gather`.
      place: Which of the numbers is the element's.
      offset_dims: Which axes of the part are those of the element.
    """
    source = equation.source
    params = source.params
    numbers = params["dimension_numbers"]
    axes = numbers.start_index_map
    others = [number for number in range(len(axes)) if number != place]
    collapsed = [axis - 1 for axis in numbers.collapsed_slice_dims if axis]
    shifted = replace_numbers(
        numbers,
        offset_dims=tuple(offset_dims),
        collapsed_slice_dims=tuple(collapsed),
        start_index_map=tuple(axes[number] - 1 for number in others),
    )
    changed = {
        **params,
        "dimension_numbers": shifted,
        "slice_sizes": tuple(params["slice_sizes"][1:]),
    }
    inside = source.replace(params=changed)

    def of_one(x: Any, at: Any) -> list[Any]:
        left = jnp.stack([at[number] for number in others]) if others else at[:0]
        return bind(inside, [x, left])

    return of_one


def by_known_numbers(
    home: Body,
    xs: Elements,
    numbers: Numbers,
    shape: Sequence[int],
    kind: Any,
    line: str,
    may_lack: bool = False,
) -> Value | None:
    """For each row an element, or an array of elements; None for an array of sequences.

    Args:
      home: The rows.
      xs: The sequence that the rows, or the rows around, have.
      numbers: The elements' numbers, `[rows, *shape]`.
      shape: Of the array; empty for an element.
      kind: The type of the result.
      line: The user's line.
      may_lack: Whether a number may be below 0, for any element; else each is checked.
    """
    space = home.space

    def one(i: int) -> Numbers:
        return lambda data: numbers(data).reshape(
            space.n_rows(data),
            n,
        )[:, i]

    n = math.prod(shape)
    found = []
    for i in range(n):
        number = one(i)
        if not may_lack:
            home.low.host.draft.checks.append(
                lambda data, number=number: check_numbers(
                    data,
                    home.region,
                    number(data),
                    np.ones(
                        space.n_rows(data),
                        int,
                    ),
                    _sizes(xs, space, data),
                    line,
                )
            )

        def origin(data: Any, number: Numbers = number) -> np.ndarray:
            own = number(data)
            first = xs.space.starts(data)
            if xs.space.parent is not space:
                first = first[space.parents(data)]
            is_there = (own >= 0) & (own < _sizes(xs, space, data))
            return np.where(is_there, first + own, -1)

        way = ("one", numbers, i)
        found.append(
            home.low.value_within(
                xs.element,
                xs.space,
                space,
                origin,
                way,
            )
        )
    if not shape:
        return found[0]
    return stack_values(home, found, shape, kind)


def _sizes(
    xs: Elements,
    space: IndexSpace,
    data: Any,
) -> np.ndarray:
    """The number of elements of each row's sequence, or of the sequence around the row."""
    found = xs.space.lengths(data)
    return found if xs.space.parent is space else found[space.parents(data)]


def stack_values(
    home: Body,
    values: Sequence[Value],
    shape: Sequence[int],
    kind: Any,
) -> Value | None:
    """An array of several values for each row; None for sequences.

    Args:
      home: The rows.
      values: The values.
      shape: The axes of the array that number them.
      kind: The array's type.
    """
    if any(
        isinstance(
            value,
            Elements,
        )
        for value in values
    ):
        return None
    each = jax.ShapeDtypeStruct(
        kind.shape[len(shape) :],
        kind.dtype,
    )
    space = home.space
    if values and all(
        map(
            is_static,
            values,
        )
    ):
        columns = [
            home.low.host.column(
                value,
                home.region,
                each,
            )
            for value in values
        ]

        def whole(data: Any) -> np.ndarray:
            every = np.stack(
                [column.of(data) for column in columns],
                1,
            )
            return every.reshape(
                len(every),
                *shape,
                *every.shape[2:],
            )

        return Static(Column(space, whole))
    rows = [
        home.rows(
            value,
            each,
        )
        for value in values
    ]
    out = Rows(kind, home.room)

    def compute(run: Run) -> list[Any]:
        if not rows:
            return [
                jnp.zeros(
                    (run.size(home.room), *kind.shape),
                    kind.dtype,
                )
            ]
        every = jnp.stack(
            [run.get(each) for each in rows],
            1,
        )
        return [
            every.reshape(
                len(every),
                *kind.shape,
            )
        ]

    home.block.add(
        [out],
        compute,
    )
    return View(out, space)


def _require_elements(home: Body, xs: Elements, line: str) -> None:
    """Adds the check that a sequence has an element wherever one is read by a computed number."""
    space = home.space
    around = xs.space.parent

    def check(data: Any) -> None:
        lengths = xs.space.lengths(data)
        if around is not space:
            lengths = lengths[space.parents(data)]
        n = space.n_rows(data)
        check_numbers(
            data,
            home.region,
            np.zeros(n, int),
            np.ones(n, int),
            lengths,
            line,
        )

    home.low.host.draft.checks.append(check)


def check_numbers(
    data: Any,
    region: Region,
    numbers: np.ndarray,
    counts: np.ndarray,
    lengths: np.ndarray,
    line: str,
) -> None:
    """Checks that elements are there that are read, where any is.

    Args:
      data: The data.
      region: The rows that read.
      numbers: For each row the number of an element.
      counts: How many are read, of which this is one.
      lengths: How many elements there are.
      line: The user's line.

    Raises:
      DataError: If one is not there.
    """
    is_wrong = (counts > 0) & ((numbers < 0) | (numbers >= lengths))
    for row in region.rows_where(data, is_wrong)[:1].tolist():
        raise DataError(
            f"{line}, instance {region.space.instances(data)[row]}",
            "an element that the sequence has",
            f"number {numbers[row]} of {lengths[row]} elements",
            "Take what is there; `amp.cond` of `amp.length` chooses what to do without.",
        )
