"""Rules that turn combinators over sequences into steps: rows of an inner space, loops over levels, reads by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.carried_parts import carried_part
from ampjax.frontend.batch_rules.graph_rounds import graph_rounds, is_in_rounds
from ampjax.frontend.batch_rules.known_carries import KnownCarry
from ampjax.frontend.batch_rules.level_loops import as_column, loop, of_all_levels, side_by_side
from ampjax.frontend.batch_rules.loop_parts import (
    KnownPart,
    early_part,
    known_part,
    numbered_part,
    part_behind,
    reads_by_number,
    with_early_products,
)
from ampjax.frontend.batch_rules.step_loops import cost_of_start, in_steps, step_loop
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    ReadsByNumber,
    Room,
    Rows,
    Run,
    View,
    filled_up,
    taken,
)
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import STEP_RULES, Loop, Recall, Value
from ampjax.frontend.batches.step_frames import Before, StepFrame
from ampjax.frontend.blocks.block_maps import block_map
from ampjax.frontend.combinators.sequences import COUNT, LENGTH, NUMBERS, SCAN, TAKE
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.draft.index_spaces import IndexSpace, NumberColumn
from ampjax.frontend.draft.row_origins import last_row, row_before
from ampjax.frontend.draft.values import Constant, Elements, Static, Wanted
from ampjax.frontend.rules import sequence_rules, take_rules


@STEP_RULES.of(SCAN)
def scan(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Without a carry rows of the elements' space; with one, a loop in which all sequences go on in step."""
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    step = with_early_products(step, step.jaxpr.invars[:k])
    call = replace(call, functions=(step,))
    xs = sequences(body, operands[n_closed + k :])
    closed = operands[:n_closed]
    init = operands[n_closed : n_closed + k]
    space = sequence_rules.elements_space(xs, call.line)
    rows: list[Value] = [x.element for x in xs]
    types = [variable.aval for variable in step.jaxpr.outvars]
    if not k:
        return of_elements(body, space, step, closed, rows)
    known = known_part(step, k)
    if known is not None:
        return _with_known_carry(body, call, operands, known, space)
    # matrices that an element's number chooses are read once for all rows: one for each row costs more than what steps would save
    numbers = _numbers_of_rounds(call, space, rows)
    split = numbered_part(step, numbers, closed)
    if split is not None and any(each.ndim > 1 for each in split.first.jaxpr.out_avals):
        by_number = reads_by_number(body, split, closed)
        second = replace(call, functions=(split.second,))
        return _by_level(body, second, space, closed, init, rows, by_number)
    if in_steps(
        body,
        step,
        [*closed, *init, *rows],
        types[:k],
    ):
        return _in_steps(body, call, operands, space, rows)
    if is_in_rounds(body, call, init, rows):
        return graph_rounds(body, call, operands, space)
    # what no round waits for is computed before the loop, and what no round reads behind it
    before = early_part(step, k)
    if before is not None:
        given = of_elements(body, space, before.first, closed, rows)
        second = replace(call, functions=(before.second,))
        return scan(body, second, [*operands, *given])
    parts = part_behind(step, k)
    if parts is not None:
        first = replace(call, functions=(parts.first,))
        found = scan(body, first, operands)
        between = [each.element for each in found[k:]]
        second = of_elements(body, space, parts.second, closed, [*between, *rows])
        return [*found[:k], *second]
    return _by_level(body, call, space, closed, init, rows)


