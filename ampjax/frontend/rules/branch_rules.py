"""The rule of choices: a Cond before the branches and a Phi after them; a RouteBy first where a value that was read decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.branches import SWITCH
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.combinators.user_errors import BATCHES_TAKE_IT
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.decisions import Decision
from ampjax.frontend.draft.graph_draft import built_wire
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import NodeNote, as_it_is, second
from ampjax.frontend.draft.payload_types import raw_type
from ampjax.frontend.draft.values import (
    Computed,
    Constant,
    Elements,
    Flow,
    Static,
    Value,
    Wanted,
    read_of_all,
)
from ampjax.ir.builders import control_builders, payload_builders
from ampjax.ir.state import State


@MESSAGE_RULES.of(SWITCH)
def switch(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """The branches, each where its number is chosen."""
    n_closed = sum(call.n_closed)
    index = operands[n_closed]
    shared = operands[n_closed + 1 :]
    operands_of_each = call.inputs(operands, shared)
    if isinstance(index, Constant):
        chosen = int(index.value)
        return low.run(
            call.functions[chosen],
            operands_of_each[chosen],
            region,
            wanted,
        )
    field = low.number("if")
    if isinstance(index, Static):
        column = index.column.inside(region.space)
        guards = [Guard(field, i, column) for i in range(len(operands_of_each))]
        if region in low.draft.anchors:
            _route_anchor(low, region, guards, call)
        inputs = route_values(
            low,
            call.functions,
            operands_of_each,
            guards,
            call.options["word"],
            call.line,
        )
    elif isinstance(index, Computed) and index.was_read is not None:
        decision = choice_by_value(low, call, field, len(operands_of_each), region, index)
        guards = decision.guards
        inputs = send_along(low, call, operands_of_each, decision)
    else:
        raise unread(call)
    results = []
    for function, values, guard in zip(call.functions, inputs, guards, strict=True):
        results.append(
            low.run(
                function,
                values,
                region.where(guard),
                Wanted(wanted.values, groups=wanted.groups),
            )
        )
    return merge_results(
        low,
        call.results,
        call.options["word"],
        call.line,
        results,
        guards,
        region,
        wanted,
    )


def unread(call: Call) -> GraphError:
    """The error of a choice by a value that is not read back."""
    fix = f"Say that it is to be read back: `amp.read(...)`. {BATCHES_TAKE_IT}"
    return GraphError(
        call.line, "a choice that follows from the instance", "one that depends on parameters", fix
    )


def route_values(
    low: Lowering,
    functions: Sequence[Traced],
    operands: Sequence[Sequence[Value]],
    guards: Sequence[Guard],
    name: str,
    line: str,
) -> list[list[Value]]:
    """Brings values into several functions where the instance chooses between them: computed values go to the chosen function alone.

    Args:
      low: The lowering.
      functions: The functions.
      operands: What the variables of each are.
      guards: For each function, where it is chosen.
      name: What new nodes are called after.
      line: The user's line.

    Returns:
      What the variables of each are where it is chosen.
    """

    def split(flow: Flow) -> list[Flow]:
        column = guards[0].column
        assert column is not None
        field = column.space.fact(guards[0].field, column, f"which function is chosen ({line})")
        if flow.foresees is not None and column.space is flow.region.space:
            flow.foresees(field, column, len(guards))
        else:
            flow = payload_notes.refresh_states(low.draft, flow, name, line)
        return split_by(low, flow, field, guards, name)

    return split_between(functions, operands, split)


def split_between(
    functions: Sequence[Traced],
    operands: Sequence[Sequence[Value]],
    split: Callable[[Flow], list[Flow]],
) -> list[list[Value]]:
    """Brings values into several functions where each message is for one of them; values that a function does not use stay outside.

    Args:
      functions: The functions.
      operands: What the variables of each are.
      split: Notes which of the functions gets a message: a wire for each of them.

    Returns:
      What the variables of each are for the messages that it gets.
    """
    flows: dict[int, list[Flow]] = {}

    def to(value: Value, which: int) -> Value:
        if isinstance(value, Elements):
            return Elements(
                value.space,
                lambda: to(value.element, which),
                value.source,
            )
        if not isinstance(value, Computed):
            return value
        flow = value.flow
        if id(flow) not in flows:
            flows[id(flow)] = split(flow)
        return Computed(
            flows[id(flow)][which],
            value.part,
            value.was_read,
        )

    result = []
    for which, (values, function) in enumerate(zip(operands, functions, strict=True)):
        result.append(
            [
                to(value, which) if variable in function.used else value
                for value, variable in zip(values, function.variables, strict=False)
            ]
        )
    return result


def choice_by_value(
    low: Lowering,
    call: Call,
    field: str,
    n: int,
    region: Region,
    index: Computed,
) -> Decision:
    """A choice that a value makes which is read back.

    Args:
      low: The lowering.
      call: The choice.
      field: The state field that says what is chosen.
      n: How many functions there are.
      region: Where the choice is made.
      index: What chooses.
    """
    region.space.fact(field, None, f"which function is chosen ({call.line})")
    asked = Asked(
        low,
        only_read(low, [index], region, call),
        [field],
        lambda s: np.full(len(s), index.was_read or 0),
        call,
    )

    def make(flow: Flow, place: Region) -> list[Flow]:
        return split_by(
            low,
            asked.route(flow),
            field,
            decision.guards,
            call.options["word"],
        )

    decision = Decision(region, make)
    decision.choices(field, n)
    return decision


def send_along(
    low: Lowering,
    call: Call,
    operands: Sequence[Sequence[Value]],
    decision: Decision,
) -> list[list[Value]]:
    """Brings values into the branches where values that were read choose: all that any branch needs comes with the message that is sent.

    Args:
      low: The lowering.
      call: The choice.
      operands: What the variables of each branch are.
      decision: Sends messages to the branches.

    Returns:
      What the variables of each branch are where it is chosen.
    """
    region = decision.region
    word = call.options["word"]
    needed, types = _list_needed(call, operands)
    places: dict[int, list[Computed]] = {}
    for group in by_dtype(types):
        flow = low.pack(
            [needed[i] for i in group],
            [types[i] for i in group],
            region,
            word,
            call.line,
        )
        outputs = decision.send(payload_notes.refresh_states(low.draft, flow, word, call.line))[
            : len(operands)
        ]
        low.draft.anchors |= {out.region: out for out in outputs}
        places |= {
            id(needed[i]): [Computed(out, part) for out in outputs] for part, i in enumerate(group)
        }

    def to(value: Value, branch: int, is_used: bool) -> Value:
        if id(value) not in places:
            return decision.take(value, branch) if is_used else value
        place = places[id(value)][branch]
        if not isinstance(value, Static):
            return place
        low.draft.carry(value.column, place.flow.region, place)
        return value

    result = []
    for branch, (values, function) in enumerate(zip(operands, call.functions, strict=True)):
        result.append(
            [
                to(value, branch, variable in function.used)
                for value, variable in zip(values, function.variables, strict=True)
            ]
        )
    return result


def _list_needed(
    call: Call,
    operands: Sequence[Sequence[Value]],
) -> tuple[list[Value], list[Any]]:
    """Lists the values that branches read from a message, and their types; a number if no branch reads any."""
    needed: list[Value] = []
    types: list[Any] = []
    for values, function in zip(operands, call.functions, strict=True):
        for value, variable in zip(values, function.variables, strict=True):
            is_carried = variable in function.used and isinstance(value, Computed | Static)
            if is_carried and not any(value is v for v in needed):
                needed.append(value)
                types.append(variable.aval)
    if needed:
        return needed, types
    return [Constant(np.int32(0))], [
        jax.ShapeDtypeStruct(
            (),
            np.int32,
        )
    ]


class Asked:
    """The nodes that send messages by values that are read back.

    Args:
      low: The lowering.
      choice: The values, where they are read.
      fields: The state fields that get them.
      assume: Gives them where nothing is computed.
      call: What asks.
    """

    def __init__(
        self,
        low: Lowering,
        choice: Flow,
        fields: Sequence[str],
        assume: Callable[[State], Any],
        call: Call,
    ):
        self._low = low
        self._choice = choice
        self._fields = fields
        self._assume = assume
        self._call = call
        self._inside = {choice.region.space: choice}

    def route(self, flow: Flow) -> Flow:
        """Puts the values that were read into the messages' states; each element of a sequence gets a copy of the value.

        Args:
          flow: The messages, of the place where the values are read or of a space inside.
        """
        low = self._low
        space = flow.region.space
        line = self._call.line
        if not space.is_ragged:
            return route_by(
                low,
                flow,
                self._at(space),
                self._fields,
                self._assume,
                self._call,
            )
        place = payload_notes.place(
            low.draft,
            flow.region.carrier,
            space.dimension,
            line,
        )
        sent_in = payload_notes.send_in(
            low.draft,
            self.route(place),
            space,
            space.dimension,
        )
        met = low.draft.name(f"{space.dimension}/chosen")
        key = space.key or ("instance",)

        def make():
            return payload_builders.npt(met, second, join=key)(
                built_wire(sent_in),
                built_wire(flow),
            )

        return low.draft.control(flow.region, flow.types, make)

    def _at(self, space: IndexSpace) -> Flow:
        if space not in self._inside:
            assert space.parent is not None
            outer = self._at(space.parent)
            self._inside[space] = payload_notes.send_in(
                self._low.draft,
                outer,
                space,
                "read",
            )
        return self._inside[space]


def _route_anchor(
    low: Lowering,
    region: Region,
    guards: Sequence[Guard],
    call: Call,
) -> None:
    """Gives each branch of a choice by the instance a wire with its rows, where a value that was read decides around it."""
    column = guards[0].column
    assert column is not None
    field = column.space.fact(guards[0].field, column, f"which function is chosen ({call.line})")
    flow = payload_notes.refresh_states(
        low.draft,
        low.draft.anchors[region],
        call.options["word"],
        call.line,
    )
    low.draft.anchors |= {
        out.region: out for out in split_by(low, flow, field, guards, call.options["word"])
    }


def split_by(
    low: Lowering,
    flow: Flow,
    field: str,
    guards: Sequence[Guard],
    name: str,
) -> list[Flow]:
    """Splits messages by the guards on a field, one wire for each guard."""
    return low.draft.split(
        flow,
        lambda s: getattr(s, field),
        [flow.region.where(guard) for guard in guards],
        name,
    )


def only_read(
    low: Lowering,
    values: Sequence[Computed],
    region: Region,
    call: Call,
) -> Flow:
    """A wire that carries values that are read, and nothing else.

    Args:
      low: The lowering.
      values: The values.
      region: Where they are.
      call: What reads them.
    """
    flow = values[0].flow
    kinds = [value.flow.types[value.part] for value in values]
    if [(value.flow, value.part) for value in values] == [
        (flow, part) for part in range(len(flow.types))
    ]:
        return flow
    note = NodeNote(
        "read",
        region,
        values,
        kinds,
        as_it_is,
        kinds,
        [range(len(values))],
        call.line,
    )
    return payload_notes.compute(low.draft, note)[0]


def route_by(
    low: Lowering,
    flow: Flow,
    choice: Flow,
    fields: Sequence[str],
    assume: Callable[[State], Any],
    call: Call,
) -> Flow:
    """Notes a RouteBy.

    Args:
      low: The lowering.
      flow: The messages that go on.
      choice: Their choices.
      fields: The state fields that get them.
      assume: Gives them where nothing is computed.
      call: What chooses.
    """
    name = low.draft.name("read")
    join = flow.region.space.key or ("instance",)

    def make():
        return control_builders.route_by(
            built_wire(flow),
            built_wire(choice),
            *fields,
            assume=assume,
            join=join,
            name=name,
        )

    return low.draft.control(
        flow.region,
        flow.types,
        make,
        flow.is_fresh,
    )


def merge_results(
    low: Lowering,
    types: Sequence[Any],
    name: str,
    line: str,
    results: Sequence[Sequence[Any]],
    guards: Sequence[Guard],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Merges the results of several functions of which one was chosen.

    Args:
      low: The lowering.
      types: The results' types.
      name: What new nodes are called after.
      line: The user's line.
      results: For each function, its results.
      guards: For each function, where it is chosen.
      region: Where one of them is.
      wanted: What of the results is needed.

    Returns:
      What each result is; None where it is not wanted.
    """
    out: list[Any] = [None] * len(types)
    packed: list[int] = []
    for i in sorted(wanted.values):
        values = [branch[i] for branch in results]
        if any(isinstance(value, Elements) for value in values):
            out[i] = _merge_elements(
                low,
                name,
                line,
                values,
                guards,
                region,
                types[i],
            )
        elif guards[0].column is not None and all(
            isinstance(value, Static | Constant) for value in values
        ):
            out[i] = _merge_columns(low, values, guards, region, types[i])
        else:
            packed.append(i)
    for members in wanted.groups:
        group = [i for i in members if i in packed]
        if group:
            merged = _merge_messages(low, types, name, line, results, guards, region, group)
            for i, value in zip(group, merged, strict=True):
                out[i] = value
    return out


