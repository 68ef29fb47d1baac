"""Tables that hold the rows of several parameters, one parameter's after the other's, as one with offsets would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np


@dataclass(frozen=True)
class Stack:
    """The parameters whose rows one table holds; mostly a single one.

    Args:
      paths: The parameters, in the order of their rows.
      starts: The first row of each.
      n_rows: Rows in all.
    """

    paths: tuple[str, ...]
    starts: tuple[int, ...]
    n_rows: int

    @classmethod
    def of(
        cls,
        paths: Sequence[str],
        n_rows: Mapping[str, int],
    ) -> Stack:
        """The stack of some parameters.

        Args:
          paths: The parameters.
          n_rows: By parameter its rows.
        """
        starts = tuple(accumulate((n_rows[path] for path in paths), initial=0))
        return cls(
            tuple(paths),
            starts[:-1],
            starts[-1],
        )

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """By parameter its first row, and the row after its last."""
        return dict(zip(self.paths, pairwise((*self.starts, self.n_rows)), strict=True))

    @cached_property
    def sizes(self) -> np.ndarray:
        """The rows of each parameter, in their order."""
        return np.diff(self._bounds)

    def counts(self, ids: np.ndarray) -> np.ndarray:
        """Counts the rows of each parameter among some row ids, in the order of parameters.

        Args:
          ids: Rows of the table, rising.
        """
        return np.diff(self._places(ids))

    def parts(
        self, ids: np.ndarray, values: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yields each parameter that has some of the rows, with its own numbers of them, and their values.

        Args:
          ids: Rows of the table `[n]`, in any order.
          values: What belongs to them, `[n, ...]`.
        """
        if len(self.paths) == 1:
            yield self.paths[0], ids, values
            return
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        values = values[order]
        for path, start, (first, end) in zip(
            self.paths, self.starts, pairwise(self._places(ids)), strict=True
        ):
            yield path, ids[first:end] - start, values[first:end]

    def _places(self, ids: np.ndarray) -> np.ndarray:
        return np.searchsorted(ids, self._bounds)

    @cached_property
    def _bounds(self) -> np.ndarray:
        """The first row of each parameter, and the row after the last one's."""
        return np.array((*self.starts, self.n_rows))
