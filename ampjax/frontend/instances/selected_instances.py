"""Some instances of a data set, such as a batch: their values are taken from columns of the whole data set, which are computed only once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.utils.row_ranges import ranges

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns

KEPT_BYTES = 2**28
"""Computed columns of a data set that are kept for its batches hold so many bytes at most."""


class KeptColumns:
    """The computed columns that a data set keeps for its batches.

    Args:
      whole: The data set.
    """

    def __init__(self, whole: Columns):
        self.whole = whole
        self._columns: set[Column] = set()
        self._n_bytes = 0

    def has_room(self, column: Column, row_bytes: int) -> bool:
        """Tells whether all values of a column are kept, or can be.

        Args:
          column: The column.
          row_bytes: The bytes of one value.
        """
        if column in self._columns:
            return True
        # what a column is computed from is kept, too
        n_bytes = self._n_bytes + 3 * row_bytes * column.space.n_rows(self.whole)
        if n_bytes > KEPT_BYTES:
            return False
        self._n_bytes = n_bytes
        self._columns.add(column)
        return True


@dataclass(frozen=True, eq=False)
class InstanceSelection:
    """Some instances of a data set.

    Args:
      kept: The data set's columns.
      numbers: The numbers of the instances, `[n]`.
    """

    kept: KeptColumns
    numbers: np.ndarray

    def values(
        self,
        column: Column,
        row_bytes: int,
        part: Columns,
    ) -> np.ndarray | None:
        """Takes these instances' values of a column from all values; None if all were too large to be kept.

        Args:
          column: The column.
          row_bytes: The bytes of one value.
          part: The columns of the instances.
        """
        if not self.kept.has_room(column, row_bytes):
            return None
        return column.of(self.kept.whole)[self.rows(column.space, part)]

    def rows(self, space: IndexSpace, part: Columns) -> np.ndarray:
        """Finds the rows of these instances among a space's rows of the whole data set, `[rows of the instances]`.

        Args:
          space: The space.
          part: The columns of the instances.
        """
        parent = space.parent
        if parent is None:
            return self.numbers

        def make() -> np.ndarray:
            starts = space.starts(self.kept.whole)
            return ranges(
                starts[self.rows(parent, part)],
                space.lengths(part),
            )

        return part.once((space, "in the data set"), make)
