"""Rules that turn metrics, outputs and functions with names into steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batches.programs_of_rows import Report, Rows, Run, View, zeros
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.combinators.reports import METRIC, NODE, OUTPUT
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Elements


@STEP_RULES.of(NODE)
def node(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Runs a function with a name: the name is one of a graph's node, and changes nothing here."""
    return body.run(call.functions[0], operands)


@STEP_RULES.of(METRIC)
def metric(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Reports a metric: its values and their counts, both 0 where a row does not count."""
    kind = jax.ShapeDtypeStruct((), np.float32)
    mask = body.room.mask
    values: list[View] = []
    for operand in operands:
        given = body.rows(operand, kind)
        out = Rows(kind, body.bare())

        def compute(run: Run, given: Rows = given) -> list[Any]:
            own = run.get(given)
            return [
                own
                if mask is None
                else jnp.where(
                    run.get(mask),
                    own,
                    zeros((), kind),
                )
            ]

        body.block.add([out], compute)
        values.append(View(out, body.space))
    body.block.reports.append(Report(call.options["name"], True, values))
    return []


@STEP_RULES.of(OUTPUT)
def output(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """An output: a row for each row, or for each element of a sequence."""
    (value,) = operands
    kind = call.options["type"]
    if isinstance(value, Elements):
        value = body.low.copied(value, body.space)
        body = body.inside(value.space)
        value = value.element
        kind = element_type(kind)
    if isinstance(value, Elements):
        fix = "Tell it in a `map`."
        raise GraphError(
            call.line, "an array, or a sequence of arrays", "a sequence of sequences", fix
        )
    given = body.rows(value, kind)
    plain = body.bare()
    mask = body.room.mask
    counts = Rows(jax.ShapeDtypeStruct((), np.bool_), plain)
    body.block.add(
        [counts],
        lambda run: [run.slots[plain.there] if mask is None else run.get(mask)],
    )
    own: list[View] = []
    for rows in (given, counts):
        bare = Rows(rows.aval, plain)
        body.block.add(
            [bare],
            lambda run, rows=rows: [jnp.asarray(run.get(rows))],
        )
        own.append(View(bare, body.space))
    body.block.reports.append(Report(call.options["name"], False, own))
    return []
