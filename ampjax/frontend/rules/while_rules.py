"""The rule of loops that read a value: a choice before the first round, and one at the end of each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.branches import READ, WHILE
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.combinators.user_errors import BATCHES_TAKE_IT
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.decisions import Decision
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.values import Computed, Constant, Flow, Static, Value, Wanted
from ampjax.frontend.rules.branch_rules import (
    Asked,
    choice_by_value,
    merge_results,
    only_read,
    send_along,
)
from ampjax.frontend.rules.carry_loops import leave
from ampjax.ir.state import State


@MESSAGE_RULES.of(WHILE)
def while_loop(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers a loop that reads a value to decide on another round. The test stands at the end of each round; the first test is a choice before the loop."""
    test, turn, same = call.functions
    n_test, n_turn, _ = call.n_closed
    closed = list(operands[n_test : n_test + n_turn])
    init = list(operands[n_test + n_turn :])
    asked = [*operands[:n_test], *init]
    (answer,) = low.run(
        test,
        asked,
        region,
        Wanted({0}),
    )
    if isinstance(answer, Constant):
        if answer.value:
            return _around(low, call, closed, init, region, wanted)
        return init
    answer = replace(
        _read_answer(low, answer, region, call), was_read=1
    )  # as many rounds are assumed as there can be
    functions = replace(call, functions=(same, turn))
    decision = choice_by_value(
        low,
        call,
        low.number("if"),
        2,
        region,
        answer,
    )
    ended, goes = send_along(
        low,
        functions,
        [init, [*closed, *init]],
        decision,
    )
    after = _around(
        low,
        call,
        goes[:n_turn],
        goes[n_turn:],
        region.where(decision.guards[1]),
        wanted,
    )
    return merge_results(
        low,
        call.results,
        "while",
        call.line,
        [ended, after],
        decision.guards,
        region,
        wanted,
    )


