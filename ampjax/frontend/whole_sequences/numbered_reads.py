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
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import element_type, long_axis, n_long_axes
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.whole_sequences.element_operations import replace_numbers
from ampjax.frontend.whole_sequences.sorted_sequences import in_computed_order
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
        return by_known_numbers(
            home,
            xs,
            lambda data: column.of(data)[..., place].astype(np.int64),
            indices.shape[:-1],
            kind,
            equation.line,
        )
    if isinstance(xs.element, Elements):
        return None
    _require_elements(home, xs, equation.line)
    return in_computed_order(
        body,
        home,
        equation,
        xs,
        home.rows(own, indices),
        place,
    )


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
) -> Value | None:
    """For each row an element, or an array of elements; None for an array of sequences.

    Args:
      home: The rows.
      xs: The sequence that the rows, or the rows around, have.
      numbers: The elements' numbers, `[rows, *shape]`.
      shape: Of the array; empty for an element.
      kind: The type of the result.
      line: The user's line.
    """
    space = home.space
    around = xs.space.parent

    def of_around(data: Any, values: np.ndarray) -> np.ndarray:
        return values if around is space else values[space.parents(data)]

    def sizes(data: Any) -> np.ndarray:
        return of_around(
            data,
            xs.space.lengths(data),
        )

    def one(i: int) -> Numbers:
        return lambda data: numbers(data).reshape(
            space.n_rows(data),
            n,
        )[:, i]

    n = math.prod(shape)
    found = []
    for i in range(n):
        number = one(i)
        home.low.host.draft.checks.append(
            lambda data, number=number: check_numbers(
                data,
                space,
                number(data),
                np.ones(
                    space.n_rows(data),
                    int,
                ),
                sizes(data),
                line,
            )
        )

        def origin(data: Any, number: Numbers = number) -> np.ndarray:
            return of_around(
                data,
                xs.space.starts(data),
            ) + number(data)

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
    return stacked(home, found, shape, kind)


def stacked(
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
            space,
            np.zeros(n, int),
            np.ones(n, int),
            lengths,
            line,
        )

    home.low.host.draft.checks.append(check)


def check_numbers(
    data: Any,
    space: IndexSpace,
    numbers: np.ndarray,
    counts: np.ndarray,
    lengths: np.ndarray,
    line: str,
) -> None:
    """Checks that elements are there that are read, where any is.

    Args:
      data: The data.
      space: The space that reads.
      numbers: For each row the number of an element.
      counts: How many are read, of which this is one.
      lengths: How many elements there are.
      line: The user's line.

    Raises:
      DataError: If one is not there.
    """
    wrong = np.flatnonzero((counts > 0) & ((numbers < 0) | (numbers >= lengths)))
    for row in wrong[:1].tolist():
        raise DataError(
            f"{line}, instance {space.instances(data)[row]}",
            "an element that the sequence has",
            f"number {numbers[row]} of {lengths[row]} elements",
            "Take what is there; `amp.cond` of `amp.length` chooses what to do without.",
        )
