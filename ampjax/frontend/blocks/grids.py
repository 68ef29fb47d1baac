"""Blocks of pairs in a program: the places and the axes of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.frontend.batches.programs_of_rows import Room, Rows, Run, Slot, View
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import RowLowering, Value
from ampjax.frontend.batches.row_tables import Frame, RowTables, by_batch
from ampjax.frontend.blocks import grid_layouts
from ampjax.frontend.blocks.grid_layouts import GridSpaces, PairSpaces
from ampjax.frontend.blocks.pair_products import PairProduct
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Constant


class GridFrame(Frame):
    """The frame of a space's rows in a block, where rows lie one after the other.

    Args:
      space: The space.
      find: From the tables to the rows.
    """

    def __init__(
        self,
        space: IndexSpace,
        find: Callable[[RowTables], grid_layouts.GridRows],
    ):
        super().__init__(
            None,
            space,
            lambda tables: by_batch(find(tables).there),
        )
        self.fills = lambda tables: by_batch(find(tables).filled)


@dataclass(eq=False)
class PairRoom(Room):
    """The room of all pairs of a block, which has no array of the batch of its own.

    Args:
      sides: The rooms of the tiles, of the rows around and of the elements across.
    """

    sides: tuple[Room, ...] = ()

    def size(self, slots: Mapping[Slot, Any]) -> int:
        """Multiplies the sizes of the sides."""
        tiles, around, across = (room.size(slots) for room in self.sides)
        return around * across // max(tiles, 1)


@dataclass(frozen=True, eq=False)
class Exponentials:
    """The exponentials that a block has summed up to give the logarithm of the sum: `exp(x - logsumexp(x))` is their quotient.

    Args:
      values: What they are exponentials of.
      each: The exponentials, each less the largest value.
      total: Their sum.
    """

    values: Rows
    each: Rows
    total: Rows


class Grid:
    """The block of a space whose elements are, for each row around, all elements of one sequence further out.

    Its axes are written `p`, `a` and `x`: the tiles, their rows around, and the elements across. A value has those of them that it depends on.

    Args:
      spaces: The spaces.
      rooms: By axes, where values are computed: `p`, `pa` and `px`.
      frame: The frame of the pairs.
      counts: Which elements across count.
      has_pairs: Whether the batch has a pair at all.

    Attributes:
      spaces: The spaces.
      rooms: By axes, where values are computed: `p`, `pa`, `px` and `pax`.
      products: What arrays of all pairs are products of.
      computed: Arrays that are computed in the block.
      results: For what a reduction gives to the rows around, the same in the block, where it is a copy for each row that has no pairs.
      exponentials: Of each logarithm of a sum of exponentials, these and their sum; likewise of the differences from the logarithm.
    """

    def __init__(
        self,
        spaces: PairSpaces,
        rooms: Mapping[str, Room],
        frame: Frame,
        counts: Slot,
        has_pairs: Slot,
    ):
        sides = tuple(rooms.values())
        self.spaces = spaces
        self.rooms = {
            **rooms,
            "pax": PairRoom(
                frame,
                spaces.pairs,
                has_pairs,
                sides=sides,
            ),
        }
        self._counts = counts
        self._has_pairs = has_pairs
        self.computed: set[Rows] = set()
        self.products: dict[Rows, PairProduct] = {}
        self.results: dict[View, Rows] = {}
        self.exponentials: dict[Rows, Exponentials] = {}

    def operand(
        self,
        body: Body,
        axes: str,
        value: Value,
        kind: Any,
    ) -> Rows | Constant:
        """Brings a value to the room of its axes.

        Args:
          body: Where it is read.
          axes: The axes.
          value: The value.
          kind: Its type.
        """
        return body.at(self.rooms[axes]).operand(
            value,
            kind,
        )

    def derived(self, body: Body, rows: Rows) -> Rows:
        """Stops the derivative of an outer array that equations on pairs read, where the batch has no pair.

        Args:
          body: Where it is read.
          rows: The array.
        """
        return body.derived_where(self._has_pairs, rows)

    def takes(self, value: Value) -> bool:
        """Whether a value of pairs is better read in the block than row by row."""
        return True

    def axes(self, operand: Rows | Constant) -> str:
        """The axes that an operand has.

        Args:
          operand: The operand.
        """
        room = None if isinstance(operand, Constant) else operand.room
        for axes, own in self.rooms.items():
            if own is room:
                return axes
        return ""

    def sizes(self, run: Run) -> dict[str, int]:
        """By axis, its size in a run."""
        n = run.size(self.rooms["p"])
        result = {"p": n}
        for axis in "ax":
            size = run.size(self.rooms[f"p{axis}"])
            result[axis] = size // max(n, 1)
        return result

    def shaped(
        self,
        run: Run,
        operand: Rows | Constant,
    ) -> Any:
        """An operand's value with an axis for each of its own.

        Args:
          run: The run.
          operand: The operand.
        """
        if isinstance(operand, Constant):
            return operand.value
        values = run.get(operand)
        sizes = self.sizes(run)
        own = [sizes[axis] for axis in self.axes(operand)]
        return values.reshape(*own, *operand.aval.shape)

    def counts(self, run: Run) -> Any:
        """Says which elements across count, `[p, x]`; a tile that copies another one has the same mask."""
        sizes = self.sizes(run)
        counts = run.slots[self._counts]
        return counts.reshape(sizes["p"], sizes["x"])

    def view(self, rows: Rows) -> View:
        """Returns an array as a value of the pairs, or of a space around the pairs.

        Args:
          rows: The array, with any axes.
        """
        spaces = self.spaces
        axes = self.axes(rows)
        if axes == "p":
            return View(rows, spaces.outer)
        if axes == "pa":
            return View(rows, spaces.around)
        if axes == "px":
            return View(rows, spaces.pairs, self._across)
        return View(rows, spaces.pairs)

    def _across(self, data: Any) -> np.ndarray:
        """`[pairs]`: each pair's element across."""
        pairs = self.spaces.pairs
        outer = self.spaces.across.parent
        assert outer is not None
        first = pairs.rows_of(
            data,
            outer,
            self.spaces.across.starts(data),
        )
        return first + pairs.numbers(data)


