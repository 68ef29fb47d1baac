"""JAX's own reductions over the elements of whole sequences, and matrix products that sum over elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.reduction_steps import segment_max, segment_sum, segments
from ampjax.frontend.batch_rules.sequence_steps import mapped
from ampjax.frontend.batches.programs_of_rows import along
from ampjax.frontend.batches.room_bodies import Body, element_type, is_sequence, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.sequences import least
from ampjax.frontend.combinators.tracing import Call, trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.values import Elements
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
    axes = tuple(source.params["axes"])
    kind = equation.outputs[0].aval
    if 0 not in axes:
        return None
    one = element_type(type_of_atom(equation.inputs[0]))
    if len(axes) > 1:
        others = tuple(axis - 1 for axis in axes if axis)
        each = source.replace(
            params={
                **source.params,
                "axes": others,
            }
        )
        traced, _, results = trace(
            lambda x: bind(each, [x]),
            one,
        )
        (xs,) = mapped(
            body,
            xs.space,
            traced,
            [xs.element],
        )
        (one,) = results
    if isinstance(xs.element, Elements):
        return None
    return [
        segments(
            body,
            SEGMENTS[source.primitive.name],
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
    (left, right), (batched, _) = source.params["dimension_numbers"]
    both = all(isinstance(value, Elements) for value in values)
    if (
        not both
        or batched
        or (0, 0)
        not in zip(
            left,
            right,
            strict=True,
        )
    ):
        return None
    space = elements_space(
        values,
        Call("dot_general", [], line=equation.line),
    )
    pairs = [
        pair
        for pair in zip(
            left,
            right,
            strict=True,
        )
        if pair != (0, 0)
    ]
    numbers = tuple(axis - 1 for axis, _ in pairs), tuple(axis - 1 for _, axis in pairs)
    each = source.replace(
        params={
            **source.params,
            "dimension_numbers": (numbers, ((), ())),
        }
    )
    types = [element_type(type_of_atom(atom)) for atom in equation.inputs]
    traced = trace(
        lambda *operands: bind(each, operands),
        *types,
    )[0]
    (products,) = mapped(
        body,
        space,
        traced,
        [value.element for value in values],
    )
    kind = equation.outputs[0].aval
    if is_sequence(kind):
        return None
    return [segments(body, segment_sum, products, kind, kind)]


def _argmax(values: Any, ids: Any, n: int) -> Any:
    """The number of each segment's largest entry, the first of equal ones; NaN counts as larger than all."""
    values = jax.lax.stop_gradient(values)
    if jnp.issubdtype(values.dtype, jnp.inexact):
        values = jnp.where(
            jnp.isnan(values),
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
    number = jnp.arange(len(ids)) - jnp.searchsorted(
        ids,
        ids,
    )
    number = jnp.broadcast_to(along(number, values), values.shape)
    found = segment_max(
        jnp.where(
            values == of_rows,
            -number,
            least(number.dtype),
        ),
        ids,
        n,
    )
    return jnp.maximum(-found, 0)


def _argmin(values: Any, ids: Any, n: int) -> Any:
    return _argmax(_turned(values), ids, n)


def _min(values: Any, ids: Any, n: int) -> Any:
    return _turned(segment_max(_turned(values), ids, n))


def _turned(values: Any) -> Any:
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
    return segment_max(values.astype(np.int32), ids, n) > 0


def _and(values: Any, ids: Any, n: int) -> Any:
    return ~_or(~values, ids, n)


SEGMENTS = {
    "reduce_sum": segment_sum,
    "reduce_max": segment_max,
    "argmax": _argmax,
    "argmin": _argmin,
    "reduce_min": _min,
    "reduce_or": _or,
    "reduce_and": _and,
}
