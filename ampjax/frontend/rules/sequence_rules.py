"""How combinators over sequences become nodes: loops, copies for each element, groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.graph_draft import built
from ampjax.frontend.deduction.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.deduction.lowering import Lowering, Wanted, by_dtype
from ampjax.frontend.deduction.values import Computed, Constant, Elements, Flow, Static, Value
from ampjax.ir.builders import ragged_builders
from ampjax.ir.state import State


def scan(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """A loop: Phi, the body, and a Cond that leaves after the last element. Without a carry only the body, one message for each element."""
    (step,), (n_closed,), k = call.functions, call.n_closed, call.options["n_carry"]
    closed, init, xs = operands[:n_closed], operands[n_closed : n_closed + k], operands[n_closed + k :]
    space = elements_space(xs, call)
    inner, name = region.within(space), step_name(step, space)
    used = step.used
    closed = [
        low.into(value, region, space, name, call.line) if variable in used else value
        for value, variable in zip(closed, step.variables, strict=False)
    ]
    rows = [x.element for x in xs if isinstance(x, Elements)]
    ys = {i for i in wanted.values if i >= k}
    if not k:
        results = low.run(step, [*closed, *rows], inner, Wanted(ys, wanted.losses))
        return [as_elements(low, r, v, inner, call) for r, v in zip(results, step.jaxpr.outvars, strict=True)]
    types = [variable.aval for variable in step.jaxpr.outvars[:k]]
    groups = by_dtype(types)
    loops = [_Loop(low, [init[i] for i in g], [types[i] for i in g], region, space, call, name) for g in groups]
    carry: dict[int, Computed] = {}
    for loop, group in zip(loops, groups, strict=True):
        carry |= {i: Computed(loop.state, part) for part, i in enumerate(group)}
    needs = Wanted(set(range(k)) | ys, wanted.losses)
    results = low.run(step, [*closed, *(carry[i] for i in range(k)), *rows], inner, needs, groups)
    final: dict[int, Value] = {}
    for loop, group in zip(loops, groups, strict=True):
        after = low.pack([results[i] for i in group], [types[i] for i in group], inner, f"{name}/carry", call.line)
        flow = loop.close(after)
        if any(i in wanted.values for i in group):
            final |= {i: Computed(flow, part) for part, i in enumerate(group)}
    out = [as_elements(low, r, v, inner, call) for r, v in zip(results, step.jaxpr.outvars, strict=True)]
    return [*(final.get(i) for i in range(k)), *out[k:]]


class _Loop:
    """One wire of a carry: its way around the loop.

    Args:
      low: The lowering.
      init: The values that start it.
      types: Their types.
      region: Where the loop is.
      space: The elements' space.
      call: The scan.
      name: What its nodes are called after.

    Attributes:
      state: The wire that enters the body.
    """

    def __init__(
        self,
        low: Lowering,
        init: Sequence[Value],
        types: list[Any],
        region: Region,
        space: IndexSpace,
        call: Call,
        name: str,
    ):
        self._low, self._region, self._space, self._name = low, region, space, name
        self._back = call.options["reverse"]
        index, size, back = space.index, space.size, self._back
        start = low.draft.fresh(low.pack(init, types, region, f"{name}/init", call.line), f"{name}/init", call.line)
        some, self._none = low.draft.split(start, lambda s: getattr(s, size) > 0, [region, region], f"{name}/any")

        def begin(s: State) -> State:
            return s.replace(**dict.fromkeys(space.facts, 0), **{index: getattr(s, size) - 1 if back else 0})

        self._enter = low.draft.relabel(some, region.within(space), begin, f"{name}/first", is_fresh=False)
        self.state = low.draft.loop(region.within(space), types, name)

    def close(self, after: Flow) -> Flow:
        """Sends what the body gave on to the next element, or out.

        Args:
          after: The wire that leaves the body.

        Returns:
          The wire of the last carry, outside of the loop.
        """
        draft, space, name = self._low.draft, self._space, self._name
        index, size, back = space.index, space.size, self._back
        ends: Callable[[State], Any] = (
            (lambda s: getattr(s, index) == 0) if back else (lambda s: getattr(s, index) + 1 == getattr(s, size))
        )
        inner = self._region.within(space)
        last, more = draft.split(after, ends, [inner, inner], f"{name}/end")
        step = -1 if back else 1
        again = draft.relabel(
            more, inner, lambda s: s.replace(**{index: getattr(s, index) + step}), f"{name}/next", False
        )
        draft.close_loop(self.state, self._enter, again)
        left = leave(self._low, last, space, self._region, f"{name}/leave")
        return draft.merge(self._region, [left, self._none], f"{name}/result")


def leave(low: Lowering, flow: Flow, space: IndexSpace, region: Region, name: str) -> Flow:
    """Takes messages out of the elements of a sequence: they lose what is said of the element.

    Args:
      low: The lowering.
      flow: The messages.
      space: The elements' space.
      region: Where they are afterwards.
      name: The node's name.
    """
    return low.draft.relabel(flow, region, lambda s: s.drop(space.index, *space.facts), name, is_fresh=True)


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


def total(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """A sum: a group of all elements, and a node that adds them up."""
    return _reduced(low, call, operands, region, _segment_sum, _column_sum)


def largest(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """The largest entries: a group of all elements, and a node that compares them."""
    return _reduced(low, call, operands, region, _segment_max, _column_max)


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
        elif isinstance(element, Computed):
            flow = element.flow
            if id(flow) not in taken:
                field = space.fact(
                    low.number("taken"), _is_at(space, wanted_row), f"whether the element is taken ({call.line})"
                )
                inner = region.within(space)
                flow = low.draft.fresh(flow, "take", call.line)
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
    return spaces[0]


def as_elements(low: Lowering, value: Any, variable: Any, inner: Region, call: Call) -> Any:
    """The sequence of what a body gave for each element; None where that is not wanted."""
    if value is None:
        return None
    if not isinstance(value, Static | Computed | Elements):
        value = low.packed([value], [variable.aval], inner, inner.space.dimension, call.line)[0]
    return Elements(inner.space, value)


def step_name(step: Any, space: IndexSpace) -> str:
    """What the nodes of a loop are called after: its sequence."""
    return space.dimension


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


def _reduced(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    segments: Callable[..., Any],
    column: Callable[..., Any],
) -> list[Any]:
    done: dict[int, Flow] = {}
    results: list[Any] = []
    for xs, kind in zip(operands, call.results, strict=True):
        if not isinstance(xs, Elements) or isinstance(xs.element, Elements):
            fix = "Sum the inner sequences in a `map` first."
            raise GraphError(call.line, f"a sequence of arrays for `{call.kind}`", "a sequence of sequences", fix)
        element, space = xs.element, xs.space
        if isinstance(element, Static):
            values = element.column.inside(space)
            outer = space.parent
            assert outer is not None
            results.append(
                Static(
                    Column(outer, lambda data, v=values, s=space, k=kind: column(v.of(data), s, data).astype(k.dtype))
                )
            )
            continue
        assert isinstance(element, Computed)
        flow = element.flow
        if id(flow) not in done:
            done[id(flow)] = _group(low, flow, space, region, call, segments)
        results.append(Computed(done[id(flow)], element.part))
    return results


def _group(
    low: Lowering, flow: Flow, space: IndexSpace, region: Region, call: Call, segments: Callable[..., Any]
) -> Flow:
    size, index = space.size, space.index
    place = low.draft.place(region, call.kind, call.line)
    together, reduced = low.draft.name(f"{call.kind}/group"), low.draft.name(call.kind)

    def make() -> Any:
        rows = ragged_builders.group(
            built(flow),
            by=region.space.key,
            size=lambda s: getattr(s, size),
            order=lambda s: getattr(s, index),
            opener=built(place),
            name=together,
        )
        return ragged_builders.reduce(reduced, segments, rows)

    return low.draft.control(region, flow.types, make)


def _segment_sum(rows: jax.Array, ids: jax.Array, n: int) -> jax.Array:
    return jax.ops.segment_sum(rows, ids, n)


def _segment_max(rows: jax.Array, ids: jax.Array, n: int) -> jax.Array:
    """The largest of each segment, entry by entry; equal ones share the gradient."""
    most = jax.lax.stop_gradient(jax.ops.segment_max(rows, ids, n))
    first = (rows == most[jnp.minimum(ids, n - 1)]).astype(rows.dtype)
    many = jax.ops.segment_sum(first, ids, n)
    mean = jax.ops.segment_sum(rows * first, ids, n) / jnp.maximum(many, 1)
    return jnp.where(many > 0, mean, most)


def _column_sum(values: np.ndarray, space: IndexSpace, data: Any) -> np.ndarray:
    assert space.parent is not None
    out = np.zeros((space.parent.n_rows(data), *values.shape[1:]), values.dtype)
    np.add.at(out, space.parents(data), values)
    return out


def _column_max(values: np.ndarray, space: IndexSpace, data: Any) -> np.ndarray:
    assert space.parent is not None
    least = -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
    out = np.full((space.parent.n_rows(data), *values.shape[1:]), least, values.dtype)
    np.maximum.at(out, space.parents(data), values)
    return out