def grid_of(
    low: RowLowering,
    pairs: IndexSpace,
) -> Grid | None:
    """The block of a space; None if its elements are no copies of a sequence's around, or one copy at most.

    Args:
      low: The lowering.
      pairs: The space.
    """
    across = low.original(pairs)
    if across is pairs or not _may_repeat(
        pairs,
        across,
    ):
        return None
    if pairs not in low.grids:
        low.grids[pairs] = _grid(
            low,
            GridSpaces(low.root, pairs, across),
        )
    return low.grids[pairs]


def _grid(low: RowLowering, spaces: GridSpaces) -> Grid:
    """Makes the block of a space outside of loops."""
    across = GridFrame(
        spaces.across,
        lambda tables: spaces.layout(tables).across,
    )
    frames = {
        "p": GridFrame(
            spaces.outer,
            lambda tables: spaces.layout(tables).outer,
        ),
        "pa": GridFrame(
            spaces.around,
            lambda tables: spaces.layout(tables).around,
        ),
        "px": across,
    }
    rooms = {}
    for axes, frame in frames.items():
        assert frame.space is not None
        rooms[axes] = low.room(frame, frame.space)
    counts = low.slot(
        ("counts", spaces.pairs),
        across,
        lambda tables: by_batch(spaces.layout(tables).counts),
    )
    frame = GridFrame(spaces.pairs, spaces.pair_rows)
    return Grid(
        spaces,
        rooms,
        frame,
        counts,
        slot_of_any(low, spaces.pairs),
    )


def slot_of_any(low: RowLowering, pairs: IndexSpace) -> Slot:
    """The array of the batch that says whether there is a pair.

    Args:
      low: The lowering.
      pairs: The pairs' space.
    """
    return low.slot(
        ("any", pairs),
        low.root,
        lambda tables: np.diff(tables.bounds(pairs)) > 0,
    )


def _may_repeat(pairs: IndexSpace, across: IndexSpace) -> bool:
    """Tells whether an element across may be in several pairs; in a branch alone, each is in one pair at most."""
    space = pairs.parent
    while space is not None and space is not across.parent:
        if not space.is_part:
            return True
        space = space.parent
    return False
