"""Rules that turn sums and the like over sequences into steps: operations on the segments of rows that belong to one row around the segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.sequence_steps import sequences
from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, as_typed, filled_up
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.blocks.block_reductions import block_reduction
from ampjax.frontend.combinators.sequences import LOGSUMEXP, MAX, SUM, least
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.draft.values import Elements, Static, Wanted
from ampjax.frontend.loops.masked_rows import along
from ampjax.frontend.rules import reduction_rules
from ampjax.jaxprs.wide_sums import wide_segment_sum


@STEP_RULES.of(SUM, MAX, LOGSUMEXP)
def reduce_elements(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """A reduction of each row's elements."""
    results: list[Value] = []
    for xs, kind in zip(sequences(body, operands), call.results, strict=True):
        if not isinstance(xs, Elements) or isinstance(xs.element, Elements):
            fix = "Reduce the inner sequences in a `map` first."
            raise GraphError(
                call.line, f"a sequence of arrays for `{call.kind}`", "a sequence of sequences", fix
            )
        if isinstance(xs.element, Static):
            one = replace(call, results=[kind])
            results += reduction_rules.reduced(
                body.low.host,
                one,
                [xs],
                body.region,
                Wanted({0}),
            )
        else:
            name = call.kind.name
            found = block_reduction(body, name, xs, kind, kind)
            if found is None:
                found = segments(body, _SEGMENTS[name], xs, kind, kind)
            results.append(found)
    return results


def segments(
    body: Body,
    reduce: Callable[[Any, Any, int], Any],
    xs: Elements,
    kind: Any,
    element: Any,
) -> View:
    """Reduces the elements of each row.

    Args:
      body: The rows.
      reduce: From `[elements, ...]`, the number of each one's row, and how many rows there are to `[rows, ...]`.
      xs: The elements.
      kind: The type of a result.
      element: The type of an element.
    """
    values = body.inside(xs.space).rows(xs.element, element)
    parents = body.parents(xs.space)
    room = body.bare()
    out = Rows(kind, room)

    def compute(run: Run) -> list[Any]:
        found = reduce(
            run.get(values),
            run.slots[parents],
            run.size(room),
        )
        return [as_typed(filled_up(run, room, found), kind)]

    body.block.add([out], compute)
    return View(out, body.space)


def segment_sum(values: Any, ids: Any, n: int) -> Any:
    """Sums of segments.

    Args:
      values: `[rows, ...]`.
      ids: `[rows]`: each row's segment, sorted; `n` for none.
      n: How many segments there are.
    """
    return wide_segment_sum(values, ids, n, indices_are_sorted=True)


def segment_max(values: Any, ids: Any, n: int) -> Any:
    """Largest entries of segments, as `segment_sum`; the least number for empty ones. Equal ones share the gradient."""
    of_floats = jnp.issubdtype(values.dtype, jnp.inexact)
    return _float_max(values, ids, n) if of_floats else _largest(values, ids, n)


def _largest(values: Any, ids: Any, n: int) -> Any:
    start = jnp.full(
        (n, *values.shape[1:]),
        least(values.dtype),
        values.dtype,
    )
    return start.at[ids].max(values, mode="drop", indices_are_sorted=True)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _float_max(values: Any, ids: Any, n: int) -> Any:
    return _largest(values, ids, n)


@_float_max.defjvp
def _float_max_jvp(n: int, primals: Any, tangents: Any) -> Any:
    values, ids = primals
    change, _ = tangents
    largest = _float_max(values, ids, n)
    is_largest = _of_segments(largest, ids) == values
    count = segment_sum(is_largest.astype(values.dtype), ids, n)
    total = segment_sum(
        jnp.where(is_largest, change, jnp.zeros_like(change)),
        ids,
        n,
    )
    return largest, total / jnp.maximum(count, 1)


def segment_log_sum_exp(values: Any, ids: Any, n: int) -> Any:
    """Logarithms of segments' sums of exponentials, as `segment_sum`; minus infinity for empty ones."""
    largest = jax.lax.stop_gradient(segment_max(values, ids, n))
    largest = jnp.where(
        jnp.isfinite(largest),
        largest,
        jnp.zeros_like(largest),
    )
    is_own = along(
        ids < n, values
    )  # a copy may be far from what the last segment's largest entry is
    below = jnp.where(
        is_own,
        values - _of_segments(largest, ids),
        jnp.zeros_like(values),
    )
    total = segment_sum(jnp.exp(below), ids, n)
    is_filled = along(
        segment_sum(jnp.ones(len(ids), np.int32), ids, n) > 0,
        total,
    )
    logarithm = jnp.log(jnp.where(is_filled, total, jnp.ones_like(total))) + largest
    return jnp.where(is_filled, logarithm, -jnp.inf)


def _of_segments(values: Any, ids: Any) -> Any:
    """Each row's segment's value; the last one's for rows of none."""
    return values.at[ids].get(mode="clip", indices_are_sorted=True)


_SEGMENTS = {
    SUM.name: segment_sum,
    MAX.name: segment_max,
    LOGSUMEXP.name: segment_log_sum_exp,
}
