"""Loops in which each row waits for some others: trees and recursions. All rows have one array, which each level reads and writes."""

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
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    Room,
    Rows,
    Run,
    Slot,
    View,
    along,
    as_typed,
    taken,
)
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.batches.row_tables import Frame, RowTables
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Elements
from ampjax.frontend.loops.level_passes import count_levels, list_levels
from ampjax.frontend.loops.table_passes import wide

Levels = Callable[[Any], np.ndarray]
"""From the data to `[rows of a space]`: the level at which each row is computed; below 0 where it is not."""


def waiting_loop(
    inner: Body,
    levels: Levels,
    start: Sequence[tuple[Value, Any]],
    step: Callable[[Body, list[Value]], list[Value]],
    call: Call,
) -> list[Value]:
    """Adds a loop over levels.

    Args:
      inner: The rows that wait for one another.
      levels: Their levels.
      start: What their results are before the loop, and of which types.
      step: Adds a level's steps: from where and the results so far, of all rows, to the results of the level's.
      call: The combinator.

    Returns:
      The results of all rows.
    """
    low = inner.low
    space = inner.space
    outer = inner.room
    mask = inner.room.mask
    frame = _frame(inner.room.frame, space, levels)
    own = lambda data: np.arange(space.n_rows(data))

    def level(
        block: Block,
        inside: Sequence[Rows],
    ) -> tuple[list[Rows], list[Any]]:
        plain = low.room(frame, space)
        place = low.reads(outer.place, plain.place, own, "own")
        room = plain
        if mask is not None:
            counts = Rows(jax.ShapeDtypeStruct((), np.bool_), plain)
            given = mask
            block.add(
                [counts],
                lambda run: [run.slots[plain.there] & taken(run.get(given), run.slots[place])],
            )
            room = low.room(frame, space, counts, outer.is_known)
        each = Body(low, block, room)
        results = each.guarded(
            room,
            lambda there: step(there, [View(rows, space) for rows in inside]),
        )
        after = []
        for value, old in zip(results, inside, strict=True):
            _require_array(value, call)
            after.append(
                _written(
                    block,
                    each.rows(value, old.aval),
                    old,
                    plain,
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


def _require_array(value: Value, call: Call) -> None:
    if isinstance(value, Elements):
        fix = "Let it be of a fixed shape: a sum, or one element."
        raise GraphError(
            call.line,
            f"arrays as what `amp.{call.kind}` computes for each element",
            "a sequence",
            fix,
        )


def _written(
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
        there = jnp.where(
            run.slots[room.there],
            run.slots[place],
            len(every),
        )
        return [every.at[there].set(as_typed(run.get(new), old.aval), mode="drop")]

    block.add([out], compute)
    return out


def _frame(outer: Frame, space: IndexSpace, levels: Levels) -> Frame:
    """The frame of a loop whose rows are computed level by level."""

    def rows_of_levels(tables: RowTables) -> np.ndarray:
        rows = tables.rows(outer, space)
        groups = wide(rows).reshape(
            math.prod(rows.shape[:-1]),
            rows.shape[-1],
        )
        level = wide(levels(tables.data))
        own = groups[groups >= 0]
        n_levels = tables.rounded(
            (outer, space, levels, "levels"),
            int(level[own].max(initial=-1)) + 1,
        )
        shape = (len(groups), n_levels)
        width = tables.rounded(
            (outer, space, levels, "rows"),
            count_levels(groups, level, np.zeros(shape, np.int64)),
        )
        found = np.full((*shape, width), -1)
        list_levels(groups, level, np.zeros(shape, np.int64), found)
        return found.reshape(*rows.shape[:-1], n_levels, width)

    return Frame(outer, space, rows_of_levels)


def zeros_of(kind: Any) -> Any:
    """Zeros of a type."""
    return np.zeros(kind.shape, kind.dtype)


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
        return [jnp.where(along(which, one), one, other)]

    body.block.add([out], compute)
    return View(out, body.space)
