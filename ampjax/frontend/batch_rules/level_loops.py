"""Loops whose levels the host knows: all rows that wait for equally many others are computed together, level after level, by `jax.lax.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.carried_parts import CarriedPart
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    ReadsByNumber,
    Room,
    Rows,
    Run,
    Slot,
    View,
    as_typed,
    filled_rows,
    taken,
    zeros,
)
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Loop, RowLowering, Value
from ampjax.frontend.batches.row_tables import Frame, RowTables
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.long_axes import element_type
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
        results.append(
            of_all_levels(
                Body(low, made.block, room),
                value,
                kind,
                outputs,
                seen,
            )
        )
    n_results = len(outputs)
    for report in made.block.reports:
        body.block.reports.append(
            replace(
                report,
                values=[_rows_after_loop(view, outputs, seen) for view in report.values],
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
        n_results,
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
    return _rows_after_loop(
        View(body.rows(value, kind), body.space),
        outputs,
        seen,
    )


def _rows_after_loop(
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


@dataclass(frozen=True)
class _Reads:
    """The reads of values around a loop, in its levels.

    Args:
      tables: The arrays of the batch that each level has a part of.
      early: What is read before the loop, as it is called in a level.
      late: What each level reads: as it is called there, where it is, and the array of its rows' numbers.
      by_number: What each level reads by its number, if not before the loop.
      given: What each level gets a part of: the tables, what is read before, and the numbers.
    """

    tables: Sequence[Slot]
    early: Sequence[Rows]
    late: Sequence[tuple[Rows, Rows, Slot]]
    by_number: ReadsByNumber | None
    given: tuple[Sequence[Any], Sequence[Any], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class _LevelLoop:
    """A loop over levels, at run time.

    Blocks of pairs are in its body whole, as `jax.lax.cond` would keep a copy of what they read for each level. So a level in which no row counts,
    as the sizes of the ladder have some, repeats the last one that has some, from the same carry.
    """

    low: RowLowering
    made: Loop
    there: Slot
    carried: tuple[Sequence[Rows], Sequence[Rows], Sequence[Rows], Sequence[Rows]]
    given: tuple[Sequence[Rows], Sequence[Rows]]
    n_results: int

    def __call__(self, run: Run) -> list[Any]:
        before, *_ = self.carried
        _, seen = self.given
        start = [run.get(rows) for rows in before]
        there = run.slots[self.there]
        none = [*start, *(run.zeros(rows) for rows in seen)]
        if 0 in there.shape:
            return none
        if self.made.held:
            every = lambda: self._run_levels(run, start)
        elif self.made.frame.repeats_last:
            every = lambda: self._all_levels(run, start, self._reads(run, self._repeats(run)))
        else:
            return self._all_levels(run, start, self._reads(run))
        return jax.lax.cond(
            jnp.any(there),
            every,
            lambda: none,
        )

    def _tables(self, run: Run, numbers: Any) -> dict[Slot, Any]:
        """The arrays of the batch that each level has its own part of.

        Args:
          run: The run of the block around.
          numbers: `[levels]`: which level is computed at each; None if it is each one itself.
        """
        frame = self.made.frame
        tables = {}
        for slot in self.low.slots:
            if frame in slot.frame.around():
                table = run.slots[slot]
                tables[slot] = table if numbers is None else table[numbers]
        return tables

    def _repeats(self, run: Run) -> Any:
        """The numbers of levels, for levels without rows the number of the last one with rows."""
        is_new = jnp.any(run.slots[self.there], -1)
        return jnp.minimum(
            jnp.arange(len(is_new)),
            jnp.sum(is_new) - 1,
        )

    def _all_levels(
        self,
        run: Run,
        start: Sequence[Any],
        reads: _Reads,
    ) -> list[Any]:
        """Goes through all levels."""
        *_, after, _ = self.carried
        outputs, _ = self.given

        def level(carry: Any, given: Any) -> tuple[Any, Any]:
            each = self._level(run, carry, reads, given)
            self.made.block.run(each)
            return [each.get(x) for x in after], [each.get(x) for x in outputs]

        last, stacked = jax.lax.scan(level, start, reads.given)
        return self._collect_results(run, last, stacked)

    def _run_levels(self, run: Run, start: Sequence[Any]) -> list[Any]:
        """Runs all levels; a level without a row that counts repeats the last level that had one."""
        *_, after, _ = self.carried
        outputs, _ = self.given
        held = self.made.held
        there = run.slots[self.there]
        is_new = jnp.any(there, -1)
        reads = self._reads(run, self._repeats(run))

        def level(carry: Any, given: Any) -> tuple[Any, Any]:
            values, before, kept = carry
            is_new, given = given
            # the carry that a repeated level starts from is that of the level that it repeats
            values = [jnp.where(is_new, x, y) for x, y in zip(values, before, strict=True)]
            each = self._level(run, values, reads, given)
            each.put([x for x, _ in held], kept)
            self.made.block.run(each)
            found = [each.get(x) for x in outputs]
            # what has been told is not told again
            for i in range(self.n_results, len(found)):
                none = zeros(found[i].shape[:1], outputs[i].aval)
                found[i] = jnp.where(is_new, found[i], none)
            kept = [each.get(x) for _, x in held]
            return ([each.get(x) for x in after], values, kept), found

        n_rows = there.shape[1:]
        kept = [zeros(n_rows, x.aval) for x, _ in held]
        (last, *_), stacked = jax.lax.scan(
            level,
            ([*start], [*start], kept),
            (is_new, reads.given),
        )
        return self._collect_results(run, last, stacked)

    def _reads(self, run: Run, numbers: Any = None) -> _Reads:
        """Reads values of the batch before the loop, where one read for all levels is best.

        Args:
          run: The run of the block around.
          numbers: As `_tables` gets them.
        """
        tables = self._tables(run, numbers)
        early = []
        late = []
        values = []
        by_number = self.made.by_number
        own_numbers = []
        if by_number is not None:
            n_levels = len(run.slots[self.there])
            own = jnp.arange(n_levels) if numbers is None else numbers
            for rows in by_number.numbers:
                own_numbers.append(own.astype(rows.aval.dtype))
            if n_levels <= by_number.most_rounds:
                early += by_number.inside
                values += by_number.of_rounds(run, own_numbers)
                by_number = None
                own_numbers = []
        for each in self.made.reads:
            out, source, slot, _ = each
            if _is_read_once(run, each):
                early.append(out)
                values.append(taken(run.get(source), tables[slot]))
            else:
                late.append((out, source, slot))
        return _Reads(
            [*tables],
            early,
            late,
            by_number,
            ([*tables.values()], values, own_numbers),
        )

    def _level(
        self,
        run: Run,
        carry: Sequence[Any],
        reads: _Reads,
        given: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    ) -> Run:
        """Prepares the run of a level."""
        tables, values, numbers = given
        _, inside, *_ = self.carried
        each = run.inner(dict(zip(reads.tables, tables, strict=True)))
        each.put(inside, carry)
        each.put(reads.early, values)
        for out, source, slot in reads.late:
            each.put(
                [out],
                [taken(run.get(source), each.slots[slot])],
            )
        if reads.by_number is not None:
            each.put(
                reads.by_number.inside,
                reads.by_number.of_round(run, numbers),
            )
        return each

    def _collect_results(
        self,
        run: Run,
        last: Sequence[Any],
        stacked: Sequence[Any],
    ) -> list[Any]:
        """Collects the loop's last carry, and the values of all levels one after the other."""
        _, seen = self.given
        ended = self.carried[3]
        result = filled_rows(run, ended, last)
        for rows, values in zip(seen, stacked, strict=True):
            every = values.reshape(-1, *values.shape[2:])
            result.append(as_typed(every, rows.aval))
        return result


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
        if inner.parent is space:
            return low.copy_space(low.original(inner), around)
        # what each element of the loop has lies nowhere around the loop, though the loop may carry a sequence of the same elements
        if low.original(inner).parent not in around.around():
            return None
        # of a matrix of pairs the pairs, which lie beside those around if its rows do
        outer = None if inner.parent is None else copied(inner.parent)
        return None if outer is None else low.copy_space(low.original(inner), outer)

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
