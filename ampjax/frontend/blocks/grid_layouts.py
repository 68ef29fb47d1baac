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
from ampjax.frontend.draft.row_origins import rows_at
from ampjax.frontend.loops.table_passes import list_pairs, wide
from ampjax.utils.row_ranges import ranges

ACROSS = 16
"""What the rows across of a tile cost, which it has for itself: as much as so many rows around."""


@dataclass(frozen=True)
class GridRows:
    """The places of the rows of a space in a block, for several batches.

    Args:
      there: Which row lies at each place; -1 where none does.
      filled: The same with a copy in place of each -1, if the batch has a row.
    """

    there: np.ndarray
    filled: np.ndarray


@dataclass(frozen=True)
class GridLayout:
    """A block of several batches.

    Args:
      outer: The outer row of each tile, `[batches, n]`.
      around: The tile's rows on the side around, `[batches, n, longest]`.
      across: The outer row's rows on the side across, `[batches, n, longest]`.
      counts: Which rows across count in a reduction, `[batches, n, longest]`.
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
        batch, place = np.nonzero(places >= 0)
        own = places[batch, place]
        has_pairs = (of_around[own] > 0) & (of_across[own] > 0)
        own = own[has_pairs]
        batch = batch[has_pairs]
        longest = fine(int(of_across[own].max(initial=0)))
        longest = tables.at_least((self, "across"), longest)
        heights, most = _heights(of_around[own], batch, tables.n_batches)
        height = tables.at_least((self, "around"), int(heights.max()))
        # each of them is cut into tiles of so many rows around
        n_tiles = -(-of_around[own] // max(height, 1))
        tile = own.repeat(n_tiles)
        tiles = _Tiles.of(batch.repeat(n_tiles), tables.n_batches)
        n = self._n_tiles(tables, tiles.n_each, height < most)
        done = height * ranges(np.zeros_like(n_tiles), n_tiles)
        sizes = np.minimum(of_around[tile] - done, height)
        around, _ = tiles.side(
            first[tile] + done,
            sizes,
            (n, height),
            tables.first_rows(self.around),
        )
        across, counts = tiles.side(
            self.across.starts(data)[tile],
            of_across[tile],
            (n, longest),
            tables.first_rows(self.across),
        )
        outer, _ = tiles.side(
            tile,
            np.ones_like(tile),
            (n, 1),
            tables.first_rows(self.outer),
        )
        return GridLayout(
            GridRows(outer.there[..., 0], outer.filled[..., 0]),
            around,
            across,
            counts,
        )

    def _n_tiles(
        self,
        tables: RowTables,
        n_each: np.ndarray,
        is_cut: np.ndarray,
    ) -> int:
        """Chooses the number of tiles of a batch: as many as outer rows have places, unless outer rows are cut.

        Args:
          tables: The tables.
          n_each: How many tiles each batch needs.
          is_cut: Whether outer rows of a batch have several.
        """
        key = (self, "tiles")
        n = 0
        if is_cut.any():
            n = tables.rounded(key, int(n_each[is_cut].max()))
        if not is_cut.all():
            n_places = tables.rows(self._root, self.outer).shape[1]
            n = tables.at_least(key, max(n, n_places))
        return n

    def pair_rows(self, tables: RowTables) -> GridRows:
        """The pairs `[batches, n, longest around, longest across]`.

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
        first = rows_at(self.across.starts(tables.data), layout.outer.filled)
        starts = rows_at(self.pairs.starts(tables.data), around.filled)
        n = first.size
        shape = (*around.there.shape, across.there.shape[2])
        found = GridRows(
            np.empty(shape, np.int64),
            np.empty(shape, np.int64),
        )
        list_pairs(
            starts.reshape(n, shape[2]),
            wide(across.filled).reshape(n, shape[3]),
            first.ravel(),
            (around.there >= 0).reshape(n, shape[2]),
            (across.there >= 0).reshape(n, shape[3]),
            found.there.reshape(n, *shape[2:]),
            found.filled.reshape(n, *shape[2:]),
        )
        # a batch without a tile has no pair
        has_pairs = (layout.outer.there >= 0).any(1)
        found.filled[~has_pairs] = -1
        return found


@dataclass(frozen=True)
class _Tiles:
    """Tiles of several batches, one batch after the other.

    Args:
      firsts: The first tile of each batch.
      n_each: How many each batch has.
    """

    firsts: np.ndarray
    n_each: np.ndarray

    @classmethod
    def of(cls, batch: np.ndarray, n_batches: int) -> _Tiles:
        """Counts tiles, given the batch of each."""
        n_each = np.bincount(batch, minlength=n_batches)
        return cls(n_each.cumsum() - n_each, n_each)

    def side(
        self,
        starts: np.ndarray,
        sizes: np.ndarray,
        shape: tuple[int, int],
        otherwise: np.ndarray,
    ) -> tuple[GridRows, np.ndarray]:
        """Lists the rows of one side, and which count: fillers of a tile do not, rows of a copied tile count as in the original.

        Args:
          starts: The first row of each tile.
          sizes: How many each has.
          shape: Tiles and rows of a batch, as many as fit.
          otherwise: The row that fills a batch without tiles up.
        """
        number = np.arange(shape[0])
        is_tile = number < self.n_each[:, None]
        tile = self.firsts[:, None] + np.where(is_tile, number, 0)
        has_tiles = self.n_each > 0
        tile[~has_tiles] = -1
        number = np.arange(shape[1])
        counts = number < rows_at(sizes, tile)[..., None]
        filled = rows_at(starts, tile)[..., None] + np.where(counts, number, 0)
        filled[~has_tiles] = otherwise[~has_tiles, None, None]
        there = np.where(
            counts & is_tile[..., None],
            filled,
            -1,
        )
        return GridRows(there, filled), counts


def _heights(
    sizes: np.ndarray,
    batch: np.ndarray,
    n_batches: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the number of rows around in a tile for each batch, and tells how many the largest outer row has.

    Args:
      sizes: Rows around of each outer row.
      batch: Their batches.
      n_batches: How many there are.
    """
    heights = np.zeros(n_batches, np.int64)
    most = np.zeros(n_batches, np.int64)
    for number in range(n_batches):
        own = sizes[batch == number]
        most[number] = own.max(initial=0)
        heights[number] = _height(own, int(most[number]))
    return heights, most


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
