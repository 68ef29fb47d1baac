"""Sequences in other shapes: several elements as one, one as several, all pairs as a single sequence, and copies one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import element_type, length_name, long_axis, n_long_axes
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.whole_sequences.numbered_reads import by_known_numbers
from ampjax.frontend.whole_sequences.sequence_parts import sized


def reshaped(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Reshapes a sequence to more or fewer elements; None where each element is reshaped, and for other shapes."""
    (xs,) = values
    given = type_of_atom(equation.inputs[0])
    kind = equation.outputs[0].aval
    is_front = long_axis(given) == long_axis(kind) == 0
    if not is_front or n_long_axes(kind) > 1 or given.shape[0] == kind.shape[0]:
        return None
    space = body.low.lengths.space(
        length_name(kind),
        body.space,
        sized([(xs, given)]),
        equation.line,
    )
    one = element_type(given)
    after = math.prod(kind.shape[1:])
    if n_long_axes(given) == 2 and long_axis(one) == 0:
        return _pairs_in_a_row(body, equation, xs, space)
    if n_long_axes(given) > 1:
        return None
    before = math.prod(one.shape)
    if before and after % before == 0:
        return _join_elements(
            body,
            equation,
            xs,
            space,
            after // before,
        )
    if after and before % after == 0:
        return _divide_elements(
            body,
            equation,
            xs,
            space,
            before // after,
        )
    return None


def tiled(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Repeats a sequence along its elements, or an array for as many elements as a length says; None where each element is repeated."""
    given = type_of_atom(equation.inputs[0])
    own = long_axis(given)
    axis = long_axis(equation.outputs[0].aval)
    reps = equation.source.params["reps"]
    if axis is None or reps[axis] == 1 or own not in (axis, None):
        return None
    n = reps[axis]
    if own is None and given.shape[axis] != 1:
        return None
    beside = [*reps]
    beside[axis] = 1

    def of_whole(x: Any) -> Any:
        each = jnp.tile(x, beside)
        if own is not None:
            return jnp.concatenate([each] * n, axis)
        shape = [*each.shape]
        shape[axis] = n
        return jnp.broadcast_to(each, shape)

    traced = trace(of_whole, given)[0]
    return body.run(traced, values)


def _join_elements(
    body: Body,
    equation: Equation,
    xs: Elements,
    space: IndexSpace,
    n: int,
) -> list[Value] | None:
    """Makes an element of each so many elements; None where elements are sequences."""
    one = element_type(type_of_atom(equation.inputs[0]))
    kind = element_type(equation.outputs[0].aval)
    home = body.inside(space)
    several = jax.ShapeDtypeStruct(
        (n, *one.shape),
        one.dtype,
    )

    def numbers(data: Any) -> np.ndarray:
        return space.numbers(data)[:, None] * n + np.arange(n)

    found = by_known_numbers(
        home,
        xs,
        numbers,
        (n,),
        several,
        equation.line,
    )
    if found is None:
        return None
    return _in_shape(body, space, found, several, kind)


def _divide_elements(
    body: Body,
    equation: Equation,
    xs: Elements,
    space: IndexSpace,
    n: int,
) -> list[Value] | None:
    """Makes so many elements of each element."""
    one = element_type(type_of_atom(equation.inputs[0]))
    kind = element_type(equation.outputs[0].aval)
    home = body.inside(space)

    def rows(data: Any) -> np.ndarray:
        return space.numbers(data) // n

    def parts(data: Any) -> np.ndarray:
        return (space.numbers(data) % n).astype(np.int32)

    whole = by_known_numbers(
        home,
        xs,
        rows,
        (),
        one,
        equation.line,
    )
    number = jax.ShapeDtypeStruct(
        (),
        np.int32,
    )
    traced = trace(
        lambda x, part: x.reshape(n, *kind.shape)[part],
        one,
        number,
    )[0]
    part = Static(Column(space, parts))
    return of_elements(
        body,
        space,
        traced,
        [],
        [whole, part],
        of_whole=True,
    )


def _pairs_in_a_row(
    body: Body,
    equation: Equation,
    xs: Elements,
    space: IndexSpace,
) -> list[Value] | None:
    """Lists all pairs, row after row; None where pairs have sequences."""
    pairs = xs.element
    if not isinstance(pairs, Elements) or isinstance(
        pairs.element,
        Elements,
    ):
        return None
    one = element_type(element_type(type_of_atom(equation.inputs[0])))
    kind = element_type(equation.outputs[0].aval)
    if math.prod(one.shape) != math.prod(kind.shape):
        return None
    rows = xs.space
    inner = pairs.space

    def origin(data: Any) -> np.ndarray:
        # the first pair of each row around, which may have none
        sizes = inner.lengths(data)
        before = np.concatenate([[0], np.cumsum(sizes)])
        first = before[rows.starts(data)]
        return first[space.parents(data)] + space.numbers(data)

    found = body.low.value_at(
        pairs.element,
        inner,
        space,
        origin,
        ("in a row", inner),
    )
    return _in_shape(body, space, found, one, kind)


def _in_shape(
    body: Body,
    space: IndexSpace,
    found: Value,
    given: Any,
    kind: Any,
) -> list[Value]:
    """Reshapes each element.

    Args:
      body: Where.
      space: The elements.
      found: One of them.
      given: Its type.
      kind: The type that it gets.
    """
    traced = trace(
        lambda x: x.reshape(kind.shape),
        given,
    )[0]
    return of_elements(
        body,
        space,
        traced,
        [],
        [found],
        of_whole=True,
    )
