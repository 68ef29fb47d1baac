"""How combinators over sequences become nodes: loops, copies for each element, groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.deduction.node_bodies import NodeNote
from ampjax.frontend.deduction.values import Computed, Constant, Elements, Flow, Static, Value, Wanted
from ampjax.frontend.rules.reduction_rules import group_and_reduce, segment_sum
from ampjax.ir.state import State

if TYPE_CHECKING:
    from ampjax.frontend.instance_columns import Columns


def scan(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """A loop: Phi, the body, and a Cond that leaves after the last element. Without a carry only the body, one message for each element."""
    (step,), (n_closed,), k = call.functions, call.n_closed, call.options["n_carry"]
    closed, init, xs = operands[:n_closed], operands[n_closed : n_closed + k], operands[n_closed + k :]
    space = elements_space(xs, call)
    inner, name = region.within(space), space.dimension
    used = step.used
    if space.is_ragged:
        _check_nodes([value for value, v in zip(closed, step.variables, strict=False) if v in used], k, call)
    closed = [
        low.into(value, region, space, name, call.line) if variable in used else value
        for value, variable in zip(closed, step.variables, strict=False)
    ]
    rows = [x.element for x in xs if isinstance(x, Elements)]
    ys = {i for i in wanted.values if i >= k}
    if not k:
        results = low.run(step, [*closed, *rows], inner, Wanted(ys, wanted.losses, wanted.groups))
        return [as_elements(low, r, v, inner, call) for r, v in zip(results, step.jaxpr.outvars, strict=True)]
    types = [variable.aval for variable in step.jaxpr.outvars[:k]]
    loops = [_Loop(low, own, region, space, call) for own in _carried(init, types)]
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


@dataclass(frozen=True, eq=False)
class _Carried:
    """Parts of a carry that travel in one message.

    Args:
      members: Their numbers in the carry.
      init: The values that start them; of a sequence over a graph's nodes, what is known of a node.
      types: Their types, likewise.
      nodes: The nodes' space outside of the loop, for sequences over a graph's nodes; else None.
    """

    members: list[int]
    init: list[Value]
    types: list[Any]
    nodes: IndexSpace | None

    def named(self, flow: Flow, nodes: IndexSpace | None) -> dict[int, Value]:
        """The parts by number, on a wire that carries them."""
        parts: list[Value] = [Computed(flow, part) for part in range(len(self.members))]
        return dict(
            zip(self.members, parts if nodes is None else [Elements(nodes, part) for part in parts], strict=True)
        )


def _carried(init: Sequence[Value], types: Sequence[Any]) -> list[_Carried]:
    """What of a carry travels together: arrays of one dtype; sequences of one dtype over the nodes of one graph."""
    found: dict[Any, _Carried] = {}
    for i, (value, kind) in enumerate(zip(init, types, strict=True)):
        nodes = value.space if isinstance(value, Elements) and value.space.is_ragged else None
        own = found.setdefault((nodes, kind.dtype), _Carried([], [], [], nodes))
        own.members.append(i)
        own.init.append(value.element if nodes is not None and isinstance(value, Elements) else value)
        own.types.append(kind if nodes is None else kind.update(shape=kind.shape[1:]))
    return list(found.values())


class _Loop:
    """One wire of a carry: its way around the loop.

    Args:
      low: The lowering.
      own: What the wire carries.
      region: Where the loop is.
      space: The space of the elements that the loop goes over.
      call: The scan.

    Attributes:
      own: What the wire carries.
      carry: By number in the carry, what enters the body.
    """

    def __init__(self, low: Lowering, own: _Carried, region: Region, space: IndexSpace, call: Call):
        self._low, self.own, self._space, self._call = low, own, space, call
        self._back, self._name = call.options["reverse"], space.dimension
        self._outer, self._inner, self._nodes = region, region.within(space), None
        if own.nodes is not None:
            sizes = own.nodes.sizes
            assert sizes is not None
            self._nodes = space.along(own.nodes.dimension, sizes.inside(space), is_ragged=True)
            self._outer, self._inner = region.within(own.nodes), region.within(self._nodes)
        index, size, back, name = space.index, space.size, self._back, self._name
        start = low.pack(own.init, own.types, self._outer, f"{name}/init", call.line)
        start = low.draft.fresh(start, f"{name}/init", call.line)
        some, self._none = low.draft.split(
            start, lambda s: getattr(s, size) > 0, [self._outer, self._outer], f"{name}/any"
        )

        self._ahead: dict[str, tuple[str, str]] = {}

        def begin(s: State) -> State:
            known = {field: getattr(s, first) for field, (first, _) in self._ahead.items()}
            return s.replace(**{**dict.fromkeys(space.facts, 0), **known, index: getattr(s, size) - 1 if back else 0})

        self._enter = low.draft.relabel(some, self._inner, begin, f"{name}/first", is_fresh=False)
        self._state = low.draft.loop(self._inner, own.types, name)
        if self._nodes is None:
            self._state.foresees = self._foresee
        self.carry = own.named(self._state, self._nodes)

    def _foresee(self, field: str, column: Column) -> None:
        """Lets messages carry a field of the element that they come to: of the first when they enter, of the next at each step."""
        space, back = self._space, self._back

        def of_first(data: Columns) -> np.ndarray:
            n = space.lengths(data)
            found, some = np.zeros(len(n), np.int64), np.flatnonzero(n > 0)
            found[some] = column.of(data)[(space.starts(data) + (n - 1 if back else 0))[some]]
            return found

        def of_next(data: Columns) -> np.ndarray:
            values, n = column.of(data), space.n_rows(data)
            moved = np.roll(values, 1 if back else -1)
            at, size = space.numbers(data), space.lengths(data)[space.parents(data)]
            return np.where(at == 0 if back else at + 1 == size, 0, moved) if n else values

        way, around = "last" if back else "first", self._outer.space
        first = around.fact(f"{field}_{way}", Column(around, of_first), f"`{field}` of the {way} element")
        way = "previous" if back else "next"
        self._ahead[field] = (
            first,
            space.fact(f"{field}_{way}", Column(space, of_next), f"`{field}` of the {way} element"),
        )

    def close(self, results: Sequence[Any]) -> dict[int, Value]:
        """Sends what the body gave on to the next element, or out.

        Args:
          results: What the body gave, by number in the carry.

        Returns:
          By number in the carry, the last one outside of the loop.
        """
        draft, space, name, inner = self._low.draft, self._space, self._name, self._inner
        index, size, back = space.index, space.size, self._back
        ends: Callable[[State], Any] = (
            (lambda s: getattr(s, index) == 0) if back else (lambda s: getattr(s, index) + 1 == getattr(s, size))
        )
        values = [results[i] for i in self.own.members]
        if self._nodes is not None:
            values = [value.element for value in values]
        after = self._low.pack(values, self.own.types, inner, f"{name}/carry", self._call.line)
        if self._ahead or not after.knows_outer:
            after = draft.fresh(after, f"{name}/carry", self._call.line)
        last, more = draft.split(after, ends, [inner, inner], f"{name}/end")
        step = -1 if back else 1

        def go_on(s: State) -> State:
            known = {field: getattr(s, coming) for field, (_, coming) in self._ahead.items()}
            return s.replace(**{index: getattr(s, index) + step}, **known)

        again = draft.relabel(more, inner, go_on, f"{name}/next", False)
        draft.close_loop(self._state, self._enter, again)
        left = leave(self._low, last, space, self._outer, f"{name}/leave")
        return self.own.named(draft.merge(self._outer, [left, self._none], f"{name}/result"), self.own.nodes)


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
    (chosen,) = low.draft.compute(note)
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
