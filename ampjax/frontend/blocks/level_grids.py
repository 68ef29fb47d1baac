"""Blocks of pairs in a loop: at each level every row has its own tile, and the elements across are the same at all levels.

So they are laid out once, before the loop, and no level reads a pair. A row whose loop has ended keeps what it was at its last level, and a row
that has no pairs is a copy of one that has some: each pair that is computed is one that is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.programs_of_rows import Room, Rows, Run, View
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Loop, RowLowering, Value
from ampjax.frontend.batches.row_tables import Frame, RowTables, by_batch, fine
from ampjax.frontend.blocks.grid_layouts import GridRows, PairSpaces
from ampjax.frontend.blocks.grids import Grid, GridFrame, slot_of_any
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.row_origins import rows_at
from ampjax.frontend.draft.values import Constant
from ampjax.frontend.loops.masked_rows import along


class LevelSpaces(PairSpaces):
    """The spaces of a block in a loop through sequences.

    Args:
      frame: The loop's frame.
      pairs: The space of the pairs that each row of the loop has.
      across: The space of the elements of which those of `pairs` are copies.
    """

    def __init__(
        self,
        frame: Frame,
        pairs: IndexSpace,
        across: IndexSpace,
    ):
        assert frame.beside is not None
        super().__init__(frame.beside, pairs, across)
        self._frame = frame

    def tiles(self, tables: RowTables) -> GridRows:
        """The rows around the loop that have pairs, `[batches, n]`: each a tile, whose place is that of the row.

        Args:
          tables: The batch's tables.
        """
        return tables.once((self, "tiles"), lambda: self._tiles(tables))

    def _tiles(self, tables: RowTables) -> GridRows:
        assert self._frame.outer is not None
        rows = tables.rows(self._frame.outer, self.outer)
        n_pairs = self._lengths(tables) * self.around.lengths(tables.data)
        has_pairs = np.append(n_pairs > 0, False)  # for the row -1, which is none
        there = np.where(has_pairs[rows], rows, -1)
        first = np.take_along_axis(there, _first_tile(there), 1) if there.size else there
        first = np.where(
            first < 0,
            tables.first_rows(self.outer)[:, None],
            first,
        )
        return GridRows(there, np.where(there < 0, first, there))

    def across_rows(self, tables: RowTables) -> GridRows:
        """The elements across of each tile, `[batches, n, longest]`.

        Args:
          tables: The batch's tables.
        """
        return tables.once((self, "across"), lambda: self._across_rows(tables))

    def _across_rows(self, tables: RowTables) -> GridRows:
        tiles = self.tiles(tables)
        starts = self._of_tiles(tables, self.across.starts(tables.data))
        counts = self.counts(tables)
        number = np.where(counts, np.arange(counts.shape[2]), 0)
        filled = rows_at(starts, tiles.filled)[..., None] + number
        is_tile = tiles.there >= 0
        return GridRows(np.where(counts & is_tile[..., None], filled, -1), filled)

    def counts(self, tables: RowTables) -> np.ndarray:
        """Tells whether each element across counts, `[batches, n, longest]`; a copied tile's elements count as the original's do.

        Args:
          tables: The batch's tables.
        """
        tiles = self.tiles(tables)
        sizes = self._lengths(tables)
        longest = fine(int(sizes[tiles.there[tiles.there >= 0]].max(initial=0)))
        longest = tables.at_least((self, "across"), longest)
        return np.arange(longest) < rows_at(sizes, tiles.filled)[..., None]

    def pair_rows(self, tables: RowTables) -> GridRows:
        """The pairs of each level `[batches, levels, n, longest]`.

        Args:
          tables: The batch's tables.
        """
        return tables.once((self, "pairs"), lambda: self._pair_rows(tables))

    def _pair_rows(self, tables: RowTables) -> GridRows:
        tiles = self.tiles(tables)
        counts = self.counts(tables)
        number = np.where(counts, np.arange(counts.shape[2]), 0)[:, None]
        loop = tables.rows(self._frame, self.around)
        starts = self.pairs.starts(tables.data)
        if not len(starts) or not loop.size:
            none = np.full((*loop.shape, counts.shape[2]), -1)
            return GridRows(none, none)
        # a row whose loop has ended is what it was at its last level
        level = np.where(
            loop >= 0,
            np.arange(loop.shape[1])[:, None],
            0,
        )
        held = np.take_along_axis(loop, np.maximum.accumulate(level, 1), 1)
        is_tile = tiles.there >= 0
        tile = np.where(
            is_tile,
            np.arange(loop.shape[2]),
            _first_tile(tiles.there),
        )
        own = np.take_along_axis(held, tile[:, None], 2)
        filled = rows_at(starts, own)[..., None] + number
        # a batch without a tile has no pair
        has_pairs = np.any(is_tile, axis=1, keepdims=True)
        filled = np.where(has_pairs[..., None, None], filled, -1)
        is_there = (loop >= 0) & is_tile[:, None]
        return GridRows(
            np.where(is_there[..., None] & counts[:, None], filled, -1),
            filled,
        )

    def _lengths(self, tables: RowTables) -> np.ndarray:
        """The numbers of elements across of the rows around the loop."""
        return self._of_tiles(tables, self.across.lengths(tables.data))

    def _of_tiles(self, tables: RowTables, values: np.ndarray) -> np.ndarray:
        """Numbers of the rows that have the elements across, for the rows around the loop."""
        around = self.across.parent
        assert around is not None
        return self.outer.rows_of(tables.data, around, values)


class _PairFrame(Frame):
    """The frame of the pairs of a block in a loop: at each level the pairs lie tile by tile.

    Args:
      frame: The loop's frame.
      spaces: The block's spaces.
    """

    def __init__(self, frame: Frame, spaces: LevelSpaces):
        super().__init__(
            frame.outer,
            spaces.pairs,
            lambda tables: _by_level(spaces.pair_rows(tables).there),
        )
        self.fills = lambda tables: _by_level(spaces.pair_rows(tables).filled)
        self._loop = frame

    def around(self) -> list[Frame]:
        """Lists the frames whose levels hold the pairs."""
        return self._loop.around()


def _by_level(rows: np.ndarray) -> np.ndarray:
    n_batches, n_levels, *shape = rows.shape
    return rows.reshape(n_batches, n_levels, math.prod(shape))


def _first_tile(there: np.ndarray) -> np.ndarray:
    """Finds the first place of each batch where a row lies, `[batches, 1]`; 0 where none does."""
    return np.argmax(there >= 0, 1)[:, None]


class LevelGrid(Grid):
    """The block of pairs at each level of a loop; of its rows around every tile has one.

    Args:
      low: The lowering.
      room: The rows of a level.
      pairs: The space of their pairs.
      across: The space of the elements of which those of `pairs` are copies.
    """

    def __init__(
        self,
        low: RowLowering,
        room: Room,
        pairs: IndexSpace,
        across: IndexSpace,
    ):
        spaces = LevelSpaces(room.frame, pairs, across)
        of_tiles = GridFrame(spaces.outer, spaces.tiles)
        of_across = GridFrame(across, spaces.across_rows)
        rooms = {
            "p": low.room(of_tiles, spaces.outer),
            "pa": low.room(*room.place),
            "px": low.room(of_across, across),
        }
        counts = low.slot(
            ("counts", pairs),
            of_across,
            lambda tables: by_batch(spaces.counts(tables)),
        )
        super().__init__(
            spaces,
            rooms,
            _PairFrame(room.frame, spaces),
            counts,
            slot_of_any(low, pairs),
        )
        self._room = room
        self._low = low
        self._loop: Loop = low.loops[room.frame]
        assert self._loop.block.outer is not None
        self._around = self._loop.block.outer
        self._held: dict[Rows, Rows] = {}

    def operand(
        self,
        body: Body,
        axes: str,
        value: Value,
        kind: Any,
    ) -> Rows | Constant:
        """Brings a value to the room of its axes: before the loop, if all levels have the same.

        Args:
          body: Where it is read.
          axes: The axes.
          value: The value.
          kind: Its type.
        """
        if axes == "p" and not self._is_outside(value):
            axes = "pa"
        if axes in ("p", "px"):
            return Body(body.low, self._around, self.rooms[axes]).operand(
                value,
                kind,
            )
        if axes == "pax":
            return super().operand(body, axes, value, kind)
        own = body.at(self._room).operand(value, kind)
        if isinstance(own, Constant) or own.room is not self._room:
            return own
        if own not in self._held:
            self._held[own] = self._hold(body, own)
            self.computed.add(self._held[own])
        return self._held[own]

    def derived(self, body: Body, rows: Rows) -> Rows:
        """Stops the derivative of an array that equations on pairs read, where the batch has no pair; before the loop if the array is from there.

        Args:
          body: Where it is read.
          rows: The array.
        """
        if self._around.sees(rows):
            body = Body(body.low, self._around, body.room)
        return super().derived(body, rows)

    def _hold(self, body: Body, own: Rows) -> Rows:
        """Adds a step that keeps rows whose loop has ended, and copies a row that has pairs to the rows without."""
        loop = self._loop
        mask = loop.counts
        assert mask is not None
        is_tile = self.rooms["p"].there
        before = Rows(own.aval, self.rooms["pa"])
        after = Rows(own.aval, self.rooms["pa"])
        filled = Rows(own.aval, self.rooms["pa"])
        loop.held.append((before, after))
        loop.block.give([before])

        def compute(run: Run) -> Sequence[Any]:
            values = run.get(own)
            if not len(values):
                return [values, values]
            # no result depends on what is kept or copied
            kept = jax.lax.stop_gradient(run.get(before))
            values = jnp.where(
                along(run.get(mask), values),
                values,
                kept,
            )
            there = jnp.asarray(run.slots[is_tile])
            copy = jax.lax.stop_gradient(values[jnp.argmax(there)])
            return [values, jnp.where(along(there, values), values, copy)]

        body.block.add([after, filled], compute)
        return filled

    def takes(self, value: Value) -> bool:
        """Whether a value of pairs is computed in the block, or is the same at all levels."""
        if isinstance(value, View) and self.axes(value.rows) != "":
            return True
        return self._is_outside(self._low.across.get(value, value))

    def _is_outside(self, value: Value) -> bool:
        """Whether a value is there before the loop, or is computed of the elements across alone."""
        if not isinstance(value, View) or value.rows.room is self.rooms["px"]:
            return True
        return self._around.sees(value.rows)


def level_grid_of(
    low: RowLowering,
    room: Room,
    pairs: IndexSpace,
) -> LevelGrid | None:
    """The block of the pairs that the rows of a level have; None if a value decides which rows count, or the loop is in another one.

    Args:
      low: The lowering.
      room: The rows.
      pairs: The space.
    """
    loop = low.loops.get(room.frame)
    across = low.original(pairs)
    if loop is None or room.mask is None or room.mask is not loop.counts or across is pairs:
        return None
    if room.frame.outer is not low.root:
        return None
    key = room.frame, pairs
    if key not in low.grids:
        low.grids[key] = LevelGrid(low, room, pairs, across)
    return low.grids[key]
