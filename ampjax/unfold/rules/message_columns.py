"""Messages while control flow is evaluated: the invocation that made each, and the rows of each.

Rows are numbered as they come to be, over all instances that are unfolded together. A message holds rows in a row (those of an output), or a list of
picks (the rows of a group, of a repeated or a distributed message); then `first` is the complement `~i` of its place in the list, a negative number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class IntColumn:
    """A column of integers that grows at its end.

    Args:
      first: What it begins with, also after `clear`.
    """

    def __init__(self, *first: int):
        self._array = np.zeros(1024, np.int64)
        self._array[: len(first)] = first
        self._n = self._least = len(first)

    def __len__(self) -> int:
        return self._n

    @property
    def values(self) -> np.ndarray:
        """All numbers, as a view that may be written to."""
        return self._array[: self._n]

    def extend(
        self,
        n: int,
        values: np.ndarray | int,
    ) -> np.ndarray:
        """Adds numbers at the end.

        Args:
          n: How many.
          values: `[n]`, or one number for all.

        Returns:
          A view of the new ones, `[n]` int64.
        """
        start = self._n
        end = self._n + n
        # At least twice as long, so growing costs little for each number.
        if end > len(self._array):
            self._array = np.concatenate(
                [
                    self.values,
                    np.zeros(max(end, len(self._array)), np.int64),
                ]
            )
        self._n = end
        new = self._array[start:end]
        new[:] = values
        return new

    def clear(self) -> None:
        """Removes all but the first numbers."""
        self._n = self._least


class MessageTable:
    """All messages of an unfolding, by number; number 0 stands for none.

    Attributes:
      owner: The invocation that made each message's rows, and is owed a gradient for each time that they are consumed.
      first: The first row of each message, or `~i` for picks from place `i` on.
      size: Rows of each message.
      picks: The lists of rows that do not follow one another.
    """

    def __init__(self) -> None:
        self._owner = IntColumn(0)
        self._first = IntColumn(0)
        self._size = IntColumn(0)
        self._picks = IntColumn()

    @property
    def owner(self) -> np.ndarray:
        """See above."""
        return self._owner.values

    @property
    def first(self) -> np.ndarray:
        """See above."""
        return self._first.values

    @property
    def size(self) -> np.ndarray:
        """See above."""
        return self._size.values

    @property
    def picks(self) -> np.ndarray:
        """See above."""
        return self._picks.values

    @property
    def row(self) -> np.ndarray:
        """The row of each ordinary message."""
        return self._first.values

    @property
    def rows(self) -> _RowsOfOne:
        """The rows of each ragged message."""
        return _RowsOfOne(self)

    def clear(self) -> None:
        """Forgets all messages."""
        for column in (self._owner, self._first, self._size, self._picks):
            column.clear()

    def emit(
        self,
        owners: np.ndarray,
        first: np.ndarray | int,
        sizes: np.ndarray | int,
    ) -> np.ndarray:
        """Adds messages.

        Args:
          owners: `[n]`: the invocations that have made them.
          first: The first row of each, `[n]` or one number.
          sizes: Rows of each, `[n]` or one number.

        Returns:
          `[n]`: the messages, by number.
        """
        n = len(owners)
        start = len(self._owner)
        self._owner.extend(n, owners)
        self._first.extend(n, first)
        self._size.extend(n, sizes)
        return np.arange(start, start + n)

    def view(
        self,
        of: np.ndarray,
        rows: np.ndarray | None,
    ) -> np.ndarray:
        """Adds messages whose rows others have made.

        Args:
          of: `[n]`: the messages that have these rows, too.
          rows: `[n]`: the row of each; None if `set_rows` or `set_parts` follows.

        Returns:
          `[n]`: the new messages, by number.
        """
        return self.emit(
            self.owner[of],
            0 if rows is None else rows,
            1,
        )

    def set_rows(
        self,
        messages: np.ndarray,
        rows: np.ndarray,
        sizes: np.ndarray,
    ) -> None:
        """Gives ragged messages their rows.

        Args:
          messages: `[n]`: the messages.
          rows: `[sum(sizes)]`: their rows, one message after the other.
          sizes: `[n]`: rows of each.
        """
        self.first[messages] = ~(len(self._picks) + np.cumsum(sizes) - sizes)
        self.size[messages] = sizes
        self._picks.extend(len(rows), rows)

    def set_parts(
        self,
        messages: np.ndarray,
        rows: Sequence[np.ndarray],
    ) -> None:
        """Gives ragged messages their rows.

        Args:
          messages: `[n]`: the messages.
          rows: For each message its rows.
        """
        sizes = np.fromiter(
            map(len, rows),
            np.int64,
            len(rows),
        )
        self.set_rows(messages, np.concatenate(rows) if rows else sizes, sizes)

    def rows_of(
        self,
        messages: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gives the rows of ragged messages.

        Args:
          messages: `[n]`: the messages.

        Returns:
          `[sum(sizes)]`: the rows, one message after the other; `[n]`: rows of each.
        """
        sizes = self.size[messages]
        return resolve(self.first[messages], sizes, self.picks), sizes


class _RowsOfOne:
    def __init__(self, table: MessageTable):
        self._table = table

    def __getitem__(self, message: int, /) -> np.ndarray:
        first = int(self._table.first[message])
        size = int(self._table.size[message])
        if first >= 0:
            return np.arange(first, first + size)
        return self._table.picks[~first : ~first + size]


def resolve(
    first: np.ndarray,
    sizes: np.ndarray,
    picks: np.ndarray,
) -> np.ndarray:
    """The rows of some messages, one after the other.

    Args:
      first: `[n]`: the first row of each, or `~i` for the picks from place `i` on.
      sizes: `[n]`: rows of each.
      picks: The lists of rows.

    Returns:
      `[sum(sizes)]`: the rows.
    """
    picked = first < 0
    places = spread(np.where(picked, ~first, first), sizes)
    if not picked.any():
        return places
    if picked.all():
        return picks[places]
    # Both kinds: places of picks are replaced by the rows that stand there.
    listed = np.repeat(picked, sizes)
    places[listed] = picks[places[listed]]
    return places


def spread(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Counts up from each of some numbers: `starts[0], starts[0] + 1, ...` (`sizes[0]` of these numbers), then from `starts[1]`, and so forth.

    Args:
      starts: `[n]`: the first number of each range.
      sizes: `[n]`: the lengths of the ranges.

    Returns:
      `[sum(sizes)]` int64.

    >>> spread(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends = sizes.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) + (starts - (ends - sizes)).repeat(sizes)