def _around(
    low: Lowering,
    call: Call,
    closed: Sequence[Value],
    init: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers a loop that begins with a round."""
    turn = call.functions[1]
    n = len(call.results)
    rounds = _Rounds(low, call, region)
    inner = region.within(rounds.decision.inside(region.space))
    name = rounds.name
    values = _carry_around(low, rounds, closed, turn, region, inner)
    carried = turn.variables[len(closed) :]
    types = [variable.aval for variable in carried]
    new = _go_around(carried, turn, wanted)
    groups = by_dtype(types, new)
    carry: list[Value] = [_if_read(value, v, turn) for value, v in zip(init, carried, strict=True)]
    loops = []
    for group in groups:
        flow = rounds.start(
            [carry[i] for i in group],
            [types[i] for i in group],
            region,
        )
        first, loop = rounds.begin(flow, inner)
        loops.append((first, loop))
        for part, i in enumerate(group):
            carry[i] = Computed(loop, part)
    low.draft.anchors[inner] = loops[0][1]
    results = low.run(
        turn,
        [*values, *carry],
        inner,
        Wanted({*new, n}, groups=groups),
    )
    rounds.ask(_read_answer(low, results[n], inner, call), inner)
    final: dict[int, Computed] = {}
    for group, (first, loop) in zip(groups, loops, strict=True):
        kinds = [types[i] for i in group]
        flow = low.pack(
            [results[i] for i in group],
            kinds,
            inner,
            f"{name}/carry",
            call.line,
        )
        out = rounds.end(
            first,
            loop,
            payload_notes.refresh_states(low.draft, flow, name, call.line),
        )
        left = leave(low, out, inner.space, region, f"{name}/leave")
        final |= {i: Computed(left, part) for part, i in enumerate(group)}
    result = []
    for i in range(n):
        result.append(final.get(i) if i in wanted.values else None)
    return result


def _carry_around(
    low: Lowering,
    rounds: _Rounds,
    closed: Sequence[Value],
    turn: Traced,
    region: Region,
    inner: Region,
) -> list[Value]:
    """Sends the values that rounds close over around unchanged; values that only the test reads stay outside."""
    types = [variable.aval for variable in turn.variables]
    used = [variable in turn.used for variable in turn.variables]
    sent = []
    for i, value in enumerate(closed):
        if used[i] and isinstance(value, Computed | Static):
            sent.append(i)
    values = list(closed)
    for group in by_dtype(types, sent):
        flow = rounds.start(
            [closed[i] for i in group],
            [types[i] for i in group],
            region,
        )
        for part, i in enumerate(group):
            one = Computed(rounds.decision.send(flow)[0], part)
            value = closed[i]
            if isinstance(value, Static):
                low.draft.carry(value.column, inner, one)
            else:
                values[i] = one
    for i in range(len(values)):
        if used[i]:
            values[i] = rounds.decision.take(values[i], 0)
    return values


def _go_around(
    carried: Sequence[Any],
    turn: Traced,
    wanted: Wanted,
) -> list[int]:
    """The numbers of the loop's variables that messages bring from round to round."""
    numbers = []
    for i, variable in enumerate(carried):
        if i in wanted.values or variable in turn.used:
            numbers.append(i)
    return numbers or [0]  # something must go around


class _Rounds:
    """The rounds of a loop that reads a value.

    Args:
      low: The lowering.
      call: The loop.
      region: Where it is.

    Attributes:
      decision: Sends what the rounds close over around as it is.
      name: What new nodes are called after.
    """

    def __init__(self, low: Lowering, call: Call, region: Region):
        self._low = low
        self._call = call
        space = region.space.along(low.number("round"), None)
        self.decision = Decision(region, self._go_around, space)
        self.name = space.dimension
        self._space = space
        self._asked = None
        self._field = space.fact(
            low.number("go_on"), None, f"whether the loop goes on ({call.line})"
        )
        self._waiting: list[tuple[Flow, Flow]] = []

    def start(
        self,
        values: Sequence[Value],
        types: Sequence[Any],
        region: Region,
    ) -> Flow:
        """Values as one message before the first round.

        Args:
          values: The values, of one dtype.
          types: Their types.
          region: Where they are.
        """
        name = f"{self.name}/init"
        line = self._call.line
        return payload_notes.refresh_states(
            self._low.draft,
            self._low.pack(values, types, region, name, line),
            name,
            line,
        )

    def begin(
        self,
        start: Flow,
        place: Region,
    ) -> tuple[Flow, Flow]:
        """Begins the first round.

        Args:
          start: The messages.
          place: Where they are in a round.

        Returns:
          The messages of the first round, and those of each.
        """
        space = self._space
        draft = self._low.draft

        def number(s):
            return s.replace(
                **dict.fromkeys(space.facts, 0),
                **{space.index: 0},
            )

        first = draft.relabel(start, place, number, f"{self.name}/first", start.is_fresh)
        return first, draft.loop(place, start.types, self.name, start.is_fresh)

    def ask(self, answer: Computed, inner: Region) -> None:
        """Notes the value that decides whether the loop goes on.

        Args:
          answer: A number that was read.
          inner: Where a round is.
        """
        choice = only_read(self._low, [answer], inner, self._call)

        def assume(s):
            return self._may_go_on(s).astype(np.int64)

        self._asked = Asked(
            self._low,
            choice,
            [self._field],
            assume,
            self._call,
        )
        for first, loop in self._waiting:
            self.end(first, loop, loop)

    def end(self, first: Flow, loop: Flow, after: Flow) -> Flow:
        """Ends a round: sends messages into the next one, or out.

        Args:
          first: Those of the first round.
          loop: Those of each round, when it begins.
          after: Likewise when it ends.

        Returns:
          Those that have left the last round.
        """
        assert self._asked is not None
        draft = self._low.draft
        index = self._space.index
        regions = [loop.region, loop.region]

        def goes_on(s):
            return (getattr(s, self._field) == 1) & self._may_go_on(s)

        again, out = draft.split(
            self._asked.route(after),
            goes_on,
            regions,
            f"{self.name}/again",
        )

        def step(s):
            return s.replace(**{index: getattr(s, index) + 1})

        draft.close_loop(
            loop,
            first,
            draft.relabel(again, loop.region, step, f"{self.name}/next", after.is_fresh),
        )
        return out

    def _may_go_on(self, s: State) -> Any:
        return getattr(s, self._space.index) + 1 < self._call.options["most"]

    def _go_around(self, flow: Flow, place: Region) -> list[Flow]:
        """Sends messages to each round unchanged."""
        first, loop = self.begin(flow, place)
        loop.is_late = False
        if self._asked is None:
            self._waiting.append((first, loop))
        else:
            self.end(first, loop, loop)
        return [loop]


def _if_read(value: Value, variable: Any, turn: Traced) -> Value:
    """Brings a value into a round; no value that no round reads, since the value may be missing where rounds begin."""
    if variable in turn.used:
        return value
    return Constant(jnp.zeros(variable.aval.shape, variable.aval.dtype))


def _read_answer(
    low: Lowering,
    answer: Any,
    region: Region,
    call: Call,
) -> Computed:
    """Reads the test's answer as a number. One round's answer may follow from the instance, or be constant, while other rounds' do not."""
    reads = any(used.kind == READ for used in calls(call.functions[0].jaxpr))
    if reads and isinstance(answer, Static | Constant):
        (known,) = low.pack_values(
            [answer],
            [call.functions[0].jaxpr.outvars[0].aval],
            region,
            "while",
            call.line,
        )
        return replace(known, was_read=1)
    if not isinstance(answer, Computed) or answer.was_read is None:
        fix = f"Read what it depends on with `amp.read`; for a number of rounds that the instance says, use `amp.fori_loop`. {BATCHES_TAKE_IT}"
        got = "a test without `amp.read`"
        if reads:
            fix = "Put `amp.read` around the whole test."
            got = "one that also depends on what is not read"
        raise GraphError(call.line, "a test of a value that is read back", got, fix)
    return answer
