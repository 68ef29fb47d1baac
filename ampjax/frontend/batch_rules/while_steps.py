"""Loops that a computed value ends: rounds for all rows, of which a mask says which still go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.carried_parts import CarriedPart, carried_part
from ampjax.frontend.batch_rules.choice_steps import mask_rows
from ampjax.frontend.batch_rules.loop_parts import computes_shared, numbered_part, reads_by_number
from ampjax.frontend.batch_rules.step_loops import cost_of_start
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    ReadsByNumber,
    Rows,
    Run,
    Slot,
    View,
    filled_rows,
)
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.combinators.branches import READ, WHILE
from ampjax.frontend.combinators.tracing import COMBINATOR, Call, Traced
from ampjax.frontend.draft.values import Constant
from ampjax.frontend.loops.traced_rows import HEAVY
from ampjax.jaxprs.primitives import inner, is_anywhere

FEW_ROUNDS = 16
"""So many rounds may all run, if they are light."""

LIGHT_ROWS = 32
"""A round is light if so many rows of it take no longer than a step of a loop takes to start."""

SLOW = "while", "scan", "sort", "fft", "cholesky", "lu", "qr", "eigh", "svd", "triangular_solve"
"""Operations of no light round: small results may cost much, and loops may not end."""


@STEP_RULES.of(WHILE)
def while_loop(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Runs the largest possible number of rounds; empty rounds are left out, unless few and light."""
    test, turn, _ = call.functions
    n_test, n_turn, _ = call.n_closed
    closed = operands[n_test : n_test + n_turn]
    init = operands[n_test + n_turn :]
    flag = jax.ShapeDtypeStruct((), np.bool_)
    (answer,) = body.run(
        test,
        [*operands[:n_test], *init],
    )
    asked = body.rows(answer, flag)
    goes = mask_rows(body, lambda run: run.get(asked))
    types = [variable.aval for variable in turn.jaxpr.outvars[:-1]]
    most = call.options["most"]
    counters = _counters(turn, init)
    numbers = [turn.jaxpr.invars[place] for place in counters]
    is_safe = not computes_shared(turn, numbers, closed)
    split = numbered_part(turn, numbers, closed)
    by_number = None
    if split is not None and most <= split.most_rounds:
        turn = split.second
        by_number = reads_by_number(body, split, closed)
    return rounds(
        body,
        call,
        MaskedRounds(
            goes,
            init,
            types,
            lambda there, given: there.run(turn, [*closed, *given]),
            most,
            counters=counters,
            by_number=by_number,
            runs_empty=is_safe and _is_light(turn, most),
        ),
    )


def _is_light(turn: Traced, most: int) -> bool:
    """Whether empty rounds cost less than a question in each round: `jax.lax.cond` copies all values kept for the backward pass.

    Args:
      turn: The function of a round.
      most: How many rounds there are.
    """
    if most > FEW_ROUNDS or is_anywhere(turn.jaxpr, _is_heavy_inside):
        return False
    return cost_of_start(turn) >= LIGHT_ROWS


def _is_heavy_inside(equation: Any) -> bool:
    """Whether an equation may take longer than its results are large: a combinator but `read`, a loop, or a function with products."""
    if equation.primitive is COMBINATOR:
        return equation.params["call"].kind != READ
    if equation.primitive.name in SLOW:
        return True
    has_product = lambda each: each.primitive.name in HEAVY
    return any(is_anywhere(each, has_product) for each in inner(equation))


@dataclass(frozen=True)
class Counter:
    """A part of a carry, raised by the same integer in each round: so all rows still in the loop have the same value.

    Args:
      start: Its value before the first round.
      step: What a round adds.
    """

    start: Any
    step: Any

    def at(self, number: Any, kind: Any) -> Any:
        """Its value in a round.

        Args:
          number: The number of the round.
          kind: Its type.
        """
        start = jnp.asarray(self.start, kind.dtype)
        step = jnp.asarray(self.step, kind.dtype)
        return start + step * number.astype(kind.dtype)


def _counters(turn: Traced, init: Sequence[Value]) -> dict[int, Counter]:
    """Finds the parts of the carry that count rounds: so an array that such a part chooses from is read once for all rows.

    Args:
      turn: The function of a round.
      init: The carry before the first one.
    """
    made = {}
    for equation in turn.jaxpr.eqns:
        for result in equation.outvars:
            made[result] = equation
    carried = turn.variables[-len(init) :] if init else []
    found = {}
    for place, (value, variable) in enumerate(zip(init, carried, strict=True)):
        equation = made.get(turn.jaxpr.outvars[place])
        kind = variable.aval
        is_whole = kind.shape == () and jnp.issubdtype(kind.dtype, np.integer)
        if not isinstance(value, Constant) or not is_whole or equation is None:
            continue
        if equation.primitive.name == "add" and variable in equation.invars:
            for other in equation.invars:
                if isinstance(other, jex.Literal):
                    found[place] = Counter(value.value, other.val)
    return found


@dataclass(frozen=True)
class MaskedRounds:
    """Rounds of a loop for all rows, of which a mask says which still go on.

    Args:
      goes: The mask of the rows that go on at the beginning.
      init: The carry at the beginning.
      types: The types of its parts.
      turn: Adds a round: from a body, and the carry with what counters read behind it, to the new carry, and whether a row goes on; without that
        `goes_on` says it.
      most: How many rounds there are, or the array of the batch of which each round has an entry.
      goes_on: From the run and a round's number whether each row goes on after that round.
      counters: The parts of the carry that count rounds, by place.
      by_number: What is read by these; None for nothing.
      runs_empty: Whether empty rounds, which no row needs, are computed, too.
    """

    goes: Rows
    init: Sequence[Value]
    types: Sequence[Any]
    turn: Callable[[Body, list[Value]], list[Value]]
    most: int | Slot
    goes_on: Callable[[Run, Any], Any] | None = None
    counters: Mapping[int, Counter] = field(default_factory=dict)
    by_number: ReadsByNumber | None = None
    runs_empty: bool = False

    def counted(self, number: Any) -> list[Any]:
        """The values of counters.

        Args:
          number: The number of a round, or the numbers of all.
        """
        found = []
        for place, counter in self.counters.items():
            found.append(counter.at(number, self.types[place]))
        return found


