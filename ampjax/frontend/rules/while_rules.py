"""How loops that read a value become nodes: a choice before the first round, and one at the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.deduction.lowering import Lowering, by_dtype
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Guard, Region
from ampjax.frontend.draft.values import Computed, Constant, Static, Value, Wanted
from ampjax.frontend.rules.branch_rules import alone, merged, must_be_carried, route_by, routed_by_value
from ampjax.frontend.rules.loops import leave


def while_loop(low: Lowering, call: Call, operands: Sequence[Value], region: Region, wanted: Wanted) -> list[Any]:
    """A loop that reads a value to know whether it goes on. The test stands at the end of each round; the first one is a choice before it."""
    (test, turn, same), (n_test, n_turn, _) = call.functions, call.n_closed
    closed, init = list(operands[n_test : n_test + n_turn]), list(operands[n_test + n_turn :])
    asked = [*operands[:n_test], *init]
    (answer,) = low.run(test, asked, region, Wanted({0}))
    if isinstance(answer, Constant):
        return _rounds(low, call, closed, init, region, wanted) if answer.value else init
    if isinstance(answer, Static) and any(used.kind == "read" for used in calls(test.jaxpr)):
        (known,) = low.packed([answer], [test.jaxpr.outvars[0].aval], region, "while", call.line)
        answer = replace(known, was_read=1)  # the first round follows from the instance, the others need not
    answer = replace(_require_read(answer, call), was_read=1)  # as many rounds are assumed as there can be
    field = low.number("if")
    guards = [Guard(field, value, None) for value in (0, 1)]
    functions = replace(call, functions=(same, turn))
    ended, goes = routed_by_value(low, functions, [init, [*closed, *init]], guards, region, answer)
    after = _rounds(low, call, goes[:n_turn], goes[n_turn:], region.where(guards[1]), wanted)
    return merged(low, call.results, "while", call.line, [ended, after], guards, region, wanted)


def _rounds(
    low: Lowering, call: Call, closed: Sequence[Value], init: Sequence[Value], region: Region, wanted: Wanted
) -> list[Any]:
    """A loop that begins with a round. What the rounds close over is carried along; what only the test reads is not."""
    turn, n, most = call.functions[1], len(call.results), call.options["most"]
    given = [*closed, *(_if_read(value, v, turn) for value, v in zip(init, turn.variables[len(closed) :], strict=True))]
    carried = [
        i
        for i, (value, variable) in enumerate(zip(given, turn.variables, strict=True))
        if (i >= len(closed) and i - len(closed) in wanted.values)
        or (variable in turn.used and (i >= len(closed) or must_be_carried(value, call)))
    ]
    carried = carried or [len(closed)]  # something must go around
    types = [turn.variables[i].aval for i in carried]
    space = region.space.along(low.number("round"), None)
    inner, name, index = region.within(space), space.dimension, space.index
    field = space.fact(low.number("go_on"), None, f"whether the loop goes on ({call.line})")
    is_new = [i >= len(closed) for i in carried]
    groups = [[k for k in group if is_new[k] == new] for new in (False, True) for group in by_dtype(types)]
    groups = [group for group in groups if group]
    loops, places = [], dict(enumerate(given))
    for group in groups:
        start = low.pack(
            [given[carried[k]] for k in group], [types[k] for k in group], region, f"{name}/init", call.line
        )
        start = payload_notes.fresh(low.draft, start, f"{name}/init", call.line)
        begin = lambda s: s.replace(**dict.fromkeys(space.facts, 0), **{index: 0})
        first = low.draft.relabel(start, inner, begin, f"{name}/first", True)
        loop = low.draft.loop(inner, start.types, name, is_fresh=True)
        loops.append((first, loop))
        places |= {carried[k]: Computed(loop, part) for part, k in enumerate(group)}
    needed = {carried[k] - len(closed) for k in range(len(carried)) if is_new[k]}
    together = [[carried[k] - len(closed) for k in group] for group in groups if is_new[group[0]]]
    low.draft.anchors[inner] = loops[0][1]
    results = low.run(turn, [places[i] for i in range(len(given))], inner, Wanted(needed | {n}, groups=together))
    _require_read(results[n], call)
    choice = alone(low, [results[n]], inner, call)
    goes_on = lambda s: getattr(s, index) + 1 < most
    final: dict[int, Computed] = {}
    for group, (first, loop) in zip(groups, loops, strict=True):
        kinds = [types[k] for k in group]
        after = [results[carried[k] - len(closed)] if is_new[k] else places[carried[k]] for k in group]
        flow = payload_notes.fresh(
            low.draft, low.pack(after, kinds, inner, f"{name}/carry", call.line), name, call.line
        )
        flow = route_by(low, flow, choice, [field], lambda s: goes_on(s).astype(np.int64), call)
        again, out = low.draft.split(
            flow, lambda s: (getattr(s, field) == 1) & goes_on(s), [inner, inner], f"{name}/again"
        )
        step = lambda s: s.replace(**{index: getattr(s, index) + 1})
        low.draft.close_loop(loop, first, low.draft.relabel(again, inner, step, f"{name}/next", True))
        if is_new[group[0]]:
            left = leave(low, out, space, region, f"{name}/leave")
            final |= {carried[k] - len(closed): Computed(left, part) for part, k in enumerate(group)}
    return [final.get(i) if i in wanted.values else None for i in range(n)]


def _if_read(value: Value, variable: Any, turn: Traced) -> Value:
    """What a round begins with; nothing of it where no round reads it, since it may not have been sent to where rounds are made."""
    return value if variable in turn.used else Constant(jnp.zeros(variable.aval.shape, variable.aval.dtype))


def _require_read(answer: Any, call: Call) -> Computed:
    if not isinstance(answer, Computed) or answer.was_read is None:
        fix = "Read what it depends on with `amp.read`; for a number of rounds that the instance says, use `amp.fori_loop`."
        raise GraphError(call.line, "a test of a value that is read back", "a test without `amp.read`", fix)
    return answer
