"""The rule of sums and other reductions over a sequence: a group of all elements, and a node that reduces the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.sequences import LOGSUMEXP, MAX, SUM, least
from ampjax.frontend.combinators.tracing import Call, Combinator
from ampjax.frontend.deduction.joined_calls import REDUCTIONS
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.graph_draft import built_wire
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import pack, unpack
from ampjax.frontend.draft.values import Computed, Elements, Flow, Static, Value, Wanted
from ampjax.ir.builders import ragged_builders
from ampjax.jaxprs.wide_sums import WIDE, is_low, wide_segment_sum


@MESSAGE_RULES.of(SUM, MAX, LOGSUMEXP)
def reduced(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers a reduction: a group of all elements, and a node that reduces the group; of a column, on the host."""
    reduction = _REDUCTIONS[call.kind.name]
    done: dict[int, Flow] = {}
    results: list[Any] = []
    for xs, kind in zip(operands, call.results, strict=True):
        if not isinstance(xs, Elements) or isinstance(xs.element, Elements):
            fix = "Sum the inner sequences in a `map` first."
            raise GraphError(
                call.line, f"a sequence of arrays for `{call.kind}`", "a sequence of sequences", fix
            )
        element = xs.element
        space = xs.space
        if isinstance(element, Static):
            values = element.column.inside(space)
            outer = space.parent
            assert outer is not None
            results.append(
                Static(
                    Column(
                        outer,
                        lambda data, v=values, s=space, k=kind: reduction.column(
                            v.of(data), s, data
                        ).astype(k.dtype),
                    )
                )
            )
            continue
        assert isinstance(element, Computed)
        flow = element.flow
        if id(flow) not in done:
            done[id(flow)] = group_and_reduce(
                low,
                flow,
                space,
                region,
                call,
                reduction.segments,
            )
        results.append(Computed(done[id(flow)], element.part))
    return results


