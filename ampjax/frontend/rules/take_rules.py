"""The rule of elements that are taken by number: the element's message leaves its sequence, or goes to each place that reads the element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.sequences import TAKE
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.combinators.user_errors import BATCHES_TAKE_IT
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import NodeNote
from ampjax.frontend.draft.reads import Reads, as_messages
from ampjax.frontend.draft.values import (
    Computed,
    Constant,
    Elements,
    Flow,
    SequenceSource,
    Static,
    Value,
    Wanted,
)
from ampjax.frontend.rules.carry_loops import leave
from ampjax.frontend.rules.reduction_rules import group_and_reduce, segment_sum


@MESSAGE_RULES.of(TAKE)
def take(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """One element of each sequence. Of one that comes from outside no copy is made: each row reads its element where the sequence is."""
    at, *sequences = operands
    if not isinstance(at, Static | Constant):
        fix = f"Choose by the instance's integers; or weigh all elements, as attention does. {BATCHES_TAKE_IT}"
        raise GraphError(
            call.line,
            "an element's number that follows from the instance",
            "one that depends on parameters",
            fix,
        )
    place = low.column(
        at,
        region,
        jax.ShapeDtypeStruct((), np.int64),
    )
    taken: dict[Flow, Flow] = {}
    results = []
    for xs in sequences:
        assert isinstance(xs, Elements)
        results.append(
            _element(
                low,
                xs,
                place,
                region,
                taken,
                call,
            )
        )
    return results


def _element(
    low: Lowering,
    xs: Elements,
    place: Column,
    region: Region,
    taken: dict[Flow, Flow],
    call: Call,
) -> Value:
    """One element of one sequence; elements of one message are taken together.

    Args:
      low: The draft and what is known of it.
      xs: The sequence.
      place: The element's number in it.
      region: Where the element is read.
      taken: The messages of elements that other sequences have taken; this one's is added.
      call: The combinator.
    """
    space = xs.space
    number = _number_in(space, place)
    low.draft.checks.append(
        lambda data: check_taken(
            data,
            region,
            space,
            number,
            call.line,
        )
    )
    source = xs.source if region.is_known else None
    original = xs if source is None else source.elements
    row = _row_in(space, source, number)
    element = original.element
    if isinstance(element, Static):
        column = element.column.inside(original.space)
        return Static(
            Column(
                region.space,
                lambda data: _rows_at(column.of(data), row(data)),
            )
        )
    if not isinstance(element, Computed):
        raise GraphError(
            call.line,
            "a sequence of arrays",
            "a sequence of sequences",
            "Take an element inside `map`.",
        )
    flow = element.flow
    if flow not in taken:
        if original is xs:
            taken[flow] = _take_out(
                low,
                flow,
                space,
                number,
                region,
                call,
            )
        else:
            taken[flow] = _read(
                low,
                flow,
                original.space,
                row,
                region,
                call,
            )
    return Computed(taken[flow], element.part)


def _read(
    low: Lowering,
    flow: Flow,
    space: IndexSpace,
    row: Callable[[Any], np.ndarray],
    region: Region,
    call: Call,
) -> Flow:
    """Copies an element for each row that reads the element."""
    flow = low.once(
        (flow, "alone"),
        lambda: _message_each(low, flow, call),
    )
    reads = Reads(
        region,
        flow.region.space,
        lambda data: _of_region(row(data), region, data),
        low.number("read"),
        call.line,
    )
    return reads.copies(low.draft, flow)


def _message_each(low: Lowering, flow: Flow, call: Call) -> Flow:
    """A message for each element, with the state of its place."""
    if flow.region.space.is_ragged:
        return as_messages(low.draft, flow, "take", call.line)
    return payload_notes.refresh_states(low.draft, flow, "take", call.line)


def _of_region(
    column: np.ndarray,
    region: Region,
    data: Any,
) -> np.ndarray:
    rows = region.rows(data)
    return column if rows is None else column[rows]


def _take_out(
    low: Lowering,
    flow: Flow,
    space: IndexSpace,
    number: Callable[[Any], np.ndarray],
    region: Region,
    call: Call,
) -> Flow:
    """The element of each row's own sequence: its message goes out, the others end."""
    is_it = Column(
        space,
        lambda data: (space.numbers(data) == number(data)[space.parents(data)]).astype(np.int64),
    )
    if space.is_ragged:
        return _row_of(low, flow, is_it, region, call)
    field = space.fact(low.number("taken"), is_it, f"whether the element is taken ({call.line})")
    inner = region.within(space)
    flow = low.once(
        (flow, "alone"),
        lambda: _message_each(low, flow, call),
    )
    chosen, _ = low.draft.split(
        flow,
        lambda s: getattr(s, field) == 1,
        [inner, inner],
        "take",
    )
    return leave(low, chosen, space, region, "take/leave")


def _row_of(
    low: Lowering,
    flow: Flow,
    is_it: Column,
    region: Region,
    call: Call,
) -> Flow:
    """The chosen row of each ragged message: the sum of all rows, of which all others are made zero."""
    rows: list[Value] = [Computed(flow, part) for part in range(len(flow.types))]
    flag = jax.ShapeDtypeStruct((), np.int32)

    def mask_element(
        _: Any,
        chosen: Any,
        *values: Any,
    ) -> list[Any]:
        result = []
        for value in values:
            result.append(jnp.where(chosen == 1, value, jnp.zeros_like(value)))
        return result

    group = [range(len(rows))]
    note = NodeNote(
        "take",
        flow.region,
        [Static(is_it), *rows],
        [flag, *flow.types],
        mask_element,
        flow.types,
        group,
        call.line,
    )
    (chosen,) = payload_notes.compute(low.draft, note)
    return group_and_reduce(low, chosen, flow.region.space, region, call, segment_sum)


def _number_in(
    space: IndexSpace,
    place: Column,
) -> Callable[[Any], np.ndarray]:
    """`[rows]`: which element each row takes of its sequence, counted from the first."""

    def numbers(data: Any) -> np.ndarray:
        at = place.of(data).astype(np.int64)
        n = space.lengths(data)
        return np.where(at < 0, at + n, at)

    return numbers


def _row_in(
    space: IndexSpace,
    source: SequenceSource | None,
    number: Callable[[Any], np.ndarray],
) -> Callable[[Any], np.ndarray]:
    """Makes a function for the row that each row takes, `[rows]`, in the space of its own sequence, or of the sequence of which this is a copy."""
    if source is None:
        return lambda data: space.starts(data) + number(data)
    return lambda data: source.elements.space.starts(data)[source.rows(data)] + number(data)


def check_taken(
    data: Any,
    region: Region,
    space: IndexSpace,
    number: Callable[[Any], np.ndarray],
    line: str,
) -> None:
    """Checks that the elements that are taken exist, wherever they are taken."""
    at = number(data)
    n = space.lengths(data)
    is_missing = (at < 0) | (at >= n)
    for row in region.rows_where(data, is_missing)[:1].tolist():
        raise DataError(
            f"{line}, instance {region.space.instances(data)[row]}",
            "an element that the sequence has",
            f"number {at[row]} of {n[row]} elements",
            "Take what is there; `amp.cond` of `amp.length` chooses what to do without.",
        )


def _rows_at(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of a column; anything where a row's sequence has no such element, which nobody reads."""
    if not len(values):
        return np.zeros(
            (len(rows), *values.shape[1:]),
            values.dtype,
        )
    return values[np.clip(rows, 0, len(values) - 1)]
