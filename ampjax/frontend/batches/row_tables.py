"""Places of the rows of index spaces in a batch's arrays: integers of the host, made once for each batch, of several batches in one go.

A *frame* is a way to lay rows out. In the root frame all rows of a space lie one after the other: `[rows]`. A loop has a frame of its own, in
which the rows of each level lie together: `[levels, rows]`; in a loop inside of a loop `[levels, levels, rows]`. All levels of a frame have the
same size, which is rounded up, so that few shapes are compiled. What is left over is filled with copies of a row that is there: so it computes
what that row computes, and nothing that is not finite comes from it alone.

All tables have an axis in front, for batches that are packed together. Rows are numbered over all of these batches, their places in each of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.row_origins import Origin, rows_at
from ampjax.frontend.loops.table_passes import (
    fill,
    find_places,
    find_wanted,
    list_inside,
    list_places,
    wide,
    widest_inside,
)

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns

STEP = 1.25
"""Each size of the ladder is so many times the one before, rounded up."""

STEPS = 8
"""Fine sizes: so many between a power of two and the next."""

_LADDER = [0, 1]
"""The ladder of sizes, as far as one was asked for."""


Sizes = Mapping[Hashable, int]
"""How large a batch's arrays are, by what they are sizes of."""


class Frame:
    """A way to lay rows out; see above.

    Args:
      outer: The frame of the loop's surroundings; None for the root.
      space: The space whose rows the loop's levels are made of; every other space in the frame is inside of it.
      levels: From the tables to `[batches, ..., levels, rows]`: the rows of `space` at each level, -1 where none is.
      beside: The space around, if the loop's row at each place belongs to the surroundings' row at that place.
      copied: From a space inside, whose rows are copies and lie where the originals do, to the originals' space; from any other to None.

    Attributes:
      fills: From the tables to the rows of `space` with copies where none is, if these are not the first ones of each level.
      repeats_last: Whether a level without rows may compute the last one that has some once more, as that changes nothing.
      is_in_steps: Whether each level has as many rows as it needs; then all of them lie one after the other, as if of one level.
    """

    fills: Callable[[RowTables], np.ndarray] | None = None
    repeats_last = False
    is_in_steps = False

    def __init__(
        self,
        outer: Frame | None = None,
        space: IndexSpace | None = None,
        levels: Callable[[RowTables], np.ndarray] | None = None,
        beside: IndexSpace | None = None,
        copied: Callable[[IndexSpace], IndexSpace | None] | None = None,
    ):
        self.outer = outer
        self.space = space
        self.levels = levels
        self.beside = beside
        self._copied = copied

    def alongside(self, space: IndexSpace) -> IndexSpace | None:
        """Finds the space of the surroundings at whose places the rows of a space lie; None for a space with places of its own.

        Args:
          space: The space.
        """
        if space is self.space:
            return self.beside
        return None if self._copied is None else self._copied(space)

    def around(self) -> list[Frame]:
        """Lists this frame and the frames around this one, from the inside."""
        return [
            self,
            *(self.outer.around() if self.outer else ()),
        ]


Place = tuple[Frame, IndexSpace]
"""The rows of a space as they lie in a frame."""


@dataclass(frozen=True)
class Examples:
    """The examples of some batches, to be packed in one go.

    Args:
      columns: All of them, one batch after the other.
      n_each: How many each batch has.
    """

    columns: Columns
    n_each: Sequence[int]


