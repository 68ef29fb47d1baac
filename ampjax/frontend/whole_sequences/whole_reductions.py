"""JAX's own reductions over the elements of whole sequences, and matrix products that sum over elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.reduction_steps import segment_max, segment_sum, segments
from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.programs_of_rows import View, taken
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.blocks.block_reductions import block_reduction
from ampjax.frontend.combinators.sequences import least
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.long_axes import element_type, is_sequence, long_axis, without_axis
from ampjax.frontend.draft.values import Elements
from ampjax.frontend.loops.masked_rows import along
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.jaxprs.primitives import bind


def reduced(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Reduces the elements by `sum`, `max`, `argmax` and the like, and other axes as well; None over other axes alone."""
    (xs,) = values
    source = equation.source
    axes = tuple(
        map(
            int,
            source.params["axes"],
        )
    )
    kind = equation.outputs[0].aval
    given = type_of_atom(equation.inputs[0])
    own = long_axis(given)
    if own is None or own not in axes:
        return None
    one = element_type(given)
    if len(axes) > 1:
        others = without_axis(axes, own)
        each = source.replace(
            params={
                **source.params,
                "axes": others,
            }
        )
        traced, _, results = trace(
            lambda x: bind(
                each,
                [x],
            ),
            one,
        )
        (xs,) = of_elements(
            body,
            xs.space,
            traced,
            [],
            [xs.element],
        )
        (one,) = results
    if isinstance(xs.element, Elements):
        return None
    return [
        _reduce_elements(
            body,
            source.primitive.name,
            xs,
            kind,
            one,
        )
    ]


