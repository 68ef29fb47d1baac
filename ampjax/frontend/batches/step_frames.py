"""The frame of a loop in steps, and the host's tables of the loop: places of rows, the states that rows read, and the readers of each state.

All states of the loop lie in one array, the *arena*: first those that are there before it, as the rows of a place around lie, then those that it
computes, in the order of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.frontend.batches.inverse_reads import inverse
from ampjax.frontend.batches.row_tables import Frame, Place, RowTables, by_batch
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.row_origins import Origin
from ampjax.frontend.loops.step_layouts import StepLayout, largest_count, lay_out, row_counts
from ampjax.frontend.loops.table_passes import find_states, list_rows_with_level, wide


@dataclass(frozen=True, eq=False)
class Before:
    """States that are there before a loop.

    Args:
      place: The rows that have them.
      row: From the data to the row of this place for each row of the loop's space; below 0 for none.
    """

    place: Place
    row: Origin


class StepFrame(Frame):
    """The frame of a loop in steps, in no other loop.

    Args:
      outer: The frame around.
      space: The space whose rows it computes.
      level: From the data to the level of each row; below 0 where it is not computed.
      order: From the data to a number for each row: rows of a level lie in this order.
      before: States that are there before it; None if there are none.
      start: What it costs to start a step, in rows that could be computed meanwhile.
    """

    is_in_steps = True

    def __init__(
        self,
        outer: Frame,
        space: IndexSpace,
        level: Callable[[Any], np.ndarray],
        order: Callable[[Any], np.ndarray],
        before: Before | None,
        start: float,
    ):
        super().__init__(outer, space, self._rows_in_order)
        self._own = space
        self._around = outer
        self._level = level
        self._order = order
        self._before = before
        self._start = start

    def layout(self, tables: RowTables) -> StepLayout:
        """Returns the places of the rows."""
        return tables.once(
            (self, "layout"),
            lambda: self._lay_out(tables),
        )

    def lanes(self, tables: RowTables) -> np.ndarray:
        """`[batches, largest row count]`: the numbers from 0."""
        self.layout(tables)
        n = tables.sizes[self, "lanes"]
        numbers = np.arange(n, dtype=np.int32)
        return np.broadcast_to(numbers, (tables.n_batches, n))

    def steps(self, tables: RowTables) -> np.ndarray:
        """`[batches, steps]`: where each step's rows begin."""
        layout = self.layout(tables)
        most = int(layout.n_steps.max())
        size = tables.rounded((self, "steps"), most)
        firsts = np.zeros((tables.n_batches, size), np.int32)
        firsts[:, :most] = layout.firsts[:, :most]
        return firsts

    def rounds(self, tables: RowTables) -> np.ndarray:
        """Counts rounds and steps, then tells where each row count's steps of a round begin and end, `[batches, 1 + rounds, row counts + 1]`."""
        layout = self.layout(tables)
        starts = layout.starts
        most = int(layout.n_rounds.max())
        size = tables.rounded((self, "rounds"), most)
        n_columns = max(starts.shape[2], 2)  # without a row count there are no rounds
        table = np.zeros(
            (tables.n_batches, 1 + size, n_columns),
            np.int32,
        )
        table[:, 0, 0] = layout.n_rounds
        table[:, 0, 1] = layout.n_steps
        table[:, 1 : 1 + most, : starts.shape[2]] = starts[:, :most]
        return table

    def positions(self, tables: RowTables) -> np.ndarray:
        """Finds the position of each row's state in its batch's arena, `[rows of the space]`; -1 for a row without a state."""

        def make() -> np.ndarray:
            n_before = self.n_before(tables)
            found = np.full(
                self._own.n_rows(tables.data),
                -1,
            )
            if self._before is not None:
                row = self._before.row(tables.data)
                lies = tables.lies(*self._before.place)
                own = row >= 0
                found[own] = lies[row[own]]
            lies = tables.lies(self, self._own)
            return np.where(lies >= 0, n_before + lies, found)

        return tables.once((self, "positions"), make)

    def n_before(self, tables: RowTables) -> int:
        """Counts the states before the loop in each batch, copies included."""
        if self._before is None:
            return 0
        return tables.rows(*self._before.place)[0].size

    def read(
        self, tables: RowTables, place: Place, awaited: Origin, at_start: Origin | None = None
    ) -> np.ndarray:
        """Finds the position in the arena of the state that each row of a place reads, `[..., rows]`; -1 for a row that reads none.

        Args:
          tables: The tables.
          place: The place.
          awaited: For each row of its space the row of the loop's space whose state it reads; below 0 for none.
          at_start: Where it reads none, the row whose state before the loop it reads.
        """
        rows = tables.filled(*place)
        own = awaited(tables.data)
        if not len(own):
            return np.full(rows.shape, -1)
        start = lies = np.zeros(0, np.int64)
        if at_start is not None and self._before is not None:
            start = wide(at_start(tables.data))
            lies = wide(tables.lies(*self._before.place))
        positions = np.empty(rows.shape, np.int64)
        places = wide(self.positions(tables))
        find_states(
            wide(rows).ravel(),
            wide(own),
            places,
            start,
            lies,
            positions.ravel(),
        )
        return positions

    def readers(
        self,
        tables: RowTables,
        reads: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Finds the positions of the cotangents of each state's readers, `[batches, states, most readers]`; no column if cotangents are to be added up.

        Of each row's cotangents, those of the states that it reads come first, in the order of reads, then its own one.

        Args:
          tables: The tables.
          reads: Where the states that each row reads lie, `[batches, rows]` each.
        """
        is_there = by_batch(tables.is_there(self, self._own))
        wanted = np.full(
            (*is_there.shape, len(reads) + 1),
            -1,
        )
        for number, read in enumerate(reads):
            np.copyto(
                wanted[..., number],
                read,
                where=is_there,
            )
        n = self.n_states(tables)
        return inverse(
            wanted,
            n,
            tables,
            (self, "readers"),
        )

    def n_states(self, tables: RowTables) -> int:
        """Counts the states of each batch's arena, copies included."""
        own = tables.rows(self, self._own)[0]
        return self.n_before(tables) + own.size

    def _rows_in_order(self, tables: RowTables) -> np.ndarray:
        """`[batches, 1, rows]`: all rows in the order of steps."""
        layout = self.layout(tables)
        size = tables.rounded(
            (self, "rows"),
            int(layout.n_rows.max()),
        )
        size = max(size, tables.sizes[self, "lanes"])
        numbers = np.full((tables.n_batches, 1, size), -1)
        batch, own, _ = self._rows_with_level(tables)
        numbers[batch, 0, layout.at] = own
        return numbers

    def _lay_out(self, tables: RowTables) -> StepLayout:
        batch, own, level = self._rows_with_level(tables)
        n_levels = int(level.max(initial=-1)) + 1
        counts = np.bincount(
            batch * n_levels + level,
            minlength=tables.n_batches * n_levels,
        )
        largest = tables.at_least(
            (self, "lanes"),
            largest_count(int(counts.max(initial=0))),
        )
        return lay_out(
            level,
            self._order(tables.data)[own],
            batch,
            counts.reshape(tables.n_batches, n_levels),
            largest,
            self._start,
        )

    def _rows_with_level(self, tables: RowTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lists the rows with a level: the batch, the number and the level of each."""

        def make() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            rows = wide(tables.rows(self._around, self._own))
            levels = wide(self._level(tables.data))
            listed = np.empty((3, rows.size), np.int64)
            counts = np.empty(1, np.int64)
            list_rows_with_level(rows, levels, counts, listed)
            batch, own, level = listed[:, : counts[0]]
            return batch, own, level

        return tables.once((self, "computed"), make)


def sizes_of(lanes: np.ndarray) -> list[int]:
    """The row counts of a loop.

    Args:
      lanes: What `StepFrame.lanes` gives.
    """
    return row_counts(len(lanes))
