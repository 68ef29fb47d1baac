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
from ampjax.frontend.batches.row_tables import Frame, Place, RowTables
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.row_origins import Origin
from ampjax.frontend.loops.step_layouts import StepLayout, largest_count, lay_out, row_counts
from ampjax.frontend.loops.table_passes import find_states, wide


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
            lambda: self._lay_out(tables)[0],
        )

    def lanes(self, tables: RowTables) -> np.ndarray:
        """`[largest row count]`: the numbers from 0."""
        self.layout(tables)
        return np.arange(
            tables.sizes[self, "lanes"],
            dtype=np.int32,
        )

    def steps(self, tables: RowTables) -> np.ndarray:
        """`[steps]`: where each step's rows begin."""
        firsts = self.layout(tables).firsts
        size = tables.rounded(
            (self, "steps"),
            len(firsts),
        )
        return np.pad(
            firsts,
            (0, size - len(firsts)),
        ).astype(np.int32)

    def rounds(self, tables: RowTables) -> np.ndarray:
        """Counts rounds and steps, then tells where each row count's steps of a round begin and end, `[1 + rounds, row counts + 1]`."""
        layout = self.layout(tables)
        starts = layout.starts
        size = tables.rounded(
            (self, "rounds"),
            len(starts),
        )
        n_columns = max(starts.shape[1], 2)  # without a row count there are no rounds
        found = np.zeros(
            (1 + size, n_columns),
            np.int32,
        )
        found[0, :2] = len(starts), len(layout.firsts)
        found[1 : 1 + len(starts), : starts.shape[1]] = starts
        return found

    def positions(self, tables: RowTables) -> np.ndarray:
        """Finds the position of each row's state in the arena, `[rows of the space]`; -1 for a row without a state."""

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
        """Counts the states before the loop, copies included."""
        if self._before is None:
            return 0
        return tables.rows(*self._before.place).size

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
        found = np.empty(rows.shape, np.int64)
        places = wide(self.positions(tables))
        find_states(
            wide(rows).ravel(),
            wide(own),
            places,
            start,
            lies,
            found.ravel(),
        )
        return found

    def readers(
        self,
        tables: RowTables,
        reads: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Finds the positions of the cotangents of each state's readers, `[states, most readers]`; no column if cotangents are to be added up.

        Of each row's cotangents, those of the states that it reads come first, in the order of reads, then its own one.

        Args:
          tables: The tables.
          reads: Where the states that each row reads lie, `[rows]` each.
        """
        is_there = tables.is_there(
            self,
            self._own,
        ).ravel()
        wanted = np.full(
            (len(is_there), len(reads) + 1),
            -1,
        )
        for number, read in enumerate(reads):
            np.copyto(
                wanted[:, number],
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
        """Counts the states of the arena, copies included."""
        return (
            self.n_before(tables)
            + tables.rows(
                self,
                self._own,
            ).size
        )

    def _rows_in_order(self, tables: RowTables) -> np.ndarray:
        """`[1, rows]`: all rows in the order of steps."""
        layout, own = self._lay_out(tables)
        size = tables.rounded(
            (self, "rows"),
            layout.n_rows,
        )
        size = max(size, tables.sizes[self, "lanes"])
        found = np.full((1, size), -1)
        found[0, layout.at] = own
        return found

    def _lay_out(self, tables: RowTables) -> tuple[StepLayout, np.ndarray]:
        def make() -> tuple[StepLayout, np.ndarray]:
            rows = tables.rows(self._around, self._own)
            own = rows[rows >= 0]
            level = self._level(tables.data)[own]
            own = own[level >= 0]
            level = level[level >= 0]
            widest = int(np.bincount(level).max(initial=0))
            largest = tables.at_least(
                (self, "lanes"),
                largest_count(widest),
            )
            return lay_out(
                level,
                self._order(tables.data)[own],
                largest,
                self._start,
            ), own

        return tables.once((self, "laid out"), make)


def sizes_of(lanes: np.ndarray) -> list[int]:
    """The row counts of a loop.

    Args:
      lanes: What `StepFrame.lanes` gives.
    """
    return row_counts(len(lanes))