def _merge_messages(
    low: Lowering,
    types: Sequence[Any],
    name: str,
    line: str,
    results: Sequence[Sequence[Any]],
    guards: Sequence[Guard],
    region: Region,
    group: Sequence[int],
) -> list[Computed]:
    """Merges a group of results that travel in one message."""
    kinds = [types[i] for i in group]
    flows = []
    for branch, guard in zip(results, guards, strict=True):
        flows.append(
            low.pack(
                [branch[i] for i in group],
                kinds,
                region.where(guard),
                name,
                line,
            )
        )
    flow = low.draft.merge(region, flows, name)
    merged = []
    for part, i in enumerate(group):
        read = read_of_all([branch[i] for branch in results])
        merged.append(Computed(flow, part, read))
    return merged


def _merge_columns(
    low: Lowering,
    values: Sequence[Value],
    guards: Sequence[Guard],
    region: Region,
    kind: Any,
) -> Static:
    columns = [low.column(value, region, kind) for value in values]
    index = guards[0].column
    assert index is not None
    which = index.inside(region.space)

    def compute(data: Any) -> np.ndarray:
        choice = which.of(data)
        chosen = []
        for guard in guards:
            chosen.append(choice.reshape(-1, *(1,) * len(raw_type(kind).shape)) == guard.value)
        return np.select(chosen, [column.of(data) for column in columns])

    return Static(Column(region.space, compute))


