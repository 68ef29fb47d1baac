"""Loops in which each row waits for some others: trees and recursions. All rows have one array, which each step reads and writes.

All steps have equally many rows. On CPUs a level that is wider than others takes several steps, so that narrow levels compute few copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batch_rules.carried_parts import carried_part
from ampjax.frontend.batch_rules.level_loops import loop
from ampjax.frontend.batch_rules.step_loops import cost_of_start
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    Room,
    Rows,
    Run,
    Slot,
    View,
    as_typed,
    taken,
    zeros,
)
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.batches.row_tables import Frame, RowTables
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Elements
from ampjax.frontend.loops.changed_rows import set_rows
from ampjax.frontend.loops.level_passes import count_levels, list_steps
from ampjax.frontend.loops.loop_forms import form_of_loops
from ampjax.frontend.loops.masked_rows import rows_where
from ampjax.frontend.loops.table_passes import wide

Levels = Callable[[Any], np.ndarray]
"""From the data to `[rows of a space]`: the level at which each row is computed; below 0 where it is not."""

INNER_WORK = 2
"""A row of these loops takes so many times the work that its own operations tell: most have a sequence, such as a node's children."""


def waiting_loop(
    inner: Body,
    levels: Levels,
    start: Sequence[tuple[Value, Any]],
    step: Callable[[Body, list[Value]], list[Value]],
    call: Call,
    function: Traced,
) -> list[Value]:
    """Adds a loop over levels.

    Args:
      inner: The rows that wait for one another.
      levels: Their levels.
      start: What their results are before the loop, and of which types.
      step: Adds a level's steps: from where and the results so far, of all rows, to the results of the level's.
      call: The combinator.
      function: What is computed of a row.

    Returns:
      The results of all rows.
    """
    space = inner.space
    start_cost = math.inf
    if form_of_loops() == "steps":
        start_cost = cost_of_start(function) / INNER_WORK
    frame = _frame(inner.room.frame, space, levels, start_cost)
    frame.repeats_last = inner.room.mask is None
    own = lambda data: np.arange(space.n_rows(data))

    def level(
        block: Block,
        inside: Sequence[Rows],
    ) -> tuple[list[Rows], list[Any]]:
        room = inner.low.room(frame, space)
        place = inner.low.reads(inner.room.place, room.place, own, "own")
        states = [View(rows, space) for rows in inside]
        each, results = _results_of_level(inner, block, room, place, states, step)
        after = []
        for value, old in zip(results, inside, strict=True):
            _require_array(value, call)
            after.append(
                _write_level(
                    block,
                    each.rows(value, old.aval),
                    old,
                    room,
                    place,
                )
            )
        return after, []

    carried = []
    for value, kind in start:
        _require_array(value, call)
        carried.append(carried_part(inner, value, kind, call.line))
    last, _ = loop(inner, frame, carried, level)
    return [Elements(space, value) for value in last]


def _results_of_level(
    inner: Body,
    block: Block,
    room: Room,
    place: Slot,
    states: list[Value],
    step: Callable[[Body, list[Value]], list[Value]],
) -> tuple[Body, list[Value]]:
    """Adds the computation of a level's rows, without rows that a mask leaves out.

    Args:
      inner: The rows that wait for one another.
      block: The block of a step.
      room: The level's rows.
      place: The number of each among all rows.
      states: The results so far, of all rows.
      step: As `waiting_loop` gets it.

    Returns:
      Where the results are computed, and the results.
    """
    mask = inner.room.mask
    if mask is None:
        each = Body(inner.low, block, room, is_sure=True)
        return each, step(each, states)
    counts = Rows(jax.ShapeDtypeStruct((), np.bool_), room)
    block.add(
        [counts],
        lambda run: [run.slots[room.there] & taken(run.get(mask), run.slots[place])],
    )
    counting = inner.low.room(room.frame, room.space, counts, inner.room.is_known)
    each = Body(inner.low, block, counting)
    return each, each.guarded(
        counting,
        lambda there: step(there, states),
    )


def _require_array(value: Value, call: Call) -> None:
    if isinstance(value, Elements):
        fix = "Let it be of a fixed shape: a sum, or one element."
        raise GraphError(
            call.line,
            f"arrays as what `amp.{call.kind}` computes for each element",
            "a sequence",
            fix,
        )


