"""Loops whose levels the host knows: all rows that wait for equally many others are computed together, level after level, by `jax.lax.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ampjax.frontend.batch_rules.carried_parts import CarriedPart
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    Room,
    Rows,
    Run,
    Slot,
    View,
    filled_rows,
    taken,
)
from ampjax.frontend.batches.room_bodies import Body, element_type
from ampjax.frontend.batches.row_lowering import Loop, RowLowering, Value
from ampjax.frontend.batches.row_tables import Frame, RowTables
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.loops.traced_rows import is_read_early


def loop(
    body: Body,
    frame: Frame,
    carry: Sequence[CarriedPart],
    step: Callable[[Block, Sequence[Rows]], tuple[list[Rows], list[tuple[Room, Value, Any]]]],
) -> tuple[list[Value], list[Value]]:
    """Adds a loop over the levels of a frame.

    Args:
      body: Where.
      frame: The frame.
      carry: What it takes from level to level.
      step: Adds the steps of a level to a block: from what is carried to what that is after the level, and to what each level gives: its room,
        the value and its type.

    Returns:
      What is carried out, and for what each level gives, all levels' values.
    """
    low = body.low
    made = low.loops[frame] = Loop(frame)
    made.block.outer = body.block
    before = [part.before for part in carry]
    inside = [Rows(rows.aval, rows.room) for rows in before]
    made.block.give(inside)
    after, given = step(made.block, inside)
    outputs: list[Rows] = []
    seen: list[Rows] = []
    results: list[Value] = []
    for room, value, kind in given:
        results.append(of_all_levels(Body(low, made.block, room), value, kind, outputs, seen))
    for report in made.block.reports:
        body.block.reports.append(
            replace(
                report,
                values=[_seen(view, outputs, seen) for view in report.values],
            )
        )
    last = [part.last() for part in carry]
    assert frame.space is not None
    there = low.room(frame, frame.space).there
    run = _LevelLoop(
        low,
        made,
        there,
        (before, inside, after, last),
        (outputs, seen),
    )
    body.block.add([*last, *seen], run)
    found = [part.value(rows) for part, rows in zip(carry, last, strict=True)]
    return found, results


def of_all_levels(
    body: Body,
    value: Value,
    kind: Any,
    outputs: list[Rows],
    seen: list[Rows],
) -> Value:
    """Returns a level's value as seen after the loop: rows of all levels.

    Args:
      body: The level.
      value: The value.
      kind: Its type.
      outputs: The level's arrays that are seen; those of the value are added.
      seen: What these are called after the loop; likewise.
    """
    if isinstance(value, Static | Constant):
        return as_column(body, value, kind)
    if isinstance(value, Elements):
        inner = body.inside(value.space)
        element = of_all_levels(inner, value.element, element_type(kind), outputs, seen)
        return Elements(value.space, element)
    return _seen(
        View(body.rows(value, kind), body.space),
        outputs,
        seen,
    )


def _seen(
    view: View,
    outputs: list[Rows],
    seen: list[Rows],
) -> View:
    """Makes the rows that stand for a level's rows after the loop."""
    out = Rows(view.rows.aval, view.rows.room)
    outputs.append(view.rows)
    seen.append(out)
    return View(out, view.space)


def as_column(body: Body, value: Value, kind: Any) -> Static:
    """A static value, or a constant, as a column of a room's space."""
    return Static(body.low.host.column(value, body.region, kind))


@dataclass(frozen=True, eq=False)
class _LevelLoop:
    """A loop over levels, at run time."""

    low: RowLowering
    made: Loop
    there: Slot
    carried: tuple[Sequence[Rows], Sequence[Rows], Sequence[Rows], Sequence[Rows]]
    given: tuple[Sequence[Rows], Sequence[Rows]]

    def __call__(self, run: Run) -> list[Any]:
        before, inside, after, ended = self.carried
        outputs, seen = self.given
        start = [run.get(rows) for rows in before]
        n_levels, *shape = run.slots[self.there].shape
        if not n_levels or 0 in shape:
            return [*start, *(run.zeros(rows) for rows in seen)]
        frame = self.made.frame
        tables = {}
        for slot in self.low.slots:
            if frame in slot.frame.around():
                tables[slot] = run.slots[slot]
        early = [read for read in self.made.reads if _is_read_once(run, read)]
        late = [read for read in self.made.reads if read not in early]
        rows = []
        for _, source, slot, _ in early:
            rows.append(taken(run.get(source), tables[slot]))

        def level(carry: Any, given: Any) -> tuple[Any, Any]:
            own, read = given
            each = run.inner(dict(zip(tables, own, strict=True)))
            each.put(inside, carry)
            each.put([out for out, *_ in early], read)
            each.put(
                [out for out, *_ in late],
                [taken(run.get(x), each.slots[slot]) for _, x, slot, _ in late],
            )
            self.made.block.run(each)
            return [each.get(x) for x in after], [each.get(x) for x in outputs]

        last, stacked = jax.lax.scan(
            level,
            start,
            ([*tables.values()], rows),
        )
        return [
            *filled_rows(run, ended, last),
            *(x.reshape(-1, *x.shape[2:]) for x in stacked),
        ]


def _is_read_once(
    run: Run,
    read: tuple[Rows, Rows, Slot, Slot | None],
) -> bool:
    """Says whether all levels together read about as many rows as there are, so that one read before the loop is best."""
    _, source, slot, _ = read
    return is_read_early(run.slots[slot].size, len(run.get(source)))


def side_by_side(
    body: Body,
    space: IndexSpace,
    reverse: bool,
    alongside: bool = False,
) -> Frame:
    """The frame of a loop through sequences, all in step: at each level, an element of each row's sequence that is long enough.

    Args:
      body: Where the loop is.
      space: The elements' space.
      reverse: Whether it goes from the last element to the first.
      alongside: Whether the elements of sequences from around, too, lie at each level where they lie around the loop: so nothing is read to carry
        a sequence.
    """
    frame = body.room.frame
    around = body.space
    low = body.low

    def copied(inner: IndexSpace) -> IndexSpace | None:
        if inner.parent is not space:
            return None
        return low.copy_space(low.original(inner), around)

    def levels(tables: RowTables) -> np.ndarray:
        rows = tables.rows(frame, around)
        data = tables.data
        sizes = np.zeros(rows.shape, np.int64)
        sizes[rows >= 0] = space.lengths(data)[rows[rows >= 0]]
        starts = np.zeros(rows.shape, np.int64)
        starts[rows >= 0] = space.starts(data)[rows[rows >= 0]]
        sizes = sizes[..., None, :]
        starts = starts[..., None, :]
        level = np.arange(
            tables.rounded(
                (space, around, frame, reverse),
                int(sizes.max(initial=0)),
            )
        )[:, None]
        number = sizes - 1 - level if reverse else level + np.zeros_like(sizes)
        return np.where(level < sizes, starts + number, -1)

    return Frame(frame, space, levels, around, copied if alongside else None)
