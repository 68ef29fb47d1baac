"""How combinators over sequences become nodes: loops, copies for each element, groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import NodeNote
from ampjax.frontend.draft.values import Computed, Constant, Elements, Flow, Static, Value, Wanted
from ampjax.frontend.rules.first_rounds import begun_apart, first_round
from ampjax.frontend.rules.foresight import Foresight
from ampjax.frontend.rules.loops import Loop, carried, leave
from ampjax.frontend.rules.reduction_rules import group_and_reduce, segment_sum


def scan(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """A loop: Phi, the body, and a Cond that leaves after the last element. Without a carry only the body, one message for each element."""
    (step,), (n_closed,), k = call.functions, call.n_closed, call.options["n_carry"]
    closed, init, xs = operands[:n_closed], operands[n_closed : n_closed + k], operands[n_closed + k :]
    space = elements_space(xs, call)
    inner, name = region.within(space), space.dimension
    if space.is_ragged:
        used = step.used
        _check_nodes([value for value, v in zip(closed, step.variables, strict=False) if v in used], k, call)
    (closed,) = low.closures(call, operands, region, [space], name)
    rows = [x.element for x in xs if isinstance(x, Elements)]
    ys = {i for i in wanted.values if i >= k}
    if not k:
        results = low.run(step, [*closed, *rows], inner, Wanted(ys, wanted.losses, wanted.groups))
        return [as_elements(low, r, v, inner, call) for r, v in zip(results, step.jaxpr.outvars, strict=True)]
    if (first := first_round(step, closed, init, rows, region, wanted)) is not None:
        return begun_apart(low, call, [*closed, *init, *rows], first, region, space, wanted)
    types = [variable.aval for variable in step.jaxpr.outvars[:k]]
    ahead = Foresight(region.space, space, call.options["reverse"])
    loops = [Loop(low, own, region, space, call, ahead) for own in carried(init, types)]
    carry: dict[int, Value] = {}
    for loop in loops:
        carry |= loop.carry
    packed = [loop.own.members for loop in loops if loop.own.nodes is None]
    needs = Wanted(set(range(k)) | ys, wanted.losses, packed)
    results = low.run(step, [*closed, *(carry[i] for i in range(k)), *rows], inner, needs)
    final: dict[int, Value] = {}
    for loop in loops:
        last = loop.close(results)
        if any(i in wanted.values for i in loop.own.members):
            final |= last
    out = [as_elements(low, r, v, inner, call) for r, v in zip(results, step.jaxpr.outvars, strict=True)]
    return [*(final.get(i) for i in range(k)), *out[k:]]


def count(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """The numbers of so many elements: a space of its own."""
    n, dimension = operands[0], call.options["dimension"]
    if not isinstance(n, Static | Constant):
        fix = "Use `amp.while_loop` with `amp.read`, and say how many rounds there can be."
        raise GraphError(call.line, "a number that follows from the instance", "one that depends on parameters", fix)
    sizes = low.column(n, region, jax.ShapeDtypeStruct((), np.int32))
    space = region.space.along(dimension, sizes)
    low.lengths[dimension] = sizes
    return [Elements(space, Static(Column(space, lambda data: space.numbers(data).astype(np.int32))))]


def length(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """How many elements each row has: known from the instance."""
    (xs,) = operands
    sizes = xs.space.sizes if isinstance(xs, Elements) else low.length_of(call.options["dimension"], call.line)
    if sizes is None:
        raise GraphError(call.line, "a length that follows from the instance", "one that the run tells", "Count in it.")
    return [Static(Column(sizes.space, lambda data: np.maximum(sizes.of(data), 0).astype(np.int32)))]


def take(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """One element: its message goes out, the others end."""
    at, *sequences = operands
    if not isinstance(at, Static | Constant):
        fix = "Choose by the instance's integers; or weigh all elements, as attention does."
        raise GraphError(
            call.line, "an element's number that follows from the instance", "one that depends on parameters", fix
        )
    place = low.column(at, region, jax.ShapeDtypeStruct((), np.int64))
    taken: dict[int, Flow] = {}
    results: list[Any] = []
    for xs in sequences:
        assert isinstance(xs, Elements)
        space, element = xs.space, xs.element
        wanted_row = _row_at(space, place)
        low.draft.checks.append(lambda data, s=space, w=wanted_row: _check_taken(data, region, s, w, call.line))
        if isinstance(element, Static):
            column = element.column.inside(space)
            results.append(
                Static(Column(region.space, lambda data, c=column, s=space, w=wanted_row: _rows_at(data, c, s, w)))
            )
        elif isinstance(element, Computed) and space.is_ragged:
            flow = element.flow
            if id(flow) not in taken:
                taken[id(flow)] = _row_of(low, flow, _is_at(space, wanted_row), region, call)
            results.append(Computed(taken[id(flow)], element.part))
        elif isinstance(element, Computed):
            flow = element.flow
            if id(flow) not in taken:
                field = space.fact(
                    low.number("taken"), _is_at(space, wanted_row), f"whether the element is taken ({call.line})"
                )
                inner = region.within(space)
                flow = payload_notes.fresh(low.draft, flow, "take", call.line)
                chosen, _ = low.draft.split(flow, lambda s, f=field: getattr(s, f) == 1, [inner, inner], "take")
                taken[id(element.flow)] = leave(low, chosen, space, region, "take/leave")
            results.append(Computed(taken[id(element.flow)], element.part))
        else:
            raise GraphError(
                call.line, "a sequence of arrays", "a sequence of sequences", "Take an element inside `map`."
            )
    return results


def elements_space(xs: Sequence[Value], call: Call) -> IndexSpace:
    """The space of the elements of sequences that are gone through together.

    Args:
      xs: The sequences.
      call: The combinator.

    Raises:
      GraphError: If one is no sequence, or they are of different spaces.
    """
    spaces = [x.space if isinstance(x, Elements) else None for x in xs]
    if spaces[0] is None or any(space is not spaces[0] for space in spaces):
        fix = "Go through the instance's sequences, or what `map`, `scan` or `fold_tree` gave."
        raise GraphError(call.line, "sequences with the same elements", f"{', '.join(map(str, spaces))}", fix)
    if spaces[0].is_ragged and call.kind in ("fold", "scan_tree"):
        fix = "Give the graph's nodes and the tree's dimensions of different names."
        raise GraphError(call.line, "a dimension of its own for the nodes of a tree", "the nodes of a graph", fix)
    return spaces[0]


def as_elements(low: Lowering, value: Any, variable: Any, inner: Region, call: Call) -> Any:
    """The sequence of what a body gave for each element; None where that is not wanted."""
    if value is None:
        return None
    if not isinstance(value, Static | Computed | Elements):
        value = low.packed([value], [variable.aval], inner, inner.space.dimension, call.line)[0]
    return Elements(inner.space, value)


def _check_nodes(closed: Sequence[Value], n_carry: int, call: Call) -> None:
    """Checks what is computed for each node of a graph: one after the other, or with a sequence from outside, it can't be."""
    if n_carry:
        fix = (
            "Use `amp.map`, `amp.propagate`, `amp.sum`; nodes have no order unless an edge leads from each to the next."
        )
        raise GraphError(call.line, "a sequence whose elements come one after the other", "the nodes of a graph", fix)
    if any(isinstance(value, Elements) for value in closed):
        fix = "Reduce or take from it outside; a sequence over the same nodes is an argument of the `map`."
        raise GraphError(call.line, "arrays beside a node of a graph", "a whole sequence from outside", fix)


