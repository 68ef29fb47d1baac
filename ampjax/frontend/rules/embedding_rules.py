"""The rule of reads of rows of a table in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampjax.errors import GraphError
from ampjax.frontend.combinators.embeddings import LOOK_UP
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.index_checks import check
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.node_bodies import NodeNote, as_it_is
from ampjax.frontend.draft.values import Computed, Elements, Static, Value, Wanted


@MESSAGE_RULES.of(LOOK_UP)
def look_up(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Value]:
    """Rows of a table: a node whose parameters are the table, and whose only input are the ids."""
    (ids,) = operands
    table = call.options["table"]
    if isinstance(ids, Elements):
        raise GraphError(
            call.line, "ids of one element", "a sequence of them", "Call `amp.look_up` in a `map`."
        )
    if not isinstance(ids, Static | Computed):
        fix = "Take them from the example; a row that all examples read can be a key of the parameters."
        raise GraphError(
            call.line, "ids that depend on the example", "the same for all examples", fix
        )
    key = low.draft.params.key_of(table, call.line)
    if isinstance(ids, Static) and region.is_known:
        allowed = f"a number from 0 to {table.shape[0] - 1}, of a row of the table `{key}`"
        one = ids.column, region, 0, table.shape[0], call.line, allowed
        low.draft.checks.append(lambda data: check(data, *one))
    note = NodeNote(
        name=f"{key}/ids",
        region=region,
        inputs=[ids],
        types=[call.options["ids"]],
        function=as_it_is,
        results=[call.options["ids"]],
        groups=[[0]],
        line=call.line,
    )
    if isinstance(ids, Computed) and not (ids.flow.is_fresh and len(ids.flow.types) == 1):
        (alone,) = payload_notes.compute(low.draft, note)
        note = replace(note, inputs=[Computed(alone)])
    (rows,) = payload_notes.compute(
        low.draft,
        replace(
            note,
            name=key,
            results=call.results,
            named_by=key,
            table=table,
        ),
    )
    return [Computed(rows)]
