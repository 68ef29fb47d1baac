"""The messages of each instance, and their states: computed for some instances at a time, from the outermost space inwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns


class ChosenMessages(NamedTuple):
    """The messages of some instances, one for each row of a space or of a region in that space.

    Attributes:
      instance: `[m]`: for each message, the place of its instance among those that are asked for.
      rows: `[m]`: its row in the space.
      fields: Its state: `[m]` by field.
      span: The rows as a slice, where they are known to follow one another: columns are cut then, which is quicker; None otherwise.
    """

    instance: np.ndarray
    rows: np.ndarray
    fields: Mapping[str, np.ndarray]
    span: slice | None = None

    def of(self, column: np.ndarray) -> np.ndarray:
        """Reads a column of the space at each message.

        Args:
          column: `[rows of the space, ...]`.
        """
        if self.span is None:
            return column.take(self.rows, axis=0)
        return column[self.span]


class SpaceMessages:
    """The messages of a space. Rows that belong to one row of the space around follow each other.

    Args:
      space: The space; it is not ragged.
      columns: The data set.
    """

    def __init__(self, space: IndexSpace, columns: Columns):
        self._index = space.index
        known = {}
        for name, column in space.facts.items():
            if column:
                known[name] = columns.known(column.inside(space))
        self._facts = {name: values for name, values in known.items() if values is not None}
        self._unset = [name for name in space.facts if name not in self._facts]
        if space.parent is not None:
            self._starts = space.starts(columns)
            self._sizes = space.lengths(columns)

    def of_instances(self, ids: np.ndarray) -> ChosenMessages:
        """The messages of some instances, where there is one for each.

        Args:
          ids: `[n]`: which instances.
        """
        n = len(ids)
        return self._choose(
            np.arange(n),
            ids,
            {},
            ids.item() if n == 1 else None,
        )

    def within(self, outer: ChosenMessages) -> ChosenMessages:
        """Selects the messages within the messages of the space around."""
        if len(outer.rows) == 1:  # the most frequent case
            row = outer.rows.item()
            n = self._sizes.item(row)
            start = self._starts.item(row)
            numbers = np.arange(n)
            rows = numbers + start
        else:
            n = self._sizes.take(outer.rows)
            start = None
            ends = n.cumsum()
            numbers = np.arange(ends[-1] if len(ends) else 0)
            numbers -= (ends - n).repeat(n)
            rows = numbers + self._starts.take(outer.rows).repeat(n)
        fields = {}
        for name, values in outer.fields.items():
            fields[name] = values.repeat(n)
        fields[self._index] = numbers
        return self._choose(outer.instance.repeat(n), rows, fields, start)

    def _choose(
        self,
        instance: np.ndarray,
        rows: np.ndarray,
        fields: dict[str, np.ndarray],
        start: int | None,
    ) -> ChosenMessages:
        """Builds messages with the fields of this space; `start` is the first row where rows follow one another."""
        chosen = ChosenMessages(
            instance,
            rows,
            fields,
            None if start is None else slice(start, start + len(rows)),
        )
        for name, column in self._facts.items():
            fields[name] = chosen.of(column)
        for name in self._unset:
            fields[name] = np.zeros(len(rows), np.int64)
        return chosen


class RegionMessages:
    """The messages of a region.

    Args:
      region: The region; its space is not ragged.
      told: State fields that have other values than those of the region's rows.
      columns: The data set.
    """

    def __init__(
        self,
        region: Region,
        told: Mapping[str, Column],
        columns: Columns,
    ):
        self.space = region.space
        rows = region.rows(columns)
        n = self.space.n_rows(columns)
        self._n = n if rows is None else len(rows)
        if self._n:
            values_by_name = {name: columns.known(column) for name, column in told.items()}
        else:
            values_by_name = {}
        result = {}
        for name, values in values_by_name.items():
            if values is None:
                result[name] = np.zeros(n, np.int64)
            else:
                result[name] = values
        self._told = result
        self._holds: np.ndarray | None = None
        if self._told or self._n < n:
            self._holds = np.zeros(n, bool)
            self._holds[slice(None) if rows is None else rows] = True

    def __len__(self) -> int:
        return self._n

    @property
    def is_whole(self) -> bool:
        """Tells whether the selection is all messages of its space, in order."""
        return self._holds is None

    def of(self, messages: ChosenMessages) -> ChosenMessages:
        """Selects the region's messages among a space's."""
        if self._holds is None:
            return messages
        numbers = self._holds.take(messages.rows).nonzero()[0]
        rows = messages.rows.take(numbers)
        fields = {}
        for name, values in messages.fields.items():
            fields[name] = values.take(numbers)
        fields |= {name: values.take(rows) for name, values in self._told.items()}
        return ChosenMessages(messages.instance.take(numbers), rows, fields)
