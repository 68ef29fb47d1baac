"""Layouts of pairs in blocks, integers of the host: each outer row's rows on one side by its rows on the other, padded to the longest.

Where few outer rows are far longer than the others, each is cut into tiles: some of its rows around, by all across.

What fills a block up are copies: each pair that is not there is a pair that is, of the same outer row if that has any. So it computes what that
pair computes, and nothing that is not finite comes from it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampjax.frontend.batches.row_tables import Frame, RowTables, fine
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.loops.table_passes import list_pairs, wide
from ampjax.utils.row_ranges import ranges

ACROSS = 16
"""What the rows across of a tile cost, which it has for itself: as much as so many rows around."""


@dataclass(frozen=True)
class GridRows:
    """The places of the rows of a space in a block.

    Args:
      there: Which row lies at each place; -1 where none does.
      filled: The same with a copy in place of each -1.
    """

    there: np.ndarray
    filled: np.ndarray


@dataclass(frozen=True)
class GridLayout:
    """A block of one batch.

    Args:
      outer: The outer row of each tile, `[n]`.
      around: The tile's rows on the side around, `[n, longest]`.
      across: The outer row's rows on the side across, `[n, longest]`.
      counts: Which rows across count in a reduction, `[n, longest]`.
    """

    outer: GridRows
    around: GridRows
    across: GridRows
    counts: np.ndarray


class PairSpaces:
    """The spaces of a block.

    Args:
      outer: The space around both sides, of whose rows tiles are made.
      pairs: The space of the pairs.
      across: The space of the elements of which those of `pairs` are copies.

    Attributes:
      around: The space whose rows have the pairs.
    """

    def __init__(
        self,
        outer: IndexSpace,
        pairs: IndexSpace,
        across: IndexSpace,
    ):
        assert pairs.parent is not None
        self.outer = outer
        self.around = pairs.parent
        self.across = across
        self.pairs = pairs


class GridSpaces(PairSpaces):
    """The spaces of a block outside of loops.

    Args:
      root: The frame in which the outer rows lie otherwise.
      pairs: The space of the pairs.
      across: The space of the elements of which those of `pairs` are copies.
    """

    def __init__(
        self,
        root: Frame,
        pairs: IndexSpace,
        across: IndexSpace,
    ):
        assert across.parent is not None
        super().__init__(across.parent, pairs, across)
        self._root = root

    def layout(self, tables: RowTables) -> GridLayout:
        """The block of a batch.

        Args:
          tables: The batch's tables.
        """
        return tables.once(
            (self, "layout"),
            lambda: self._layout(tables),
        )

    def _layout(self, tables: RowTables) -> GridLayout:
        data = tables.data
        n_outer = self.outer.n_rows(data)
        owner = self.around.rows_of(
            data,
            self.outer,
            np.arange(n_outer),
        )
        of_around = np.bincount(owner, minlength=n_outer)
        of_across = self.across.lengths(data)
        first = np.cumsum(of_around) - of_around
        # the outer rows that have pairs, in the order of their places
        places = tables.rows(self._root, self.outer)
        own = places[places >= 0]
        own = own[(of_around[own] > 0) & (of_across[own] > 0)]
        longest = fine(int(of_across[own].max(initial=0)))
        longest = tables.at_least((self, "across"), longest)
        most = int(of_around[own].max(initial=0))
        height = tables.at_least(
            (self, "around"),
            _height(of_around[own], most),
        )
        # each of them is cut into tiles of so many rows around
        n_tiles = -(-of_around[own] // max(height, 1))
        if height < most:
            n = tables.rounded((self, "tiles"), int(n_tiles.sum()))
        else:
            n = tables.at_least((self, "tiles"), len(places))
        tile = own.repeat(n_tiles)
        done = height * ranges(np.zeros_like(n_tiles), n_tiles)
        sizes = np.minimum(of_around[tile] - done, height)
        around, _ = _side(first[tile] + done, sizes, (n, height))
        starts = self.across.starts(data)
        across, counts = _side(
            starts[tile],
            of_across[tile],
            (n, longest),
        )
        outer, _ = _side(tile, np.ones_like(tile), (n, 1))
        return GridLayout(
            GridRows(outer.there[:, 0], outer.filled[:, 0]),
            around,
            across,
            counts,
        )

    def pair_rows(self, tables: RowTables) -> GridRows:
        """The pairs `[n, longest around, longest across]`.

        Args:
          tables: The batch's tables.
        """
        return tables.once(
            (self, "pairs"),
            lambda: self._pair_rows(tables),
        )

    def _pair_rows(self, tables: RowTables) -> GridRows:
        layout = self.layout(tables)
        around = layout.around
        across = layout.across
        starts = self.pairs.starts(tables.data)
        if not len(starts):
            shape = (*around.there.shape, across.there.shape[1])
            none = np.zeros(shape, np.int64)
            return GridRows(none - 1, none)
        first = self.across.starts(tables.data)[layout.outer.filled]
        shape = (*around.there.shape, across.there.shape[1])
        found = GridRows(np.empty(shape, np.int64), np.empty(shape, np.int64))
        list_pairs(
            starts[around.filled],
            wide(across.filled),
            first,
            around.there >= 0,
            across.there >= 0,
            found.there,
            found.filled,
        )
        return found


def _side(
    starts: np.ndarray,
    sizes: np.ndarray,
    shape: tuple[int, int],
) -> tuple[GridRows, np.ndarray]:
    """Lists the rows of one side, and which count: fillers of a tile do not, rows of a copied tile count as in the original.

    Args:
      starts: The first row of each tile.
      sizes: How many each has.
      shape: Tiles and rows, as many as fit.
    """
    n = len(starts)
    if not n:
        none = np.zeros(shape, np.int64)
        return GridRows(none - 1, none), none > 0
    tile = np.arange(shape[0])
    is_tile = tile < n
    tile = np.where(is_tile, tile, 0)
    number = np.arange(shape[1])
    counts = number < sizes[tile][:, None]
    filled = starts[tile][:, None] + np.where(counts, number, 0)
    there = np.where(
        counts & is_tile[:, None],
        filled,
        -1,
    )
    return GridRows(there, filled), counts


def _height(sizes: np.ndarray, most: int) -> int:
    """Chooses the number of rows around in a tile: as many as the longest outer row has, unless this height leaves most of the tiles empty.

    Args:
      sizes: Rows around of each outer row.
      most: The largest of them.
    """
    best = fine(most)
    least = len(sizes) * (best + ACROSS)
    height = 8
    while height < most:
        cost = int((-(-sizes // height)).sum()) * (height + ACROSS)
        if 1.5 * cost < least:
            least = 1.5 * cost
            best = height
        height *= 2
    return best