@MESSAGE_RULES.of(REDUCTIONS)
def several(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers several reductions of sequences of one length: reductions of elements that travel together are one node."""
    jobs: dict[int, list[int]] = {}
    results: list[Any] = [None] * len(operands)
    kinds = call.options["kinds"]
    for i, xs in enumerate(operands):
        if isinstance(xs, Elements) and isinstance(xs.element, Computed):
            jobs.setdefault(id(xs.element.flow), []).append(i)
        else:
            one = replace(
                call,
                kind=kinds[i],
                results=[call.results[i]],
            )
            (results[i],) = reduced(
                low,
                one,
                [xs],
                region,
                Wanted({0}),
            )
    for members in jobs.values():
        first = operands[members[0]]
        assert isinstance(first, Elements) and isinstance(first.element, Computed)
        flow, parts = first.element.flow, [operands[i].element.part for i in members]  # type: ignore[union-attr]
        layout = tuple((tuple(kind.shape), str(kind.dtype)) for kind in flow.types)
        each = Segments(
            layout,
            tuple((kinds[i].name, part) for i, part in zip(members, parts, strict=True)),
        )
        types = [flow.types[part] for part in parts]
        name = "_".join(dict.fromkeys(kinds[i].name for i in members))
        together = group_and_reduce(
            low,
            flow,
            first.space,
            region,
            replace(call, kind=Combinator(name)),
            each,
            types,
        )
        for place, i in enumerate(members):
            results[i] = Computed(together, place)
    return results


@dataclass(frozen=True)
class Segments:
    """Several reductions of the rows of each segment.

    Args:
      layout: Shapes and dtypes of the values that a row packs.
      jobs: Which reductions, in order: each a combinator and the number of a value.
    """

    layout: tuple[tuple[tuple[int, ...], str], ...]
    jobs: tuple[tuple[str, int], ...]

    def __call__(
        self,
        rows: jax.Array,
        ids: jax.Array,
        n: int,
    ) -> jax.Array:
        """Reduces rows `[r, ...]` by their sorted segment numbers to rows `[n, ...]` that pack the results."""
        types = []
        for shape, dtype in self.layout:
            types.append(jax.ShapeDtypeStruct(shape, np.dtype(dtype)))
        values = jax.vmap(lambda row: unpack(row, types))(rows)
        results = []
        for kind, part in self.jobs:
            results.append(_REDUCTIONS[kind].segments(values[part], ids, n))
        return jax.vmap(lambda *parts: pack(parts))(*results)


def group_and_reduce(
    low: Lowering,
    flow: Flow,
    space: IndexSpace,
    region: Region,
    call: Call,
    segments: Callable[..., Any],
    types: Sequence[Any] | None = None,
) -> Flow:
    """Notes a group of all elements of each sequence, and the node that reduces the group to one row.

    Args:
      low: The lowering.
      flow: The elements' messages.
      space: The elements' space.
      region: Where the sequences are.
      call: The combinator.
      segments: `segments(rows, ids, n)`: reduces rows `[r, ...]` by their sorted segment numbers to `[n, ...]`.
      types: What the results pack; by default what the elements do.
    """
    results = list(types or flow.types)
    word = call.kind.name
    reduced = low.draft.name(word)
    if space.is_ragged:
        return low.draft.control(
            region,
            results,
            lambda: ragged_builders.reduce(reduced, segments, built_wire(flow)),
            flow.is_fresh,
        )
    size = space.add_size()
    index = space.index
    place = payload_notes.place(low.draft, region, word, call.line)
    together = low.draft.name(f"{word}/group")

    def make() -> Any:
        rows = ragged_builders.group(
            built_wire(flow),
            by=region.space.key,
            size=lambda s: getattr(s, size),
            order=lambda s: getattr(s, index),
            opener=built_wire(place),
            name=together,
        )
        return ragged_builders.reduce(reduced, segments, rows)

    return low.draft.control(region, results, make)


def segment_sum(
    rows: jax.Array,
    ids: jax.Array,
    n: int,
) -> jax.Array:
    """The sum of each segment."""
    return wide_segment_sum(rows, ids, n)


def _segment_max(
    rows: jax.Array,
    ids: jax.Array,
    n: int,
) -> jax.Array:
    """The largest of each segment, entry by entry; equal ones share the gradient."""
    most = jax.lax.stop_gradient(jax.ops.segment_max(rows, ids, n))
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        return most
    first = (rows == most[jnp.minimum(ids, n - 1)]).astype(rows.dtype)
    many = wide_segment_sum(first, ids, n)
    mean = wide_segment_sum(rows * first, ids, n) / jnp.maximum(many, 1)
    return jnp.where(many > 0, mean, most)


def _segment_log_sum_exp(
    rows: jax.Array,
    ids: jax.Array,
    n: int,
) -> jax.Array:
    """Of each segment, entry by entry; entries of minus infinity add nothing, in gradients neither."""
    most = jax.lax.stop_gradient(jax.ops.segment_max(rows, ids, n))
    top = jnp.where(jnp.isfinite(most), most, 0)
    total = wide_segment_sum(
        jnp.exp(rows - top[jnp.minimum(ids, n - 1)]),
        ids,
        n,
    )
    return jnp.where(
        total > 0,
        top + jnp.log(jnp.where(total > 0, total, 1)),
        most,
    )


def _column_sum(
    values: np.ndarray,
    space: IndexSpace,
    data: Any,
) -> np.ndarray:
    assert space.parent is not None
    out = np.zeros(
        (space.parent.n_rows(data), *values.shape[1:]),
        WIDE if is_low(values.dtype) else values.dtype,
    )
    np.add.at(out, space.parents(data), values)
    return out.astype(values.dtype)


def _column_log_sum_exp(
    values: np.ndarray,
    space: IndexSpace,
    data: Any,
) -> np.ndarray:
    most = _column_max(values, space, data)
    top = np.where(np.isfinite(most), most, 0)
    total = _column_sum(
        np.exp(values - top[space.parents(data)]),
        space,
        data,
    )
    return np.where(
        total > 0,
        top + np.log(np.where(total > 0, total, 1)),
        most,
    )


def _column_max(
    values: np.ndarray,
    space: IndexSpace,
    data: Any,
) -> np.ndarray:
    assert space.parent is not None
    out = np.full(
        (space.parent.n_rows(data), *values.shape[1:]),
        least(values.dtype),
        values.dtype,
    )
    np.maximum.at(out, space.parents(data), values)
    return out


@dataclass(frozen=True)
class _Reduction:
    """A reduction of the elements of each sequence.

    Args:
      segments: `segments(rows, ids, n)`: of messages, as `segment_sum`.
      column: `column(values, space, data)`: of the host's values for all elements of a space.
    """

    segments: Callable[[jax.Array, jax.Array, int], jax.Array]
    column: Callable[[np.ndarray, IndexSpace, Any], np.ndarray]


_REDUCTIONS = {
    SUM.name: _Reduction(segment_sum, _column_sum),
    MAX.name: _Reduction(_segment_max, _column_max),
    LOGSUMEXP.name: _Reduction(_segment_log_sum_exp, _column_log_sum_exp),
}