def _with_known_carry(
    body: Body,
    call: Call,
    operands: Sequence[Value],
    known: KnownPart,
    space: IndexSpace,
) -> list[Value]:
    """A loop of whose carry parts follow from the elements.

    Args:
      body: Where the loop is.
      call: The loop.
      operands: What it closes over, the carry at the beginning, and sequences.
      known: These parts.
      space: The space of the elements.
    """
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    closed = operands[:n_closed]
    init = operands[n_closed : n_closed + k]
    xs = operands[n_closed + k :]
    rows = [x.element for x in sequences(body, xs)]
    types = [variable.aval for variable in known.function.jaxpr.outvars]
    after = of_elements(body, space, known.function, closed, rows)
    reverse = call.options["reverse"]
    parts = {}
    for place, each, kind in zip(known.places, after, types, strict=True):
        parts[place] = KnownCarry(space, reverse, init[place], each.element, kind)
    # the loop of the rest: the parts' values before each element are sequences as others are
    inside = body.inside(space)
    before = [Elements(space, part.before_each(inside)) for part in parts.values()]
    carried = [value for place, value in enumerate(init) if place not in parts]
    rest = replace(
        call,
        functions=(known.rest,),
        options={**call.options, "n_carry": len(carried)},
    )
    found = iter(
        scan(
            body,
            rest,
            [*closed, *carried, *xs, *before],
        )
    )
    last = []
    for place in range(k):
        last.append(parts[place].at_end(body) if place in parts else next(found))
    return [*last, *found]


def _numbers_of_rounds(
    call: Call,
    space: IndexSpace,
    rows: Sequence[Value],
) -> list[Any]:
    """Finds the elements' numbers among a loop's variables: if the loop begins with the first element, all rows of a round have the same.

    Args:
      call: The loop.
      space: The space of the elements.
      rows: What each round is given of the sequences.
    """
    if call.options["reverse"]:
        return []
    (step,) = call.functions
    found = []
    for variable, value in zip(
        step.jaxpr.invars[call.options["n_carry"] :],
        rows,
        strict=True,
    ):
        column = value.column if isinstance(value, Static) else None
        if isinstance(column, NumberColumn) and column.space is space.known:
            found.append(variable)
    return found


def _by_level(
    body: Body,
    call: Call,
    space: IndexSpace,
    closed: Sequence[Value],
    init: Sequence[Value],
    rows: Sequence[Value],
    by_number: ReadsByNumber | None = None,
) -> list[Value]:
    """A loop in levels: in each, all sequences with elements left compute a round.

    Args:
      body: Where the loop is.
      call: The loop.
      space: The space of the elements.
      closed: What the loop's function closes over.
      init: The carry at the beginning.
      rows: What each round is given of the sequences.
      by_number: What a round reads by its number.
    """
    (step,) = call.functions
    k = len(init)
    types = [variable.aval for variable in step.jaxpr.outvars]
    carried = []
    for value, kind in zip(init, types, strict=False):
        carried.append(carried_part(body, value, kind, call.line))
    has_sequence = any(part.is_sequence for part in carried)
    frame = side_by_side(body, space, call.options["reverse"], has_sequence)
    low = body.low

    def level(block: Block, inside: Sequence[Rows]) -> Any:
        # the rows that have a round on this level; the others are there, too, and are masked
        mask = _there(body, block, low.room(frame, space))
        made = low.loops[frame]
        if body.room.mask is None:
            made.counts = mask
        read: Sequence[Value] = ()
        if by_number is not None:
            made.by_number = by_number
            read = by_number.given_to(block, space)
        around = Body(low, block, body.room)
        each = around.at(low.room(frame, space, mask, body.room.is_known))
        # a round of the loop's function
        carry = [part.value(x) for part, x in zip(carried, inside, strict=True)]

        def turn(there: Body) -> list[Value]:
            results = there.run(step, [*closed, *carry, *rows, *read])
            return [*results, *(View(x, space) for _, x in made.held)]

        results = each.guarded(each.room, turn, lambda: not made.held)
        # the carry behind it; masked rows keep the carry that they had
        after = []
        for part, old, value in zip(carried, inside, results, strict=False):
            after.append(part.after(each, value, old))
        given = []
        for value, kind in zip(results[k:], types[k:], strict=False):
            given.append((each.room, value, kind))
        return after, given

    last, ys = loop(
        body,
        frame,
        carried,
        level,
    )
    return [*last, *(Elements(space, y) for y in ys)]