def _merge_elements(
    low: Lowering,
    name: str,
    line: str,
    values: Sequence[Any],
    guards: Sequence[Guard],
    region: Region,
    aval: Any,
) -> Elements:
    spaces = [value.space if isinstance(value, Elements) else None for value in values]
    if spaces[0] is None or any(space is not spaces[0] for space in spaces):
        fix = "Return sequences over the same elements from every branch."
        raise GraphError(
            line, "sequences with the same elements from every branch", f"{spaces}", fix
        )
    inner = region.within(spaces[0])
    row = aval.update(shape=aval.shape[1:])
    elements = [value.element for value in values]
    if any(isinstance(element, Elements) for element in elements):
        return Elements(
            spaces[0],
            _merge_elements(low, name, line, elements, guards, inner, row),
        )
    if guards[0].column is not None and all(isinstance(element, Static) for element in elements):
        return Elements(
            spaces[0],
            _merge_columns(low, elements, guards, inner, row),
        )
    flows = []
    for element, guard in zip(elements, guards, strict=True):
        flows.append(
            low.pack(
                [element],
                [row],
                inner.where(guard),
                name,
                line,
            )
        )
    return Elements(
        spaces[0],
        Computed(
            low.draft.merge(inner, flows, name),
            was_read=read_of_all(elements),
        ),
    )
