"""The rule of sending over edges: a distribute, a node for each kind of edge, and a collect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampjax.errors import GraphError
from ampjax.frontend.combinators.graph_combinators import PROPAGATE
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.draft import edge_plans, payload_notes
from ampjax.frontend.draft.edge_plans import EdgePlan
from ampjax.frontend.draft.graph_draft import Origin
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.values import Computed, Elements, Static, Value, Wanted
from ampjax.frontend.rules.sequence_rules import elements_space


@MESSAGE_RULES.of(PROPAGATE)
def propagate(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Sends each node's row to the wires of its edges' kinds, and sums the functions' results at the receivers."""
    n_closed = sum(call.n_closed)
    n_ends = call.options["n_ends"]
    rows = operands[n_closed + n_ends :]
    nodes = elements_space(rows, call.line)
    plan = edge_plans.note_edges(
        low.draft, _edge_plan(operands[n_closed : n_closed + n_ends], nodes, call)
    )
    low.draft.origins.setdefault(
        plan.name,
        Origin(plan.line, Region(plan.n_nodes.space)),
    )
    regions = []
    for kind in range(plan.n_kinds):
        regions.append(region.within(plan.kind_space(kind, region.space)))
    places = regions, region.within(nodes)
    of_senders = _rows_of_senders(low, call, rows, plan, places)
    sent: list[list[Any]] = []
    members = sorted(wanted.values)
    kinds = [variable.aval for variable in call.functions[0].jaxpr.outvars]
    together = by_dtype(kinds, members)
    all_closed = low.closures(
        call,
        operands,
        region,
        [place.space for place in regions],
        plan.name,
    )
    for function, closed, there, own in zip(
        call.functions, all_closed, regions, of_senders, strict=True
    ):
        inputs = [
            *closed,
            *(own[i] for i in range(len(rows))),
        ]
        sent.append(
            low.run(
                function,
                inputs,
                there,
                Wanted(wanted.values, groups=together),
            )
        )
    return _sum_at_nodes(
        low,
        call,
        sent,
        plan,
        places,
        wanted,
    )


def _rows_of_senders(
    low: Lowering,
    call: Call,
    rows: Sequence[Value],
    plan: EdgePlan,
    places: tuple[Sequence[Region], Region],
) -> list[dict[int, Value]]:
    """Sends the nodes' rows to the edges: by kind of edge, each row's value by number; `places` are the places of the edges, and of the nodes."""
    regions, nodes = places
    dimension = nodes.space.dimension
    of_senders: list[dict[int, Value]] = [{} for _ in regions]
    types = [variable.aval for variable in call.functions[0].jaxpr.invars]
    for group in by_dtype(types):
        values = [row.element for i in group if isinstance(row := rows[i], Elements)]
        flow = low.pack(
            values,
            [types[i] for i in group],
            nodes,
            f"{dimension}/rows",
            call.line,
        )
        outputs = edge_plans.distribute(
            low.draft,
            flow,
            plan,
            regions,
            f"{plan.name}/senders",
        )
        for of_kind, out in zip(of_senders, outputs, strict=True):
            of_kind |= {i: Computed(out, part) for part, i in enumerate(group)}
    return of_senders


def _sum_at_nodes(
    low: Lowering,
    call: Call,
    sent: Sequence[Sequence[Any]],
    plan: EdgePlan,
    places: tuple[Sequence[Region], Region],
    wanted: Wanted,
) -> list[Any]:
    """Sums the rows at the nodes; `places` are the places of the sent rows, and of the nodes."""
    regions, nodes = places
    out: list[Any] = [None] * len(call.results)
    types = [variable.aval for variable in call.functions[0].jaxpr.outvars]
    members = sorted(wanted.values)
    for group_members in by_dtype(types, members):
        kinds = [types[i] for i in group_members]
        flows = []
        for results, place in zip(sent, regions, strict=True):
            flow = low.pack(
                [results[i] for i in group_members],
                kinds,
                place,
                place.space.dimension,
                call.line,
            )
            flows.append(
                payload_notes.refresh_states(low.draft, flow, place.space.dimension, call.line)
            )
        total = edge_plans.collect(low.draft, flows, plan, nodes, f"{plan.name}/receivers")
        for part, i in enumerate(group_members):
            out[i] = Elements(nodes.space, Computed(total, part))
    return out


def _edge_plan(
    ends: Sequence[Value],
    nodes: IndexSpace,
    call: Call,
) -> EdgePlan:
    """Makes the edges of a topology pump: the instance's edges, in whatever loop they are used.

    Raises:
      GraphError: If the values are not those of a graph's nodes, or edges are not the instance's own.
    """
    if not nodes.is_ragged:
        fix = 'Say in the spec what the edges join: `amp.Edges("v", kinds=4)`, with the dimension of these values.'
        raise GraphError(
            call.line, "values of the nodes that the spec's `Edges` join", f"{nodes}", fix
        )
    columns: list[Column] = []
    for value in ends:
        element = value.element if isinstance(value, Elements) else None
        column = element.column.origin if isinstance(element, Static) else None
        if column is None or column.space.parent is None or column.space.parent.parent is not None:
            fix = "Take the edges from the instance; edges that come and go can be of kinds of their own."
            raise GraphError(
                call.line,
                "edges that are the same in all rounds",
                "computed or changing edges",
                fix,
            )
        columns.append(column)
    assert nodes.sizes is not None
    senders, receivers, *kinds = columns
    n_nodes = nodes.sizes.origin
    return EdgePlan(
        senders,
        receivers,
        kinds[0] if kinds else None,
        len(call.functions),
        n_nodes,
        call.line,
    )