def _there(
    body: Body,
    block: Block,
    level: Room,
) -> Rows:
    """Adds the mask of the rows of a level that are there, and around which the loop is computed."""
    mask = Rows(jax.ShapeDtypeStruct((), np.bool_), level)
    outer = body.room.mask

    def counts(run: Run) -> list[Any]:
        own = jnp.asarray(run.slots[level.there])
        return [own if outer is None else own & run.get(outer)]

    block.add([mask], counts)
    return mask


def of_elements(
    body: Body,
    space: IndexSpace,
    function: Traced,
    closed: Sequence[Value],
    rows: Sequence[Value],
    of_whole: bool = False,
) -> list[Value]:
    """Computes a function of each element, in a block of pairs where the elements lie in one.

    Args:
      body: Where.
      space: The elements' space.
      function: The function.
      closed: What its first variables are, which are the same for all elements around.
      rows: What the others are, in the space of the elements.
      of_whole: Whether it is an operation on whole sequences.
    """
    blocks = block_map(body, space, function, closed, rows, of_whole)
    if blocks is not None:
        return blocks
    return [*map_elements(body, space, function, [*closed, *rows])]


def _in_steps(
    body: Body,
    call: Call,
    operands: Sequence[Value],
    space: IndexSpace,
    rows: Sequence[Value],
) -> list[Value]:
    """Builds a loop through sequences in which each element waits for its neighbour before or behind; the longest sequences come first."""
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    reverse = call.options["reverse"]
    closed = operands[:n_closed]
    types = [variable.aval for variable in step.jaxpr.outvars]
    before = []
    for value, kind in zip(operands[n_closed : n_closed + k], types, strict=False):
        before.append(body.rows(value, kind))

    def lengths(data: Any) -> np.ndarray:
        return space.lengths(data)[space.parents(data)]

    def level(data: Any) -> np.ndarray:
        number = space.numbers(data)
        return lengths(data) - 1 - number if reverse else number

    frame = StepFrame(
        body.room.frame,
        space,
        level,
        lambda data: -lengths(data),
        Before(
            body.room.place,
            lambda data: np.full(space.n_rows(data), -1),
        ),
        cost_of_start(step),
    )
    ys: list[Value] = []

    def build(inside: Body, loop: Loop) -> tuple[list[Rows], list[Rows], list[Rows]]:
        carried = {}
        for number, kind in enumerate(types[:k]):
            carried[number] = Rows(kind, inside.room)
        loop.recalls["carry"] = Recall(
            row_before(space, reverse),
            space.parents,
            carried,
        )
        loop.block.give([*carried.values()])
        carry = [View(x, space) for x in carried.values()]
        results = inside.run(step, [*closed, *carry, *rows])
        outputs: list[Rows] = []
        seen: list[Rows] = []
        for value, kind in zip(results[k:], types[k:], strict=True):
            ys.append(Elements(space, of_all_levels(inside, value, kind, outputs, seen)))
        new = []
        for value, kind in zip(results, types[:k], strict=False):
            new.append(inside.rows(value, kind))
        return new, outputs, seen

    own = lambda data: np.arange(body.space.n_rows(data))
    found = step_loop(
        body,
        frame,
        space,
        types[:k],
        before,
        build,
        (body.bare(), last_row(space, reverse), own),
    )
    return [*found, *ys]


def map_elements(
    body: Body,
    space: IndexSpace,
    function: Traced,
    values: Sequence[Value],
) -> list[Elements]:
    """Computes a function for each element of a space, and returns the results as sequences.

    Args:
      body: Where.
      space: The space.
      function: The function.
      values: What its variables are, in that space.
    """
    inner = body.inside(space)
    results = body.guarded(
        inner.room,
        lambda inside: inside.run(function, values),
    )
    found = []
    for value, variable in zip(
        results,
        function.jaxpr.outvars,
        strict=True,
    ):
        found.append(
            Elements(
                space,
                of_each(inner, value, variable.aval),
            )
        )
    return found


