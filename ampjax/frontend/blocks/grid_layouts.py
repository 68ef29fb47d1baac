"""Where the pairs of a block lie, as integers of the host: for each outer row, its rows on one side by its rows on the other, each padded to the longest.

What fills a block up are copies: each pair that is not there is a pair that is, of the same outer row if that has any. So it computes what that
pair computes, and nothing that is not finite comes from it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampjax.frontend.batches.row_tables import Frame, RowTables
from ampjax.frontend.draft.index_spaces import IndexSpace

STEPS = 8
"""Sizes of the padded axes: so many between a power of two and the next."""


@dataclass(frozen=True)
class Rows:
    """The rows of a space as they lie in a block.

    Args:
      there: Which row lies at each place; -1 where none does.
      filled: The same with a copy in place of each -1.
    """

    there: np.ndarray
    filled: np.ndarray


@dataclass(frozen=True)
class Layout:
    """A block of one batch.

    Args:
      outer: The outer rows, `[n]`.
      around: Their rows on the side around, `[n, longest]`.
      across: Their rows on the side across, `[n, longest]`.
      counts: Which rows across count in a reduction, `[n, longest]`.
    """

    outer: Rows
    around: Rows
    across: Rows
    counts: np.ndarray


class GridSpaces:
    """The spaces of a block.

    Args:
      root: The frame in which the outer rows lie otherwise.
      pairs: The space of the pairs.
      across: The space of the elements of which those of `pairs` are copies.

    Attributes:
      outer: The space around both sides.
      around: The space whose rows have the pairs.
    """

    def __init__(
        self,
        root: Frame,
        pairs: IndexSpace,
        across: IndexSpace,
    ):
        assert across.parent is not None
        assert pairs.parent is not None
        self._root = root
        self.outer = across.parent
        self.around = pairs.parent
        self.across = across
        self.pairs = pairs

    def layout(self, tables: RowTables) -> Layout:
        """The block of a batch.

        Args:
          tables: The batch's tables.
        """
        return tables.once(
            (self, "layout"),
            lambda: self._layout(tables),
        )

    def _layout(self, tables: RowTables) -> Layout:
        data = tables.data
        n_outer = self.outer.n_rows(data)
        owner = self.around.rows_of(
            data,
            self.outer,
            np.arange(n_outer),
        )
        of_around = np.bincount(owner, minlength=n_outer)
        of_across = self.across.lengths(data)
        has_pairs = (of_around > 0) & (of_across > 0)
        if not has_pairs.any():
            of_around = np.zeros_like(of_around)
            of_across = np.zeros_like(of_across)
        # the outer row whose pairs fill up what a row lacks: itself, or the first that has some
        places = tables.rows(self._root, self.outer)
        source = np.zeros_like(places)
        if n_outer:
            is_own = (places >= 0) & has_pairs[places]
            source = np.where(is_own, places, has_pairs.argmax())
        outer = Rows(places, source)
        first = np.cumsum(of_around) - of_around
        width = tables.at_least(
            (self, "around"),
            fine(int(of_around.max(initial=0))),
        )
        around, _ = _side(outer, first, of_around, width)
        width = tables.at_least(
            (self, "across"),
            fine(int(of_across.max(initial=0))),
        )
        across, counts = _side(
            outer,
            self.across.starts(data),
            of_across,
            width,
        )
        return Layout(outer, around, across, counts)

    def pair_rows(self, tables: RowTables) -> Rows:
        """The pairs `[n, longest around, longest across]`.

        Args:
          tables: The batch's tables.
        """
        layout = self.layout(tables)
        around = layout.around
        across = layout.across
        starts = self.pairs.starts(tables.data)
        if not len(starts):
            shape = (*around.there.shape, across.there.shape[1])
            none = np.zeros(shape, np.int64)
            return Rows(none - 1, none)
        first = self.across.starts(tables.data)
        number = across.there - first[layout.outer.there][:, None]
        is_around = around.there >= 0
        is_across = across.there >= 0
        is_there = is_around[:, :, None] & is_across[:, None]
        rows = starts[around.there][:, :, None] + number[:, None]
        copied = across.filled - first[layout.outer.filled][:, None]
        filled = starts[around.filled][:, :, None] + copied[:, None]
        return Rows(np.where(is_there, rows, -1), filled)


def _side(
    outer: Rows,
    starts: np.ndarray,
    sizes: np.ndarray,
    width: int,
) -> tuple[Rows, np.ndarray]:
    """The rows of one side `[n, width]`; and which of them are those of the row whose pairs fill up what another lacks.

    Args:
      outer: The outer rows.
      starts: The first row of each outer row.
      sizes: How many each has.
      width: How many fit.
    """
    number = np.arange(width)
    shape = (len(outer.there), width)
    if not len(sizes):
        none = np.zeros(shape, np.int64)
        return Rows(none - 1, none), none > 0
    own = outer.there[:, None]
    is_there = (number < sizes[own]) & (own >= 0)
    there = np.where(
        is_there,
        starts[own] + number,
        -1,
    )
    source = outer.filled[:, None]
    counts = number < sizes[source]
    filled = starts[source] + np.where(counts, number, 0)
    return Rows(there, filled), counts


def fine(n: int) -> int:
    """The least size of a padded axis that holds so many.

    Args:
      n: How many elements the longest row has.

    >>> [fine(n) for n in (0, 5, 8, 17, 39, 200)]
    [0, 5, 8, 18, 40, 208]
    """
    step = 1
    while step * 2 * STEPS < n:
        step *= 2
    return -(-n // step) * step
