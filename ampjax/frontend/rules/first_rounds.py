"""Loops with a first round of their own: the carry begins with constants, and with these the body needs no parameters.

So a recurrent cell that begins with zeros multiplies none of them by its matrix, and no message brings the zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.deduction.opened_functions import Opened, open_function
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Guard, IndexSpace, Region
from ampjax.frontend.draft.values import (
    Computed,
    Constant,
    Elements,
    Flow,
    Value,
    Wanted,
    read_of_all,
)
from ampjax.frontend.rules.branch_rules import merge_results, split_between
from ampjax.frontend.rules.carry_loops import Carried, Order, group_carry, leave
from ampjax.ir.state import State


def first_round(
    step: Traced,
    closed: Sequence[Value],
    init: Sequence[Value],
    rows: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> Opened | None:
    """Folds a loop's body for the first round, if the first round is to be compiled separately; else None.

    Args:
      step: The body.
      closed: What it closes over.
      init: What the carry begins with.
      rows: What it gets of an element.
      region: Where the loop is.
      wanted: What of the loop's results is needed.
    """
    if (
        wanted.losses
        or not region.is_known
        or not all(isinstance(value, Constant) for value in init)
    ):
        return None
    body = open_function(step, [*closed, *init, *rows])
    needed = [*range(len(init)), *wanted.values]
    for equation in body.equations:
        call = equation.call
        if equation.reads is not None or (call is not None and not call.kind.is_function):
            return None
    if not body.needs_params(needed):
        return None
    first = body.fold_constants()
    return None if first.needs_params(needed) else first


def begin_apart(
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
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    inner = region.within(space)
    name = space.dimension
    order = Order(space.index, space.add_size(), call.options["reverse"])
    guards = _guards(low, space, order.back)
    types = [variable.aval for variable in step.jaxpr.outvars]

    def split(flow):
        return _split_at_first(low, flow, guards, order, name, call.line)

    at_first, at_others = split_between([step, step], [values, values], split)
    init = values[n_closed : n_closed + k]
    wires = []
    for carried in group_carry(init, types[:k]):
        wires.append(_Wire(low, carried, inner, guards, order, call))
    carry = {}
    for wire in wires:
        for i, value in wire.name_parts(wire.before).items():
            carry[i] = value
    at_others = [
        *at_others[:n_closed],
        *(carry[i] for i in range(k)),
        *at_others[n_closed + k :],
    ]
    needs = Wanted(
        {*range(k), *wanted.values},
        groups=[wire.own.members for wire in wires],
    )
    begun = replace(
        first,
        values=dict(zip(first.values, at_first, strict=True)),
    )
    results = [
        low.run_opened(begun, inner.where(guards[0]), needs),
        low.run(step, at_others, inner.where(guards[1]), needs),
    ]
    by_result: dict[int, Value] = {}
    states: dict[int, Value] = {}
    for wire in wires:
        wire.close(low, results)
        states |= wire.name_parts(wire.states)
        if wanted.values & set(wire.own.members):
            by_result |= wire.name_parts(wire.last(low, region, space))
    ys = _elements(low, call, results, states, guards, inner, wanted)
    for i, value in ys.items():
        by_result[i] = Elements(space, value)
    result = []
    for i in range(len(types)):
        result.append(by_result.get(i) if i in wanted.values else None)
    return result


def _elements(
    low: Lowering,
    call: Call,
    results: Sequence[Sequence[Any]],
    states: Mapping[int, Value],
    guards: Sequence[Guard],
    inner: Region,
    wanted: Wanted,
) -> dict[int, Value]:
    """Finds the elements of the sequences that a loop returns: states that go around, or results of the first and the other rounds, merged."""
    by_number = {}
    for i in wanted.values:
        if i >= call.options["n_carry"]:
            by_number[i] = _same_in_carry(i, states, results)
    rest = {i for i, state in by_number.items() if state is None}
    groups = []
    for group in wanted.groups:
        groups.append([i for i in group if i in rest])
    (step,) = call.functions
    merged = merge_results(
        low,
        [variable.aval for variable in step.jaxpr.outvars],
        inner.space.dimension,
        call.line,
        results,
        guards,
        inner,
        Wanted(rest, groups=groups),
    )
    return {i: merged[i] if state is None else state for i, state in by_number.items()}


class _Wire:
    """One wire of the carry.

    Args:
      low: The lowering.
      carried: What the wire carries.
      inner: Where the elements are.
      guards: Where the loop begins, and where it goes on.
      order: The loop's order.
      call: The scan.

    Attributes:
      own: What the wire carries.
      states: The state after each element, the first one included.
      before: For each element after the first, the state after the one before.
    """

    def __init__(
        self,
        low: Lowering,
        carried: Carried,
        inner: Region,
        guards: Sequence[Guard],
        order: Order,
        call: Call,
    ):
        self.own = carried
        self._name = inner.space.dimension
        self._line = call.line
        self._regions = [inner.where(guard) for guard in guards]
        self.states = low.draft.loop(
            inner,
            carried.types,
            self._name,
            is_fresh=True,
        )
        self.states.is_late = False
        self._last, more = low.draft.split(
            self.states, order.ends, [inner, inner], f"{self._name}/end"
        )

        def go_on(s: State) -> State:
            return s.replace(**{order.index: order.after(s)})

        self.before = low.draft.relabel(
            more, self._regions[1], go_on, f"{self._name}/next", is_fresh=False
        )
        self.before.is_late = True

    def name_parts(self, flow: Flow) -> dict[int, Value]:
        """Names the parts of a wire by their number in the carry."""
        return self.own.name_parts(flow, None)

    def close(
        self,
        low: Lowering,
        results: Sequence[Sequence[Any]],
    ) -> None:
        """Sends on the results of the first round and of the others.

        Args:
          low: The lowering.
          results: What they gave, by number in the carry.
        """
        flows = []
        for values, region, word in zip(results, self._regions, ("begun", "carry"), strict=True):
            name = f"{self._name}/{word}"
            flow = low.pack(
                [values[i] for i in self.own.members],
                self.own.types,
                region,
                name,
                self._line,
            )
            flows.append(payload_notes.refresh_states(low.draft, flow, name, self._line))
        low.draft.close_loop(self.states, *flows)

    def last(self, low: Lowering, region: Region, space: IndexSpace) -> Flow:
        """Selects the last state of each row; for a row without elements, the carry's initial value.

        Args:
          low: The lowering.
          region: Where the loop is.
          space: The elements' space.
        """
        is_empty = low.same_column(
            (space, "is empty"),
            region.space,
            lambda data: (space.lengths(data) == 0) * 1,
        )
        none = region.where(Guard(f"{self._name}_is_empty", 1, is_empty))
        start = low.pack(
            self.own.init,
            self.own.types,
            none,
            f"{self._name}/init",
            self._line,
        )
        left = leave(low, self._last, space, region, f"{self._name}/leave")
        return low.draft.merge(region, [left, start], f"{self._name}/result")


def _guards(
    low: Lowering,
    space: IndexSpace,
    back: bool,
) -> list[Guard]:
    """Makes guards for the loop's begin and for later rounds."""

    def is_later(data: Any) -> np.ndarray:
        if back:
            first = space.lengths(data)[space.parents(data)] - 1
        else:
            first = 0
        return (space.numbers(data) != first) * 1

    column = low.same_column((space, "is later", back), space, is_later)
    return [
        Guard(f"{space.dimension}_{'before_last' if back else 'after_first'}", i, column)
        for i in (0, 1)
    ]


def _split_at_first(
    low: Lowering,
    flow: Flow,
    guards: Sequence[Guard],
    order: Order,
    name: str,
    line: str,
) -> list[Flow]:
    """Splits messages for the first round from those for the others."""
    if flow.is_fresh or flow.knows_outer:
        known = flow
    else:
        known = payload_notes.refresh_states(low.draft, flow, name, line)
    return low.draft.split(
        known,
        order.begins,
        [flow.region.where(guard) for guard in guards],
        f"{name}/begins",
    )


def _same_in_carry(
    number: int,
    states: Mapping[int, Value],
    results: Sequence[Sequence[Any]],
) -> Value | None:
    """Finds the body's result for each element as a part of the carry, if one part is the same."""
    for i, state in states.items():
        if isinstance(state, Computed) and all(
            _is_same(of_region[number], of_region[i]) for of_region in results
        ):
            return replace(
                state,
                was_read=read_of_all([own[number] for own in results]),
            )
    return None


def _is_same(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Computed)
        and isinstance(other, Computed)
        and (one.flow, one.part) == (other.flow, other.part)
    )
