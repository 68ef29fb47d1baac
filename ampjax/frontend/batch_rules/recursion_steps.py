"""Rules that turn recursions into steps: rows that wait for equally many others are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.sequence_steps import sequences
from ampjax.frontend.batch_rules.step_loops import in_steps, waiting_steps
from ampjax.frontend.batch_rules.waiting_loops import waiting_loop, where, zeros_of
from ampjax.frontend.batches.programs_of_rows import View
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.combinators.recursion import RECALL, RECURSE
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.values import Constant, Static
from ampjax.frontend.rules.recursion_rules import asked_rows, check_order
from ampjax.frontend.rules.sequence_rules import elements_space


@dataclass(eq=False)
class _Recursion:
    """A recursion whose function becomes steps.

    Args:
      space: The elements' space.
      states: All elements' results so far.
      asked: The places that ask: where, for which number, and the user's line.
    """

    space: IndexSpace
    states: list[Value]
    asked: list[tuple[Region, Column, str]] = field(default_factory=list)

    def levels(self, data: Any, line: str) -> np.ndarray:
        """Finds the level of each element, `[elements]`; checks that no result depends on its own value."""
        return data.once(
            (self, "levels"),
            lambda: check_order(data, self.space, self._edges(data), line),
        )

    def _edges(
        self,
        data: Any,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for region, number, line in self.asked:
            own, asked = asked_rows(data, self.space, region, number, line)
            is_asked = number.of(data) >= 0
            found.append((own[is_asked], asked[is_asked]))
        return found


@STEP_RULES.of(RECURSE)
def recurse(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Computes the function for each element, after the elements that the function asks for."""
    (each,) = call.functions
    (n_closed,) = call.n_closed
    xs = sequences(body, operands[n_closed:])
    space = elements_space(xs, call.line)
    low = body.low
    types = [variable.aval for variable in each.jaxpr.outvars]
    recursion = _Recursion(space, [])
    low.host.draft.checks.append(lambda data: recursion.levels(data, call.line))

    def step(there: Body, states: list[Value]) -> list[Value]:
        recursion.states = states
        low.recursions[call.options["of"]] = recursion
        results = there.run(
            each,
            [*operands[:n_closed], *(x.element for x in xs)],
        )
        del low.recursions[call.options["of"]]
        return results

    def levels(data: Any) -> np.ndarray:
        return recursion.levels(data, call.line)

    inner = body.inside(space)
    if in_steps(
        inner,
        each,
        [*operands[:n_closed], *(x.element for x in xs)],
        types,
    ):
        return waiting_steps(inner, each, levels, ([], None), types, step)
    start = [(Constant(zeros_of(kind)), kind) for kind in types]
    return waiting_loop(
        inner,
        levels,
        start,
        step,
        call,
        each,
    )


@STEP_RULES.of(RECALL)
def recall(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """An element's result, read where all are; `init` for a negative number."""
    recursion = body.low.recursions.get(call.options["of"])
    number, *init = operands
    if recursion is None:
        fix = "Pass on what it gave; its function is of this recursion alone."
        expected = "`recur` inside of the function that `amp.recurse` was given"
        raise GraphError(call.line, expected, "a call outside", fix)
    if not is_static(number):
        fix = "Take the number from the instance: what the recursion goes through can't depend on parameters."
        raise GraphError(
            call.line, "the number of an element, known from the instance", "a computed number", fix
        )
    column = body.low.host.column(
        number,
        body.region,
        jax.ShapeDtypeStruct((), np.int32),
    )
    elements = recursion.space
    space = body.space
    recursion.asked.append((Region(space), column, call.line))

    def origin(data: Any) -> np.ndarray:
        own = space.rows_of(data, elements, elements.parents(data))
        asked = column.of(data).astype(np.int64)
        return np.where(
            asked < 0,
            -1,
            elements.starts(data)[own] + asked,
        )

    is_none = Static(Column(space, lambda data: column.of(data) < 0))
    results: list[Value] = []
    for state, first, kind in zip(recursion.states, init, call.results, strict=True):
        results.append(
            where(
                body,
                is_none,
                first,
                View(state.rows, space, origin),
                kind,
            )
        )
    return results