def _write_level(
    block: Block,
    new: Rows,
    old: Rows,
    room: Room,
    place: Slot,
) -> Rows:
    """All rows after a level: its own are new."""
    out = Rows(old.aval, old.room)

    def compute(run: Run) -> list[Any]:
        every = run.get(old)
        is_there = run.slots[room.there]
        # copies are dropped, each at a number of its own: where numbers may be equal, JAX's derivative compares all rows
        beyond = len(every) + jnp.arange(len(is_there))
        there = jnp.where(is_there, run.slots[place], beyond)
        return [set_rows(every, there, as_typed(run.get(new), old.aval))]

    block.add([out], compute)
    return out


def _frame(
    outer: Frame,
    space: IndexSpace,
    levels: Levels,
    start: float,
) -> Frame:
    """The frame of a loop whose rows are computed level by level.

    Args:
      outer: The frame around.
      space: The rows.
      levels: Their levels.
      start: What it costs to start a step, in rows that could be computed meanwhile.
    """

    def rows_of_steps(tables: RowTables) -> np.ndarray:
        rows = tables.rows(outer, space)
        groups = wide(rows).reshape(
            math.prod(rows.shape[:-1]),
            rows.shape[-1],
        )
        level = wide(levels(tables.data))
        own = groups[groups >= 0]
        n_levels = int(level[own].max(initial=-1)) + 1
        counts = np.zeros((len(groups), n_levels), np.int64)
        widest = count_levels(groups, level, counts)
        key = (outer, space, levels)
        # sizes decide how levels are cut, so all batches of a shape have the same steps
        n_steps, width = _steps(
            tables.rounded((*key, "levels"), n_levels),
            tables.rounded((*key, "rows"), widest),
            tables.rounded(
                (*key, "rows of all levels"),
                int(counts.sum(1).max(initial=0)),
            ),
            start,
        )
        n_each = -(-counts // max(width, 1))
        found = np.full((len(groups), n_steps, width), -1)
        list_steps(
            groups,
            level,
            n_each.cumsum(1) - n_each,
            np.zeros_like(counts),
            found,
        )
        return found.reshape(*rows.shape[:-1], n_steps, width)

    return Frame(outer, space, rows_of_steps)


def _steps(
    n_levels: int,
    widest: int,
    n_rows: int,
    start: float,
) -> tuple[int, int]:
    """Chooses the number of steps of a loop, and how many rows a step has, so that levels of any widths have room.

    Args:
      n_levels: The number of levels.
      widest: The rows of the widest level.
      n_rows: The rows of all levels.
      start: What it costs to start a step, in rows that could be computed meanwhile.

    >>> _steps(4, 600, 700, 10.0), _steps(4, 600, 700, math.inf), _steps(100, 64, 6400, 10.0)
    ((14, 64), (4, 600), (100, 64))
    """
    least = n_levels * (widest + start)
    best = n_levels, widest
    if math.isinf(start):
        return best
    width = 8
    while width < widest:
        # each level may have one step that is not full
        n_steps = n_levels + n_rows // width
        if n_steps * (width + start) < least:
            least = n_steps * (width + start)
            best = n_steps, width
        width *= 2
    return best


def zeros_of(kind: Any) -> Any:
    """Zeros of a type, which may be one of keys."""
    with jax.ensure_compile_time_eval():
        return zeros((), kind)


def where(
    body: Body,
    flag: Value,
    first: Value,
    second: Value,
    kind: Any,
) -> View:
    """One of two values for each row.

    Args:
      body: The rows.
      flag: A truth value of each.
      first: The value where it holds.
      second: The other one.
      kind: Their type.
    """
    mask = body.rows(flag, jax.ShapeDtypeStruct((), np.bool_))
    values = [body.rows(value, kind) for value in (first, second)]
    out = Rows(kind, body.room)

    def compute(run: Run) -> list[Any]:
        one, other = (as_typed(run.get(rows), kind) for rows in values)
        which = run.get(mask)
        return [rows_where(which, one, other)]

    body.block.add([out], compute)
    return View(out, body.space)
