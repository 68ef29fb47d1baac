"""Rules that turn sending over edges into steps: each kind of edge has a space, whose rows read senders and are added up at receivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.sequence_steps import sequences
from ampjax.frontend.batches.programs_of_rows import Rows, Run, Slot, View, filled_up
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.batches.row_tables import RowTables
from ampjax.frontend.combinators.graph_combinators import PROPAGATE
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.draft.edge_plans import EdgePlan
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.instances.instance_topologies import check_edges
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.jaxprs.wide_sums import wide_segment_sum


@STEP_RULES.of(PROPAGATE)
def propagate(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Applies the functions to the senders' rows, and adds the results up at the receivers."""
    n_closed = sum(call.n_closed)
    n_ends = call.options["n_ends"]
    rows = sequences(body, operands[n_closed + n_ends :])
    nodes = elements_space(rows, call.line)
    plan = _edge_plan(body, operands[n_closed : n_closed + n_ends], nodes, call)
    body.low.host.draft.checks.append(lambda data: check_edges(plan, data))
    edges = body.inside(plan.space)
    inner = body.inside(nodes)
    types = [variable.aval for variable in call.functions[0].jaxpr.outvars]
    kinds = _kinds(body, plan)
    parts: list[Body] = []
    sent: list[tuple[list[Value], list[Value]]] = []
    start = 0
    for number, (function, n) in enumerate(zip(call.functions, call.n_closed, strict=True)):
        closed = operands[start : start + n]
        start += n
        part = edges.inside(plan.space.part(kinds, number))
        senders = _ends(plan.senders, part.space, nodes, plan.space)
        way = (plan.senders, part.space)

        def at_senders(
            value: Value,
            space: IndexSpace = part.space,
            senders: Any = senders,
            way: Any = way,
        ) -> Value:
            return body.low.value_at(value, nodes, space, senders, way)

        own = [row.element for row in rows]
        by_edge = _compute_messages(part, function, [*closed, *map(at_senders, own)])
        by_node = by_edge
        if not any(calls(function.jaxpr)):
            by_node = []
            for value, kind in zip(
                _compute_messages(inner, function, [*closed, *own]),
                types,
                strict=True,
            ):
                by_node.append(at_senders(View(inner.rows(value, kind), nodes)))
        sent.append((by_edge, by_node))
        parts.append(part)
    out: list[Value] = []
    for i, kind in enumerate(types):
        values = []
        for part, (by_edge, by_node) in zip(parts, sent, strict=True):
            values.append(
                (
                    part.rows(
                        by_edge[i],
                        kind,
                    ),
                    part.rows(by_node[i], kind),
                )
            )
        out.append(Elements(nodes, _sum_at_receivers(inner, parts, values, plan, kind)))
    return out


def _compute_messages(
    part: Body,
    function: Traced,
    values: Sequence[Value],
) -> list[Value]:
    """Computes messages, one for each row of a room."""
    return part.guarded(
        part.room,
        lambda there: there.run(function, values),
    )


def _sum_at_receivers(
    inner: Body,
    parts: Sequence[Body],
    values: Sequence[tuple[Rows, Rows]],
    plan: EdgePlan,
    kind: Any,
) -> Value:
    """Sums at the receivers. What is sent is computed for each edge, or for each node where there are fewer nodes, and read by edges."""
    nodes = inner.space
    room = inner.bare()
    out = Rows(kind, room)
    slots = [_receivers(inner, part, plan) for part in parts]

    def compute(run: Run) -> list[Any]:
        n = run.size(inner.room)
        total = run.zeros(out)
        for (by_edge, by_node), part, slot in zip(values, parts, slots, strict=True):
            rows = by_edge if run.size(part.room) <= n else by_node
            total = total + wide_segment_sum(run.get(rows), run.slots[slot], n)
        return [filled_up(run, room, total)]

    inner.block.add([out], compute)
    return View(out, nodes)


def _receivers(inner: Body, part: Body, plan: EdgePlan) -> Slot:
    """The array of the batch that says where the receiver of each edge lies; one more than the last node for copies of edges."""
    here = inner.room.place
    there = part.room.place
    ends = _ends(plan.receivers, part.space, inner.space, plan.space)

    def make(tables: RowTables) -> np.ndarray:
        at = tables.reads(here, there, ends)
        return np.where(
            tables.is_there(*there),
            at,
            tables.rows(*here).shape[-1],
        ).astype(np.int32)

    return inner.low.slot(
        ("receivers", part.space, plan.receivers),
        inner.room.frame,
        make,
    )


def _kinds(body: Body, plan: EdgePlan) -> Column:
    """The kind of each edge."""
    if plan.kinds is not None:
        return plan.kinds
    space = plan.space
    return body.low.host.same_column(
        ("kinds", space),
        space,
        lambda data: np.zeros(space.n_rows(data), np.int64),
    )


def _ends(
    ends: Column,
    part: IndexSpace,
    nodes: IndexSpace,
    edges: IndexSpace,
) -> Any:
    """For each row of a part of the edges, the row of the node at one end."""

    def find(data: Any) -> np.ndarray:
        rows = nodes.starts(data)[edges.parents(data)] + ends.inside(edges).of(data)
        return part.rows_of(data, edges, rows)

    return find


def _edge_plan(
    body: Body,
    ends: Sequence[Value],
    nodes: IndexSpace,
    call: Call,
) -> EdgePlan:
    """The edges: columns over their space."""
    given = sequences(body, ends)
    for value in given:
        if not isinstance(value, Elements) or not isinstance(value.element, Static):
            fix = "Take the edges from the instance; edges that come and go can be of kinds of their own."
            raise GraphError(call.line, "edges that the example says", "computed edges", fix)
    space = elements_space(given, call.line)
    senders, receivers, *kinds = [value.element.column.inside(space) for value in given]
    n_nodes = Column(body.space, nodes.lengths)
    return EdgePlan(
        senders,
        receivers,
        kinds[0] if kinds else None,
        len(call.functions),
        n_nodes,
        call.line,
    )