def of_each(inner: Body, value: Value, kind: Any) -> Value:
    """Returns a function's result for each element: rows, a column, or a sequence."""
    if isinstance(value, Constant):
        return as_column(inner, value, kind)
    if isinstance(value, View) and value.rows.room is None:
        return View(inner.rows(value, kind), inner.space)
    return value


def sequences(body: Body, values: Sequence[Value]) -> list[Value]:
    """Returns sequences as sequences of a room's space."""
    result = []
    for x in values:
        result.append(
            body.low.copied(
                x,
                body.space,
            )
            if isinstance(x, Elements)
            else x
        )
    return result


@STEP_RULES.of(COUNT)
def count(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """The numbers of so many elements: a space of its own."""
    return sequence_rules.count(
        body.low.host,
        call,
        operands,
        body.region,
        Wanted({0}),
    )


@STEP_RULES.of(NUMBERS)
def numbers(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """The numbers of the elements of a sequence, in the space of its elements."""
    return sequence_rules.numbers(
        body.low.host,
        call,
        sequences(body, operands),
        body.region,
        Wanted({0}),
    )


@STEP_RULES.of(LENGTH)
def length(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """Returns the number of elements of each row, known from the example."""
    return sequence_rules.length(
        body.low.host,
        call,
        sequences(body, operands),
        body.region,
        Wanted({0}),
    )


@STEP_RULES.of(TAKE)
def take(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """One element of each sequence: read by its row's number, which the host knows; or by one that is computed."""
    at, *given = operands
    xs = sequences(body, given)
    space = sequence_rules.elements_space(xs, call.line)
    if not is_static(at):
        result = []
        for x, kind in zip(xs, call.results, strict=True):
            result.append(_take_by_value(body, at, x, kind, call.line))
        return result
    low = body.low
    region = body.region
    place = low.host.column(
        at,
        region,
        jax.ShapeDtypeStruct((), np.int64),
    )

    def number(data: Any) -> np.ndarray:
        own = place.of(data).astype(np.int64)
        n = space.lengths(data)
        return np.where(own < 0, own + n, own)

    if region.is_known:
        low.host.draft.checks.append(
            lambda data: take_rules.check_taken(data, region, space, number, call.line)
        )

    def origin(data: Any) -> np.ndarray:
        own = number(data)
        is_there = (own >= 0) & (own < space.lengths(data))
        return np.where(is_there, space.starts(data) + own, -1)

    way = ("take", at)
    results = []
    for x in xs:
        if isinstance(x, Elements):
            results.append(low.value_at(x.element, space, body.space, origin, way))
    return results


def _take_by_value(
    body: Body,
    at: Value,
    xs: Value,
    kind: Any,
    line: str,
) -> Value:
    """An element whose number is computed."""
    assert isinstance(xs, Elements)
    space = xs.space
    if isinstance(xs.element, Elements):
        fix = "Take it by a number that follows from the example, or take from each inner sequence in a `map`."
        raise GraphError(
            line, "an element of a sequence of arrays", "one of a sequence of sequences", fix
        )
    values, starts = body.rows_and_starts(body, xs, kind)
    number = body.rows(at, jax.ShapeDtypeStruct((), np.int32))
    n = body.lengths(space)
    room = body.bare()
    out = Rows(kind, room)

    def compute(run: Run) -> list[Any]:
        own = run.get(number)
        size = run.get(n)
        first = starts(run)
        place = jnp.clip(
            jnp.where(own < 0, own + size, own),
            0,
            jnp.maximum(size - 1, 0),
        )
        every = run.get(values)
        found = taken(
            every,
            jnp.clip(first + place, 0, max(len(every) - 1, 0)),
        )
        return [filled_up(run, room, found)]

    body.block.add([out], compute)
    return View(out, body.space)