def _row_of(low: Lowering, flow: Flow, is_it: Column, region: Region, call: Call) -> Flow:
    """The chosen row of each ragged message: the sum of all rows, of which all others are made zero."""
    rows: list[Value] = [Computed(flow, part) for part in range(len(flow.types))]
    flag = jax.ShapeDtypeStruct((), np.int32)

    def masked(_: Any, chosen: Any, *values: Any) -> list[Any]:
        return [jnp.where(chosen == 1, value, jnp.zeros_like(value)) for value in values]

    group = [range(len(rows))]
    note = NodeNote(
        "take", flow.region, [Static(is_it), *rows], [flag, *flow.types], masked, flow.types, group, call.line
    )
    (chosen,) = payload_notes.compute(low.draft, note)
    return group_and_reduce(low, chosen, flow.region.space, region, call, segment_sum)


def _row_at(space: IndexSpace, place: Column) -> Callable[[Any], np.ndarray]:
    def rows(data: Any) -> np.ndarray:
        at, n = place.of(data).astype(np.int64), space.lengths(data)
        return np.where(at < 0, at + n, at)

    return rows


def _check_taken(
    data: Any, region: Region, space: IndexSpace, wanted_row: Callable[[Any], np.ndarray], line: str
) -> None:
    """Checks that the elements that are taken are there, wherever they are taken."""
    at, n, rows = wanted_row(data), space.lengths(data), region.rows(data)
    is_missing = (at < 0) | (at >= n)
    for row in (np.flatnonzero(is_missing) if rows is None else rows[is_missing[rows]])[:1].tolist():
        raise DataError(
            f"{line}, instance {region.space.instances(data)[row]}",
            "an element that the sequence has",
            f"number {at[row]} of {n[row]} elements",
            "Take what is there; `amp.cond` of `amp.length` chooses what to do without.",
        )


def _rows_at(data: Any, column: Column, space: IndexSpace, wanted_row: Callable[[Any], np.ndarray]) -> np.ndarray:
    """One element of each row's sequence; anything where it has none, which nobody reads."""
    values, rows = column.of(data), space.starts(data) + wanted_row(data)
    return (
        values[np.clip(rows, 0, len(values) - 1)]
        if len(values)
        else np.zeros((len(rows), *values.shape[1:]), values.dtype)
    )


def _is_at(space: IndexSpace, wanted_row: Callable[[Any], np.ndarray]) -> Column:
    return Column(space, lambda data: (space.numbers(data) == wanted_row(data)[space.parents(data)]).astype(np.int64))
