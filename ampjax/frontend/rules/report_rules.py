"""The rules of metrics, outputs and named nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampjax.errors import GraphError
from ampjax.frontend.combinators.reports import METRIC, NODE, OUTPUT
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.equations import Equation, Equations, Name, flatten, places_of
from ampjax.frontend.deduction.known_values import KnownValues
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.deduction.opened_functions import Opened
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.graph_draft import built_wire
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.node_bodies import NodeNote, as_it_is
from ampjax.frontend.draft.values import Computed, Elements, LossTerm, Value, Wanted, leaves_of
from ampjax.ir.builders import ragged_builders


@MESSAGE_RULES.of(METRIC)
def metric(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """A metric: told by the loss of its region."""
    value, count = operands
    low.terms.append(
        LossTerm(
            value,
            region,
            metric=call.options["name"],
            count=count,
            line=call.line,
        )
    )
    return []


@MESSAGE_RULES.of(OUTPUT)
def output(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """An output: a sink, which gets a message for each row."""
    (value,) = operands
    name = call.options["name"]
    aval = call.options["type"]
    if isinstance(value, Elements):
        region = region.within(value.space)
        value = value.element
        aval = aval.update(shape=aval.shape[1:])
    if isinstance(value, Elements):
        raise GraphError(
            call.line,
            "an array, or a sequence of arrays",
            "a sequence of sequences",
            "Tell it in a `map`.",
        )
    if isinstance(value, Computed) and len(value.flow.types) == 1:
        flow = value.flow
    else:
        note = NodeNote(
            f"{name}/value",
            region,
            [value],
            [aval],
            as_it_is,
            [aval],
            [[0]],
            call.line,
            leaves_of([value]),
        )
        (flow,) = payload_notes.compute(low.draft, note)
    flow = payload_notes.refresh_states(low.draft, flow, f"{name}/value", call.line)
    if region.space.is_ragged:  # a row for each node, too, in a message of its own
        called = low.draft.name(f"{name}/rows")
        index = region.space.index

        def rows():
            return ragged_builders.ungroup(built_wire(whole), index, name=called)

        whole = flow
        flow = low.draft.control(region, flow.types, rows)
    low.draft.sink(flow, name, call.line)
    return []


@MESSAGE_RULES.of(NODE)
def node(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """A function that is one node, under a name of its own."""
    (function,) = call.functions
    atoms = {variable: Name(variable.aval) for variable in function.variables}
    equations, results = flatten(function, atoms)
    used = [i for i, variable in enumerate(function.variables) if variable in function.used]
    _require_arrays(call, equations, [operands[i] for i in used])
    name = call.options["name"]
    leaves = leaves_of([operands[i] for i in used])
    _require_own_name(low, call, name, {key for key, _ in leaves})
    known = KnownValues(
        low,
        region,
        Opened(
            equations,
            results,
            dict(zip(atoms.values(), operands, strict=True)),
        ),
    )
    for equation in (
        equations
    ):  # finds numbers of the instances that are to be checked; the node computes all by itself
        known.take_early(equation)
    names = list(atoms.values())
    types = [variable.aval for variable in function.jaxpr.outvars]
    note = NodeNote(
        name=name,
        region=region,
        inputs=[operands[i] for i in used],
        types=[names[i].aval for i in used],
        function=Equations(equations, [names[i] for i in used], results),
        results=types,
        groups=by_dtype(types),
        line=call.line,
        leaves=leaves,
        draws=places_of(equations),
        named_by=name,
        options=call.options["options"],
        replicas=call.options["replicas"],
    )
    out: dict[int, Computed] = {}
    for group, flow in zip(
        note.groups,
        payload_notes.compute(
            low.draft,
            note,
        ),
        strict=True,
    ):
        out |= {i: Computed(flow, part) for part, i in enumerate(group)}
    return [out[i] for i in range(len(types))]


def _require_arrays(
    call: Call,
    equations: Sequence[Equation],
    operands: Sequence[Value],
) -> None:
    """Checks that a function for one node has neither combinators nor sequences inside.

    Raises:
      GraphError: If it has.
    """
    for equation in equations:
        if equation.call is not None:
            fix = "Make several nodes, one for each part between combinators."
            raise GraphError(
                equation.line,
                "arrays alone in a function made with `amp.node`",
                f"`{equation.call.kind}`",
                fix,
            )
    if any(isinstance(each, Elements) for each in operands):
        raise GraphError(
            call.line,
            "arrays for a function made with `amp.node`",
            "a sequence",
            "Call it in a `map`.",
        )


def _require_own_name(
    low: Lowering,
    call: Call,
    name: str,
    keys: set[str],
) -> None:
    """Checks that a node has no name of parameters that other nodes may read.

    Args:
      low: The lowering.
      call: The function that is one node.
      name: The node's name.
      keys: The keys of the parameters that the node reads.

    Raises:
      GraphError: If it has.
    """
    if name in low.draft.params.initial and keys != {name}:
        fix = "Rename it; only a function that reads the parameters of a key alone can be called like it."
        raise GraphError(
            call.line,
            "a name of its own for the node",
            f"`{name}`, as a key of the parameters is called",
            fix,
        )