class RowTables:
    """The tables of some batches of equal shapes.

    It has more than 15 methods: each is the pass behind one kind of table.

    Args:
      examples: The examples of each batch.
      size: Rows of the space of examples in each: as many as there are, or more.
      least: Sizes that are not to be smaller, by what they are sizes of: those of another batch, whose shapes these are to have.
      round_up: From a number to the size that holds so many, where `least` does not.

    Attributes:
      data: The examples of all batches.
      n_batches: How many batches there are.
      sizes: All sizes, by what they are sizes of.
      counts: How many rows or levels there are, of the sizes that are rounded up.
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        least: Sizes | None = None,
        round_up: Callable[[int], int] | None = None,
    ):
        self.data = examples.columns
        self.n_batches = len(examples.n_each)
        self._n_each = np.array(examples.n_each, np.int64)
        self._size = size
        self._least = least or {}
        self._round_up = round_up or rounded
        self.sizes: dict[Hashable, int] = {}
        self.counts: dict[Hashable, int] = {}

    def rounded(self, key: Hashable, n: int) -> int:
        """A size that holds so many rows or levels: of a short ladder, so that few shapes are compiled.

        Args:
          key: What it is the size of.
          n: How many there are.
        """
        size = self._least.get(key, 0)
        if n > size:
            size = self._round_up(n)
        self.counts[key] = n
        self.sizes[key] = size
        return size

    def at_least(self, key: Hashable, n: int) -> int:
        """Returns a size, raised to the same size of an earlier batch if this batch is to share shapes with that batch.

        Args:
          key: What it is the size of.
          n: The size.
        """
        self.sizes[key] = max(n, self._least.get(key, 0))
        return self.sizes[key]

    def once(
        self,
        key: Hashable,
        make: Callable[[], Any],
    ) -> Any:
        """Makes an object at first use, and keeps the object."""
        return self.data.once((self, key), make)

    @property
    def is_example(self) -> np.ndarray:
        """Whether a row of the space of examples is an example, and no copy, `[batches, size]`."""
        return np.arange(self._size) < self._n_each[:, None]

    def bounds(self, space: IndexSpace) -> np.ndarray:
        """Finds each batch's first row of a space, and the number of all rows, `[batches + 1]`."""

        def make() -> np.ndarray:
            around = space.known.parent
            if around is None:
                return np.append(0, self._n_each.cumsum())
            starts = np.append(space.starts(self.data), space.n_rows(self.data))
            return starts[self.bounds(around)]

        return self.once((space, "bounds"), make)

    def first_rows(self, space: IndexSpace) -> np.ndarray:
        """Finds each batch's first row of a space, `[batches]`; -1 for a batch without any."""
        bounds = self.bounds(space)
        return np.where(
            bounds[1:] > bounds[:-1],
            bounds[:-1],
            -1,
        )

    def rows(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        """`[..., rows]`: which row of the space lies at each place; -1 where none does."""
        return self.once(
            (frame, space, "rows"),
            lambda: self._rows(frame, space),
        )

    def filled(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        """`[..., rows]`: the same with a row that is there where none is, of the same level if any is there; -1 if the batch has no row."""
        fills = frame.fills
        if fills is not None and space is frame.space:
            return fills(self)
        return self.once(
            (frame, space, "filled"),
            lambda: self._fill_frame(frame, space),
        )

    def is_there(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        """`[..., rows]`: whether a row is its own, and no copy."""
        return self.rows(frame, space) >= 0

    def column(
        self,
        frame: Frame,
        space: IndexSpace,
        values: np.ndarray,
    ) -> np.ndarray:
        """Lays a column of a space out in a frame, `[..., rows, *shape]`.

        Args:
          frame: The frame.
          space: The space.
          values: `[rows of the space, *shape]`.
        """
        return rows_at(
            values,
            self.filled(frame, space),
        )

    def reads(
        self,
        source: Place,
        place: Place,
        origin: Origin,
    ) -> np.ndarray:
        """Finds the position of the row that each row of a place reads, `[..., rows]`.

        Args:
          source: Where values are. If that is in a loop that has ended, all its levels lie one after the other.
          place: Where they are read.
          origin: For each row of the place's space, the row of the source's.
        """
        rows = self.filled(*place)
        positions = np.zeros(rows.shape, np.int32)
        wanted = _origins(self, origin)
        if len(wanted):
            lies, n_rows = _reach(self, source, place[0])
            find_places(
                wide(rows).ravel(),
                wanted,
                lies,
                n_rows,
                positions.ravel(),
            )
        return positions

    def wanted(
        self,
        source: Place,
        place: Place,
        origin: Origin,
    ) -> np.ndarray:
        """Finds the same positions, `[batches, reads]`, only for rows that are no copies and read one; -1 for the others.

        Args:
          source: As for `reads`.
          place: As for `reads`.
          origin: As for `reads`; below 0 for none.
        """
        rows = wide(self.rows(*place)).ravel()
        positions = np.full(len(rows), -1)
        wanted = _origins(self, origin)
        if len(wanted):
            lies, n_rows = _reach(self, source, place[0])
            find_wanted(
                rows,
                wanted,
                lies,
                n_rows,
                positions,
            )
        return by_batch(positions, self.n_batches)

    def span(self, source: Place, frame: Frame) -> int:
        """Counts the rows of a place in reach from a frame: all levels of loops that have ended there count.

        Args:
          source: The place.
          frame: The frame.
        """
        frames = source[0].around()
        running = frame.around()
        ended = [each for each in frames[:-1] if each not in running]
        n_levels = len(ended)
        shape = self.rows(*source).shape
        return math.prod(shape[len(shape) - 1 - n_levels :])

    def parents(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        """`[..., rows]`: the place of the row around each row; one more than the last where there is none."""
        around = space.parent
        assert around is not None
        copied = frame.alongside(space)
        if copied is not None and space is not frame.space:
            assert frame.outer is not None
            own = self.parents(frame.outer, copied)
            return np.broadcast_to(
                own[..., None, :],
                self.rows(frame, space).shape,
            )
        n = self.rows(frame, around).shape[-1]
        own = self.reads(
            (frame, around),
            (frame, space),
            lambda data: space.parents(data),
        )
        return np.where(
            self.is_there(frame, space),
            own,
            n,
        ).astype(np.int32)

    def lies(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        """Finds the position of each row of a space in a frame, over all levels, `[rows of the space]`; -1 for a row that the frame lacks."""

        def make() -> np.ndarray:
            rows = by_batch(self.rows(frame, space))
            places = np.full(space.n_rows(self.data), -1)
            list_places(wide(rows), places)
            return places

        return self.once((frame, space, "lies"), make)

    def _rows(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        if space is frame.space:
            assert frame.levels is not None
            return frame.levels(self)
        if space.parent is None:
            first = self.bounds(space)[:-1, None]
            return np.where(
                self.is_example,
                first + np.arange(self._size),
                -1,
            )
        copied = frame.alongside(space)
        if copied is not None:
            return self._alongside(frame, space, copied)
        return self._inside(self.rows(frame, space.parent), frame, space)

    def _fill_frame(self, frame: Frame, space: IndexSpace) -> np.ndarray:
        """Lists the rows of a frame, with copies where none is."""
        rows = self.rows(frame, space)
        groups = wide(rows).reshape(
            self.n_batches,
            math.prod(rows.shape[1:-1]),
            rows.shape[-1],
        )
        found = np.empty_like(groups)
        fill(groups, found)
        if found.size and found.min() < 0:
            # rows of the space may be there that the frame lacks
            first = self.first_rows(space)[:, None, None]
            found = np.where(found < 0, first, found)
        return found.reshape(rows.shape)

    def _alongside(
        self,
        frame: Frame,
        space: IndexSpace,
        copied: IndexSpace,
    ) -> np.ndarray:
        """Lists copies of rows of the surroundings at the places of these rows, level by level."""
        assert frame.outer is not None
        assert space.parent is not None
        loop = self.rows(frame, space.parent)
        none = np.full((*loop.shape[:-1], 1), -1)
        around = np.concatenate([loop, none], -1)
        at = self.parents(frame.outer, copied)[..., None, :]
        outer = np.take_along_axis(
            around,
            np.broadcast_to(
                at,
                (*loop.shape[:-1], at.shape[-1]),
            ),
            -1,
        )
        own = self.rows(frame.outer, copied)[..., None, :]
        numbers = copied.numbers(self.data)
        starts = space.starts(self.data)
        if not len(numbers) or not len(starts):
            return np.full(outer.shape, -1)
        rows = starts[outer] + numbers[own]
        return np.where((outer >= 0) & (own >= 0), rows, -1)

    def _inside(
        self,
        outer: np.ndarray,
        frame: Frame,
        space: IndexSpace,
    ) -> np.ndarray:
        """Lists the rows of a space in the order of the outer rows, level by level."""
        groups = wide(outer).reshape(
            math.prod(outer.shape[:-1]),
            outer.shape[-1],
        )
        sizes = wide(space.lengths(self.data))
        width = self.rounded(
            (frame, space),
            widest_inside(groups, sizes),
        )
        members = np.full((len(groups), width), -1)
        list_inside(
            groups,
            sizes,
            space.starts(self.data) + sizes,
            members,
        )
        return members.reshape(*outer.shape[:-1], width)


def rounded(n: int) -> int:
    """The least size of the ladder that holds so many.

    Args:
      n: A number of rows or levels.

    >>> [rounded(n) for n in (0, 1, 5, 6, 9, 100)]
    [0, 1, 5, 7, 9, 118]
    """
    size = _LADDER[-1]
    while size < n:
        size = max(size + 1, int(np.ceil(size * STEP)))
        _LADDER.append(size)
    return _LADDER[bisect_left(_LADDER, n)]


def fine(n: int, steps: int = STEPS) -> int:
    """The least of many sizes that holds so many.

    Args:
      n: A number of rows or levels.
      steps: Sizes between a power of two and the next.

    >>> [fine(n) for n in (0, 5, 8, 17, 39, 200)]
    [0, 5, 8, 18, 40, 208]
    """
    step = 1
    while step * 2 * steps < n:
        step *= 2
    return -(-n // step) * step


def _origins(tables: RowTables, origin: Origin) -> np.ndarray:
    """Returns the rows of an origin, of which several tables are made."""
    return tables.once(
        (origin, "rows"),
        lambda: wide(origin(tables.data)),
    )


def _reach(
    tables: RowTables,
    source: Place,
    frame: Frame,
) -> tuple[np.ndarray, int]:
    """Returns where the rows of a place lie, of which there is one at least, and how many places are in reach of a frame."""
    lies = wide(tables.lies(*source))
    if not len(lies):
        lies = np.zeros(1, np.int64)
    return lies, max(tables.span(source, frame), 1)


def by_batch(rows: np.ndarray, n_batches: int | None = None) -> np.ndarray:
    """Lists the rows of each batch one after the other, `[batches, rows]`.

    Args:
      rows: `[batches, ...]`, or the rows of all batches in a single list.
      n_batches: How many batches there are; by default as many as `rows` is long.
    """
    n = len(rows) if n_batches is None else n_batches
    return rows.reshape(n, rows.size // n)
