"""JAX's own operations on whole sequences that become steps: turned around, summed up, the largest entry and its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.reduction_steps import segment_max, segments
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.sequences import least
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.values import Elements


def rev(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """The elements from the last to the first; None along another axis."""
    (xs,) = values
    if equation.source.params["dimensions"] != (0,):
        return None
    xs = body.low.copied(xs, body.space)
    space = xs.space

    def origin(data: Any) -> np.ndarray:
        around = space.parents(data)
        return space.starts(data)[around] + space.lengths(data)[around] - 1 - space.numbers(data)

    return [Elements(space, body.low.value_at(xs.element, space, space, origin, "turned"))]


def reduced(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """What `sum`, `max`, `argmax` and `argmin` give over the elements; None over other axes."""
    (xs,) = values
    params = equation.source.params
    kind = equation.outputs[0].aval
    if tuple(params["axes"]) != (0,):
        return None
    xs = body.low.copied(xs, body.space)
    if isinstance(xs.element, Elements):
        return None
    return [segments(body, _SEGMENTS[equation.source.primitive.name], xs, kind, _element(equation))]


def _element(equation: Equation) -> Any:
    given = equation.inputs[0].aval  # type: ignore[union-attr]
    return jax.ShapeDtypeStruct(given.shape[1:], given.dtype)


def _sum(values: Any, ids: Any, n: int) -> Any:
    return jax.ops.segment_sum(values, ids, n, indices_are_sorted=True)


def _argmax(values: Any, ids: Any, n: int) -> Any:
    """The number of each segment's largest entry, the first of equal ones; NaN counts as larger than all."""
    values = jax.lax.stop_gradient(values)
    if jnp.issubdtype(values.dtype, jnp.inexact):
        values = jnp.where(jnp.isnan(values), jnp.inf, values)
    of_rows = segment_max(values, ids, n).at[ids].get(mode="clip")
    number = jnp.arange(len(ids)) - jnp.searchsorted(ids, ids)
    number = jnp.broadcast_to(
        number.reshape(
            -1,
            *(1,) * (values.ndim - 1),
        ),
        values.shape,
    )
    found = segment_max(
        jnp.where(values == of_rows, -number, least(number.dtype)),
        ids,
        n,
    )
    return jnp.maximum(-found, 0)


def _argmin(values: Any, ids: Any, n: int) -> Any:
    return _argmax(
        -values if jnp.issubdtype(values.dtype, jnp.inexact) else ~values,
        ids,
        n,
    )


_SEGMENTS = {"reduce_sum": _sum, "reduce_max": segment_max, "argmax": _argmax, "argmin": _argmin}
WHOLE = {"rev": rev, **dict.fromkeys(_SEGMENTS, reduced)}
"""By the name of JAX's primitive, what makes steps of it."""
