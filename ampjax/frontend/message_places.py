"""Which messages belong to each instance, and their states: the same for all pumps of a region, so these are gathered once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ampjax.frontend.deduction.index_spaces import Column, Region

if TYPE_CHECKING:
    from ampjax.frontend.instance_columns import Columns


class ChosenMessages(NamedTuple):
    """The messages of some instances in a region.

    Attributes:
      instance: `[m]`: for each message, the place of its instance among those that are asked for.
      rows: `[m]`: its row in the region's space.
      fields: Its state: `[m]` by field.
    """

    instance: np.ndarray
    rows: np.ndarray
    fields: Mapping[str, np.ndarray]


class MessagePlaces:
    """The messages of a region, one for each of its rows. An instance's rows follow each other.

    What is said of rows further out stands there once; it is looked up for each message when that is asked for.

    Args:
      region: The region; its space is not ragged.
      told: State fields that have other values than those of the region's rows.
      columns: The data set.
    """

    def __init__(self, region: Region, told: Mapping[str, Column], columns: Columns):
        space = region.space
        self._rows = region.rows(columns)
        starts = space.instance_starts(columns)
        if self._rows is not None:
            starts = np.searchsorted(self._rows, starts)
        self._starts, self._sizes = starts[:-1], np.diff(starts)
        self._is_one_each = bool((self._sizes == 1).all())
        self._unset = [
            name for name in space.fields if all(around.facts.get(name) is None for around in space.around())
        ]
        self._levels: list[tuple[dict[str, np.ndarray], np.ndarray | None]] = []
        for around in space.around():
            known = {name: column.inside(around).of(columns) for name, column in around.facts.items() if column}
            if around.parent is not None:
                known[around.index] = around.numbers(columns)
            if around is space:
                known |= {name: column.of(columns) for name, column in told.items()}
            self._levels.append((known, around.parents(columns) if around.parent is not None else None))
        while self._levels and not self._levels[-1][0]:
            self._levels.pop()

    def __len__(self) -> int:
        return int(self._sizes.sum())

    def of(self, ids: np.ndarray) -> ChosenMessages:
        """The messages of some instances.

        Args:
          ids: `[n]`: which instances.
        """
        if self._is_one_each:
            instance, numbers = np.arange(len(ids)), self._starts.take(ids)
        else:
            instance, numbers = ranges(self._starts, self._sizes, ids)
        rows = numbers if self._rows is None else self._rows.take(numbers)
        fields = {name: np.zeros(len(rows), np.int64) for name in self._unset}
        at = rows
        for depth, (known, _) in enumerate(self._levels):
            if depth:
                at = self._levels[depth - 1][1].take(at)  # type: ignore[union-attr]
            for name, column in known.items():
                fields[name] = column.take(at)
        return ChosenMessages(instance, rows, fields)


def ranges(starts: np.ndarray, sizes: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers `starts[i] ... starts[i] + sizes[i] - 1` for each `i` of `ids`, and for each number the position of its `i`.

    Args:
      starts: `[n]` integers.
      sizes: `[n]` integers of at least 0.
      ids: `[m]`.

    Returns:
      Positions and numbers, each `[sum(sizes[ids])]`.
    """
    n = sizes.take(ids)
    ends = n.cumsum()
    position = np.arange(len(ids)).repeat(n)
    numbers = (starts.take(ids) - (ends - n)).repeat(n)
    numbers += np.arange(len(numbers))
    return position, numbers