def rounds(body: Body, call: Call, given: MaskedRounds) -> list[Value]:
    """Adds rounds.

    Args:
      body: Where.
      call: The loop, for messages.
      given: The rounds.

    Returns:
      The carry after them.
    """
    carried = []
    for value, kind in zip(given.init, given.types, strict=True):
        carried.append(carried_part(body, value, kind, call.line))
    before = [part.before for part in carried]
    each = _round(body, given, carried)
    told = _report_metrics(body, each.block, call)
    last = [part.last() for part in carried]

    def compute(run: Run) -> Sequence[Any]:
        def round_of(carried: Any, numbered: Any) -> tuple[Any, Any]:
            return each.run(run, given, told, carried, numbered), None

        most = given.most if isinstance(given.most, int) else len(run.slots[given.most])
        numbers = jnp.arange(most)
        counted = given.counted(numbers)
        early = given.by_number
        read = [] if early is None else early.of_rounds(run, counted)
        totals = [run.zeros(total) for _, total in told]
        start = [*map(run.get, before)], run.get(given.goes), totals
        values, _, sums = jax.lax.scan(
            round_of,
            start,
            (numbers, counted, read),
        )[0]
        return [*filled_rows(run, last, values), *sums]

    body.block.add(
        [*last, *(total for _, total in told)],
        compute,
    )
    return [part.value(rows) for part, rows in zip(carried, last, strict=True)]


@dataclass(frozen=True)
class _Round:
    """A round, as a block of its own.

    Args:
      block: The block.
      inside: The carry before the round.
      going: The mask of the rows that make it.
      counted: The parts of the carry that count rounds.
      after: The carry after the round.
      answers: Whether each row goes on, if the round computes that.
    """

    block: Block
    inside: Sequence[Rows]
    going: Rows
    counted: Sequence[Rows]
    after: Sequence[Rows]
    answers: Sequence[Rows]

    def run(
        self,
        run: Run,
        given: MaskedRounds,
        told: Sequence[tuple[Rows, Rows]],
        carried: Any,
        numbered: tuple[Any, Sequence[Any], Sequence[Any]],
    ) -> tuple[list[Any], Any, list[Any]]:
        """Computes a round.

        Args:
          run: The run of the block around.
          given: The rounds.
          told: Metrics that rounds tell, and their sums.
          carried: The carry, the mask of the rows that go on, and the sums of metrics so far.
          numbered: The number of the round, the values of counters, and what is read by these.

        Returns:
          The same after the round.
        """
        values, mask, sums = carried
        number, counted, read = numbered
        own = run.inner(
            key=None
            if run.key is None
            else jax.random.fold_in(
                run.key,
                number,
            )
        )
        own.put(self.inside, values)
        own.put([self.going], [mask])
        own.put(self.counted, counted)
        if given.by_number is not None:
            own.put(given.by_number.inside, read)
        self.block.run(own)
        sums = [total + own.get(each) for total, (each, _) in zip(sums, told, strict=True)]
        for answer in self.answers:
            mask = mask & own.get(answer)
        if given.goes_on is not None:
            mask = mask & given.goes_on(run, number)
        return [*map(own.get, self.after)], mask, sums


def _round(
    body: Body,
    given: MaskedRounds,
    carried: Sequence[CarriedPart],
) -> _Round:
    """Makes the block of a round."""
    room = body.room
    flag = jax.ShapeDtypeStruct((), np.bool_)
    block = Block(body.block)
    inside = [Rows(part.before.aval, part.before.room) for part in carried]
    going = Rows(flag, given.goes.room)
    block.give([*inside, going])
    each = Body(
        body.low,
        block,
        body.low.room(
            room.frame,
            room.space,
            going,
            False,
            given.runs_empty,
        ),
    )
    carry = [part.value(rows) for part, rows in zip(carried, inside, strict=True)]
    # a part that counts rounds is the same for all rows, and so is what is read by it
    counted = [Rows(given.types[place], None) for place in given.counters]
    block.give(counted)
    for place, rows in zip(given.counters, counted, strict=True):
        carry[place] = View(rows, room.space)
    if given.by_number is not None:
        carry += given.by_number.given_to(block, room.space)
    results = each.guarded(
        each.room,
        lambda there: given.turn(there, carry),
    )
    after = []
    for part, value, old in zip(carried, results, inside, strict=False):
        after.append(part.after(each, value, old))
    answers = [each.rows(answer, flag) for answer in results[len(carried) :]]
    return _Round(block, inside, going, counted, after, answers)


def _report_metrics(
    body: Body,
    block: Block,
    call: Call,
) -> list[tuple[Rows, Rows]]:
    """Metrics that rounds tell, and their sums over all rounds."""
    found: list[tuple[Rows, Rows]] = []
    for report in block.reports:
        if not report.is_metric:
            fix = "Carry it, and tell it after the loop."
            raise GraphError(
                call.line,
                "metrics alone in the rounds of a `while_loop`",
                f"the output `{report.name}`",
                fix,
            )
        views = []
        for view in report.values:
            total = Rows(view.rows.aval, view.rows.room)
            found.append((view.rows, total))
            views.append(View(total, view.space))
        body.block.reports.append(replace(report, values=views))
    return found