def contracted(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """A matrix product that sums over the elements of two sequences; None for any other."""
    source = equation.source
    (left, right), batched = source.params["dimension_numbers"]
    kind = equation.outputs[0].aval
    first, second = (long_axis(type_of_atom(atom)) for atom in equation.inputs)
    pairs = [
        *zip(
            left,
            right,
            strict=True,
        )
    ]
    if is_sequence(kind) or first is None or second is None or (first, second) not in pairs:
        return None
    space = elements_space(
        values,
        equation.line,
    )
    numbers = (
        without_axis(
            left,
            first,
        ),
        without_axis(right, second),
    )
    beside = (
        without_axis(
            batched[0],
            first,
        ),
        without_axis(batched[1], second),
    )
    each = source.replace(
        params={
            **source.params,
            "dimension_numbers": (numbers, beside),
        }
    )
    types = [element_type(type_of_atom(atom)) for atom in equation.inputs]
    traced = trace(
        lambda *operands: bind(each, operands),
        *types,
    )[0]
    (products,) = of_elements(
        body,
        space,
        traced,
        [],
        [value.element for value in values],
    )
    return [
        _reduce_elements(
            body,
            "reduce_sum",
            products,
            kind,
            kind,
        )
    ]


def _reduce_elements(
    body: Body,
    name: str,
    xs: Value,
    kind: Any,
    one: Any,
) -> View:
    """Reduces the elements, in a block of pairs where the elements lie in one.

    Args:
      body: The rows around.
      name: JAX's name of the reduction.
      xs: The elements.
      kind: The type of a result.
      one: The type of an element.
    """
    if name in _IN_BLOCKS:
        found = block_reduction(
            body,
            _IN_BLOCKS[name],
            xs,
            kind,
            one,
        )
        if found is not None:
            return found
    return segments(
        body,
        SEGMENTS[name],
        xs,
        kind,
        one,
    )


def _argmax(values: Any, ids: Any, n: int) -> Any:
    """The number of each segment's largest entry, the first of equal ones; NaN counts as larger than all."""
    values = jax.lax.stop_gradient(values)
    is_none = jnp.zeros(values.shape, bool)
    if jnp.issubdtype(
        values.dtype,
        jnp.inexact,
    ):
        is_none = jnp.isnan(values)
        values = jnp.where(
            is_none,
            jnp.inf,
            values,
        )
    of_rows = (
        segment_max(
            values,
            ids,
            n,
        )
        .at[ids]
        .get(mode="clip")
    )
    number = jnp.broadcast_to(
        along(jnp.arange(len(ids)), values),
        values.shape,
    )
    # the first entry has the largest place; places of NaN, which are positive, come before all others
    place = jnp.where(
        values == of_rows,
        -number,
        least(number.dtype),
    )
    place = jnp.where(
        is_none,
        len(ids) - number,
        place,
    )
    found = segment_max(place, ids, n)
    found = jnp.where(
        found > 0,
        len(ids) - found,
        jnp.maximum(-found, 0),
    )
    # counted from the segment's own first entry, and 0 in a segment without any
    first = jnp.searchsorted(ids, jnp.arange(n))
    return jnp.maximum(found - along(first, found), 0)


def _argmin(values: Any, ids: Any, n: int) -> Any:
    return _argmax(
        _reverse_numbers(values),
        ids,
        n,
    )


def _min(values: Any, ids: Any, n: int) -> Any:
    return _reverse_numbers(
        segment_max(
            _reverse_numbers(values),
            ids,
            n,
        )
    )


def _reverse_numbers(values: Any) -> Any:
    """Numbers in reverse order."""
    return (
        -values
        if jnp.issubdtype(
            values.dtype,
            jnp.inexact,
        )
        else ~values
    )


def _or(values: Any, ids: Any, n: int) -> Any:
    """Whether a segment has a true value; of integers the bits of all together."""
    if values.dtype != np.bool_:
        return _join_entries(
            jax.lax.bitwise_or,
            0,
            values,
            ids,
            n,
        )
    return (
        segment_max(
            values.astype(np.int32),
            ids,
            n,
        )
        > 0
    )


def _and(values: Any, ids: Any, n: int) -> Any:
    return ~_or(~values, ids, n)


def _xor(values: Any, ids: Any, n: int) -> Any:
    return _join_entries(
        jax.lax.bitwise_xor,
        0,
        values,
        ids,
        n,
    )


def _product(values: Any, ids: Any, n: int) -> Any:
    """Products of segments, 1 for empty ones: the derivative is right where a factor is zero, too."""
    return _join_entries(
        jax.lax.mul,
        1,
        values,
        ids,
        n,
    )


def _join_entries(
    join: Callable[[Any, Any], Any],
    neutral: int,
    values: Any,
    ids: Any,
    n: int,
) -> Any:
    """Joins the entries of each segment: the last entries of running results.

    Args:
      join: Joins two results.
      neutral: The result of an empty segment, which changes no other.
      values: `[rows, ...]`.
      ids: `[rows]`: each row's segment, in order; `n` for none.
      n: How many segments there are.
    """
    blank = jnp.full_like(values, neutral)
    factors = jnp.where(
        along(ids < n, values),
        values,
        blank,
    )
    is_first = jnp.concatenate(
        [
            jnp.ones(
                1,
                bool,
            ),
            ids[1:] != ids[:-1],
        ]
    )[: len(ids)]

    def joined(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        starts, before = left
        starts_again, after = right
        is_apart = along(starts_again, after)
        before = jnp.where(
            is_apart,
            jnp.full_like(before, neutral),
            before,
        )
        return starts | starts_again, join(before, after)

    _, running = jax.lax.associative_scan(
        joined,
        (is_first, factors),
    )
    numbers = jnp.arange(n)
    first = jnp.searchsorted(ids, numbers)
    end = jnp.searchsorted(
        ids,
        numbers,
        side="right",
    )
    last = jnp.clip(
        end - 1,
        0,
        max(len(ids) - 1, 0),
    )
    found = taken(running, last)
    return jnp.where(
        along(end > first, found),
        found,
        jnp.full_like(found, neutral),
    )


_IN_BLOCKS = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "argmax": "argmax",
    "argmin": "argmin",
}
"""What a block calls those that it computes."""

SEGMENTS = {
    "reduce_sum": segment_sum,
    "reduce_max": segment_max,
    "argmax": _argmax,
    "argmin": _argmin,
    "reduce_min": _min,
    "reduce_prod": _product,
    "reduce_or": _or,
    "reduce_and": _and,
    "reduce_xor": _xor,
}
