"""Origins: for each row of a space a row of another one, for all rows at once or for some.

A sequence from outside has copies in each row of a space: so many rows that to list all of them, where few are read, would be most of planning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ampjax.frontend.draft.index_spaces import Column, IndexSpace

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns

Origin = Callable[["Columns"], np.ndarray]
"""From the data to a row of some space for each row of another one; below 0 for none."""


class RowOrigin:
    """An origin that can be asked for some rows, too.

    Args:
      space: The space whose rows it is for.
      every: The origin of all rows.
      some: From the data and numbers of rows to the origins of these.
    """

    def __init__(
        self,
        space: IndexSpace,
        every: Origin,
        some: Callable[[Columns, np.ndarray], np.ndarray],
    ):
        self._space = space
        self._every = every
        self._some = some

    def __call__(self, data: Columns) -> np.ndarray:
        """The origins of all rows."""
        return self._every(data)

    def some(self, data: Columns, rows: np.ndarray) -> np.ndarray:
        """Finds the origins of some rows; anything where there is no such row, which nobody reads.

        Args:
          data: The data.
          rows: The rows.
        """
        n = self._space.n_rows(data)
        if not n:
            return np.zeros(len(rows), np.int64)
        return self._some(data, np.clip(rows, 0, n - 1))


class ReadColumn(Column):
    """A column of which each row is a row of another column.

    Args:
      space: Its space.
      source: The other column.
      origin: For each row the row of the other column.
    """

    def __init__(
        self,
        space: IndexSpace,
        source: Column,
        origin: Origin,
    ):
        super().__init__(
            space,
            lambda data: _read(source, data, origin(data)),
        )
        self._source = source
        self._row = origin

    def some(self, data: Columns, rows: np.ndarray) -> np.ndarray:
        """Its values at some rows.

        Args:
          data: The data.
          rows: The rows.
        """
        return _read(self._source, data, origins_of(self._row, data, rows))


def _read(
    column: Column,
    data: Columns,
    rows: np.ndarray,
) -> np.ndarray:
    """Some rows of a column; no others are made of a column that reads another one."""
    if isinstance(column, ReadColumn):
        n = column.space.n_rows(data)
        if n:
            return column.some(data, np.minimum(rows, n - 1))
    return rows_at(column.of(data), rows)


def origins_of(
    origin: Origin,
    data: Columns,
    rows: np.ndarray,
) -> np.ndarray:
    """The origins of some rows; -1 where there is no such row.

    Args:
      origin: The origin.
      data: The data.
      rows: The rows; below 0 for none.
    """
    if isinstance(origin, RowOrigin):
        some_rows = origin.some(data, rows)
    else:
        some_rows = rows_at(origin(data), rows)
    return np.where(rows < 0, -1, some_rows)


def rows_at(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of a column; zeros where there is none, in each way of packing.

    Args:
      values: `[rows of a space, ...]`.
      rows: Numbers of rows; below 0 for none.
    """
    if not len(values):
        return np.zeros(
            (*rows.shape, *values.shape[1:]),
            values.dtype,
        )
    read = values.take(rows, axis=0, mode="clip")
    if rows.size and rows.min() < 0:
        read[rows < 0] = 0
    return read


def row_before(space: IndexSpace, reverse: bool) -> Origin:
    """The element before each one in a loop through a sequence; below 0 for the first.

    Args:
      space: The elements.
      reverse: Whether the loop goes from the last element to the first.
    """

    def find(data: Columns) -> np.ndarray:
        numbers = space.numbers(data)
        all_rows = np.arange(len(numbers))
        if not reverse:
            return np.where(numbers > 0, all_rows - 1, -1)
        lengths = space.lengths(data)[space.parents(data)]
        return np.where(numbers + 1 < lengths, all_rows + 1, -1)

    return find


def last_row(space: IndexSpace, reverse: bool) -> Origin:
    """The last element of a loop through a sequence, for each row around; below 0 for an empty sequence.

    Args:
      space: The elements.
      reverse: Whether the loop goes from the last element to the first.
    """

    def find(data: Columns) -> np.ndarray:
        lengths = space.lengths(data)
        starts = space.starts(data)
        return np.where(lengths > 0, starts if reverse else starts + lengths - 1, -1)

    return find
