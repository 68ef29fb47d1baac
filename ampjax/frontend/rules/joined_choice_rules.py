"""The rule of several choices between the same functions of the same values: one RouteBy, then a copy of the message for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.joined_calls import SWITCHES
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.deduction.numpy_equations import select
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.decisions import Decision
from ampjax.frontend.draft.graph_draft import built_wire
from ampjax.frontend.draft.index_spaces import IndexSpace, Region
from ampjax.frontend.draft.values import Computed, Flow, Value, Wanted, read_of
from ampjax.frontend.rules.branch_rules import Asked, merge_results, only_read, send_along, unread
from ampjax.frontend.rules.carry_loops import leave
from ampjax.ir.builders import ragged_builders
from ampjax.ir.state import State
from ampjax.ir.wires import Wire


@MESSAGE_RULES.of(SWITCHES)
def switches(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Runs the branches chosen by each of the numbers: a copy of the message for each number, in a space of their own."""
    at = sum(call.n_closed)
    k = call.options["n"]
    word = call.options["word"]
    numbers = operands[at : at + k]
    shared = operands[at + k :]
    operands_of_each = call.inputs(operands, shared)
    field = low.number("if")
    name = low.number("visit")
    fields = []
    for i in range(k):
        meaning = f"which function is chosen, number {i} ({call.line})"
        fields.append(region.space.fact(f"{field}_{i}", None, meaning))
    visits = region.space.along(name, None)
    places = region.within(visits)
    visits.uses = call.options["places"]
    visits.meanings[visits.index] = f"which of the {k} choices ({call.line})"
    decision = _decision(
        low,
        _ask_numbers(low, numbers, fields, region, call),
        fields,
        region,
        visits,
        name,
        word,
    )
    guards = decision.choices(field, len(operands_of_each))
    inputs = send_along(low, call, operands_of_each, decision)
    types = [variable.aval for variable in call.functions[0].jaxpr.outvars]
    needed = sorted({i % len(types) for i in wanted.values})
    of_each = Wanted(set(needed), groups=by_dtype(types, needed))
    results = []
    for function, values, guard in zip(call.functions, inputs, guards, strict=True):
        results.append(low.run(function, values, places.where(guard), of_each))
    together = merge_results(
        low,
        types,
        word,
        call.line,
        results,
        guards,
        places,
        of_each,
    )
    out: list[Any] = [None] * len(call.results)
    for group in by_dtype(types, needed):
        ways = _back(
            low,
            group,
            types,
            together,
            region,
            visits,
            name,
            call,
        )
        for number, way in enumerate(ways):
            for part, i in enumerate(group):
                out[number * len(types) + i] = Computed(
                    way,
                    part,
                    read_of(together[i]),
                )
    return [value if i in wanted.values else None for i, value in enumerate(out)]


def _ask_numbers(
    low: Lowering,
    numbers: Sequence[Value],
    fields: Sequence[str],
    region: Region,
    call: Call,
) -> Asked:
    """Makes the nodes for reading the numbers into state fields.

    Raises:
      GraphError: If a number was not read back.
    """
    read = _require_read(call, numbers)

    def assume(s: State) -> Any:
        return tuple(np.full(len(s), number.was_read) for number in read)

    return Asked(
        low,
        only_read(low, read, region, call),
        fields,
        assume,
        call,
    )


def _decision(
    low: Lowering,
    asked: Asked,
    fields: Sequence[str],
    region: Region,
    visits: IndexSpace,
    name: str,
    word: str,
) -> Decision:
    """Makes the decision on each visit, by the visit's own number.

    Args:
      low: The draft and what is known of it.
      asked: Puts the numbers into the state.
      fields: The state fields of the numbers.
      region: Where they are.
      visits: A place for each number.
      name: What visits are called.
      word: What the choice is called.
    """
    index = visits.index
    k = len(fields)

    def choose_result(s: State) -> Any:
        return select(
            getattr(s, index),
            *(getattr(s, one) for one in fields),
        )

    def make(flow: Flow, inside: Region) -> list[Flow]:
        sent = asked.route(flow)
        called = low.draft.name(name)

        def copies() -> Wire:
            facts = dict.fromkeys(visits.facts, 0)

            def turn(s, i):
                return s.replace(**facts, **{index: i})

            return ragged_builders.flatmap(
                built_wire(sent),
                lambda s: k,
                turn,
                name=called,
            )

        each = low.draft.control(inside, flow.types, copies, flow.is_fresh)
        places = [inside.where(guard) for guard in decision.guards]
        return [
            *low.draft.split(each, choose_result, places, word),
            each,
        ]

    decision = Decision(region, make, visits)
    return decision


def _back(
    low: Lowering,
    group: Sequence[int],
    types: Sequence[Any],
    results: Sequence[Any],
    region: Region,
    visits: IndexSpace,
    name: str,
    call: Call,
) -> list[Flow]:
    """Sends results of one dtype back to the place of the choices: a message for each choice."""
    word = call.options["word"]
    places = region.within(visits)
    flow = low.pack(
        [results[i] for i in group],
        [types[i] for i in group],
        places,
        word,
        call.line,
    )
    flow = payload_notes.refresh_states(low.draft, flow, word, call.line)
    ways = low.draft.split(
        flow,
        lambda s: getattr(s, visits.index),
        [places] * call.options["n"],
        name,
    )
    return [leave(low, way, visits, region, f"{word}/result") for way in ways]


def _require_read(
    call: Call,
    numbers: Sequence[Value],
) -> list[Computed]:
    """Checks that all numbers that choose were read back; returns the numbers.

    Raises:
      GraphError: If one was not.
    """
    read = []
    for number in numbers:
        if not isinstance(number, Computed) or number.was_read is None:
            raise unread(call)
        read.append(number)
    return read
