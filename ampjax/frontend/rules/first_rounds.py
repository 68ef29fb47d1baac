"""Loops whose first round is compiled for itself: the carry begins with constants, and what is left of the body with these needs no parameters.

So a recurrent cell that begins with zeros multiplies none of them by its matrix, and no message brings the zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.deduction.index_spaces import Guard, IndexSpace, Region
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.deduction.opened_functions import Opened, opened
from ampjax.frontend.deduction.values import Computed, Constant, Elements, Flow, Value, Wanted
from ampjax.frontend.rules.branch_rules import merged
from ampjax.frontend.rules.loops import Carried, Order, carried, leave
from ampjax.ir.state import State


def first_round(
    step: Traced, closed: Sequence[Value], init: Sequence[Value], rows: Sequence[Value], region: Region, wanted: Wanted
) -> Opened | None:
    """What is left of a loop's body in the first round, if that is to be compiled for itself.

    Args:
      step: The body.
      closed: What it closes over.
      init: What the carry begins with.
      rows: What it gets of an element.
      region: Where the loop is.
      wanted: What of the loop's results is needed.
    """
    if wanted.losses or not region.is_known or not all(isinstance(value, Constant) for value in init):
        return None
    body, needed = opened(step, [*closed, *init, *rows]), [*range(len(init)), *wanted.values]
    kinds = {
        "read" if equation.reads is not None else equation.call and equation.call.kind for equation in body.equations
    }
    if not kinds <= {None, "node"} or not body.needs_params(needed):
        return None
    first = body.folded()
    return None if first.needs_params(needed) else first


def begun_apart(
    low: Lowering,
    call: Call,
    values: Sequence[Value],
    first: Opened,
    region: Region,
    space: IndexSpace,
    wanted: Wanted,
) -> list[Any]:
    """A loop over a sequence: its first round before a Phi, and all others.

    Args:
      low: The lowering.
      call: The scan.
      values: What the body's variables are, with what the carry begins with.
      first: What is left of the body in the first round.
      region: Where the loop is.
      space: The space of the elements.
      wanted: What of the loop's results is needed.

    Returns:
      What each result is; None where it is not wanted.
    """
    (step,), (n_closed,), k = call.functions, call.n_closed, call.options["n_carry"]
    inner, name, order = region.within(space), space.dimension, Order(space.index, space.size, call.options["reverse"])
    guards = _guards(low, space, order.back)
    types = [variable.aval for variable in step.jaxpr.outvars]
    is_read = [variable in step.used for variable in step.variables]
    at_first, at_others = _routed(low, call, values, is_read, guards, order, name)
    wires = [
        _Wire(low, own, inner, inner.where(guards[1]), order, name) for own in carried(values[n_closed:][:k], types[:k])
    ]
    for wire in wires:
        at_others = [
            Computed(wire.before, wire.own.members.index(i - n_closed)) if i - n_closed in wire.own.members else value
            for i, value in enumerate(at_others)
        ]
    needs = Wanted({*range(k), *wanted.values}, groups=[wire.own.members for wire in wires])
    begun = replace(first, values=dict(zip(first.values, at_first, strict=True)))
    results = [
        low.run_opened(begun, inner.where(guards[0]), needs),
        low.run(step, at_others, inner.where(guards[1]), needs),
    ]
    out: list[Any] = [None] * len(types)
    states: dict[int, Computed] = {}
    for wire in wires:
        flows = [
            low.draft.fresh(
                low.pack(
                    [own[i] for i in wire.own.members], wire.own.types, inner.where(guard), f"{name}/{word}", call.line
                ),
                f"{name}/{word}",
                call.line,
            )
            for own, guard, word in zip(results, guards, ("begun", "carry"), strict=True)
        ]
        low.draft.close_loop(wire.states, *flows)
        states |= {i: Computed(wire.states, part) for part, i in enumerate(wire.own.members)}
        if any(i in wanted.values for i in wire.own.members):
            last = wire.last(low, call, values[n_closed:], region, space)
            out = [Computed(last, wire.own.members.index(i)) if i in wire.own.members else v for i, v in enumerate(out)]
    given = {i: _carried_too(i, states, results) for i in wanted.values if i >= k}
    others = Wanted(
        {i for i, state in given.items() if state is None},
        groups=[[i for i in group if i >= k and given[i] is None] for group in wanted.groups],
    )
    ys = merged(low, types, name, call.line, results, guards, inner, others)
    for i, state in given.items():
        out[i] = Elements(space, ys[i] if state is None else state)
    return out


class _Wire:
    """One wire of the carry: the states after each element, the first one's included.

    Args:
      low: The lowering.
      own: What the wire carries.
      inner: Where the elements are.
      others: Where those after the first are.
      order: The loop's order.
      name: What new nodes are called after.

    Attributes:
      own: What the wire carries.
      states: The state after each element.
      before: For each element after the first, the state after the one before.
    """

    def __init__(self, low: Lowering, own: Carried, inner: Region, others: Region, order: Order, name: str):
        self.own, self._name = own, name
        self.states = low.draft.loop(inner, own.types, name, is_fresh=True)
        self.states.is_late = False
        self._last, more = low.draft.split(self.states, order.ends, [inner, inner], f"{name}/end")

        def go_on(s: State) -> State:
            return s.replace(**{order.index: order.after(s)})

        self.before = low.draft.relabel(more, others, go_on, f"{name}/next", is_fresh=False)
        self.before.is_late = True

    def last(self, low: Lowering, call: Call, init: Sequence[Value], region: Region, space: IndexSpace) -> Flow:
        """The last state of each row; where it has no elements, what the carry begins with.

        Args:
          low: The lowering.
          call: The scan.
          init: What the carry begins with.
          region: Where the loop is.
          space: The elements' space.
        """
        is_empty = low.same_column((space, "is empty"), region.space, lambda data: (space.lengths(data) == 0) * 1)
        none = region.where(Guard(f"{self._name}_is_empty", 1, is_empty))
        start = low.pack([init[i] for i in self.own.members], self.own.types, none, f"{self._name}/init", call.line)
        left = leave(low, self._last, space, region, f"{self._name}/leave")
        return low.draft.merge(region, [left, start], f"{self._name}/result")


def _guards(low: Lowering, space: IndexSpace, back: bool) -> list[Guard]:
    """Where the loop begins, and where it goes on."""

    def is_later(data: Any) -> np.ndarray:
        first = space.lengths(data)[space.parents(data)] - 1 if back else 0
        return (space.numbers(data) != first) * 1

    column = low.same_column((space, "is later", back), space, is_later)
    return [Guard(f"{space.dimension}_{'before_last' if back else 'after_first'}", i, column) for i in (0, 1)]


def _routed(
    low: Lowering,
    call: Call,
    values: Sequence[Value],
    is_read: Sequence[bool],
    guards: Sequence[Guard],
    order: Order,
    name: str,
) -> list[list[Value]]:
    """What the body gets in the first round, and in the others: messages go to the one to which they belong."""
    flows: dict[int, list[Flow]] = {}

    def to(value: Value, which: int) -> Value:
        if not isinstance(value, Computed):
            return value
        flow = value.flow
        if id(flow) not in flows:
            known = flow if flow.is_fresh or flow.knows_outer else low.draft.fresh(flow, name, call.line)
            regions = [flow.region.where(guard) for guard in guards]
            flows[id(flow)] = low.draft.split(known, order.begins, regions, f"{name}/begins")
        return Computed(flows[id(flow)][which], value.part, value.was_read)

    return [
        [to(value, which) if read else value for value, read in zip(values, is_read, strict=True)] for which in (0, 1)
    ]


def _carried_too(number: int, states: dict[int, Computed], results: Sequence[Sequence[Any]]) -> Computed | None:
    """The part of the carry that is the same as what the body gave for each element, if there is one."""
    for i, state in states.items():
        if all(_is_same(own[number], own[i]) for own in results):
            return state
    return None


def _is_same(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Computed) and isinstance(other, Computed) and (one.flow, one.part) == (other.flow, other.part)
    )
