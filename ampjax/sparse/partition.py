"""One partition of a table: its rows and their optimizer state, as NumPy arrays in host memory or in mapped files.

Knows its own rows by their numbers within the partition, and a rule. What has been checked and merged comes in; it does not
know the table, other partitions, or servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.optim.rule import RowRule
from ampjax.sparse.history import History
from ampjax.sparse.kernels import Kernels, padded_size

CHUNK = 16384
"""Rows that are caught up in one call at most."""


class Partition:
    """Rows, their state, and in faithful mode how many updates each of them has seen.

    Args:
      index: Its number in the table.
      n_rows: Its number of rows.
      kernels: The rule's compiled functions.
      seen: Updates that its rows have seen so far; None where rows that are left out of updates need not catch up.
      folder: Where its arrays are mapped files; None for ordinary memory.
    """

    def __init__(self, index: int, n_rows: int, kernels: Kernels, seen: int | None, folder: Path | None = None):
        rule = kernels.rule
        self.index, self.n_rows, self.kernels = index, n_rows, kernels
        self.arrays = [
            _allocate(folder and folder / f"{index}-{i}.rows", (n_rows, *shape), dtype)
            for i, (shape, dtype) in enumerate(array_types(rule))
        ]
        self.seen = None if seen is None else np.full(n_rows, seen, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters; states come on top."""
        return self.arrays[0].nbytes

    @property
    def everything(self) -> list[np.ndarray]:
        """All arrays, to be read or filled: parameters, states, and how many updates each row has seen."""
        return self.arrays + ([] if self.seen is None else [self.seen])

    def read(self, local: np.ndarray) -> np.ndarray:
        """A copy of some rows' parameters, `[n, *row]`."""
        return self.arrays[0][local]

    def partials(self, turn: int, shared: Sequence[Any], grads: np.ndarray, n_untouched: int) -> list[np.ndarray]:
        """One round's reductions over touched rows, and over rows that were not: their gradient is zero.

        Args:
          turn: The round.
          shared: Shared values for the round.
          grads: Gradients of the touched rows, each row once, `[n, *row]`.
          n_untouched: How many rows were not touched.
        """
        n = len(grads)
        weights = np.zeros(padded_size(n + 1), np.int32)
        weights[:n], weights[n] = 1, n_untouched
        return self.kernels.partials(turn, shared, _padded(grads, len(weights), self.arrays[0].dtype), weights)

    def compute(self, local: np.ndarray, grads: np.ndarray, shared: Sequence[Any]) -> list[np.ndarray]:
        """What `write` has to store for one update of some rows; changes nothing.

        Args:
          local: Rows, each once, `[n]`, n >= 1.
          grads: Their gradients, `[n, *row]`.
          shared: The update's shared values.
        """
        size = padded_size(len(local))
        rows, *state = self._take(local, size)
        new = self.kernels.update(shared, rows, state, _padded(grads, size, rows.dtype))
        return [array[: len(local)] for array in new]

    def write(self, local: np.ndarray, new: Sequence[np.ndarray], version: int) -> None:
        """Stores rows and their state.

        Args:
          local: Rows, each once, `[n]`.
          new: Parameters, then states, each `[n, ...]`.
          version: How many updates they have seen now.
        """
        for array, rows in zip(self.arrays, new, strict=True):
            array[local] = rows
        if self.seen is not None:
            self.seen[local] = version

    def catch_up(self, history: History, local: np.ndarray | None = None) -> None:
        """Makes up for the updates that some rows, or all, were left out of: each had a zero gradient there.

        Args:
          history: Shared values of past updates.
          local: Rows, each once, `[n]`; None for all.
        """
        if self.seen is None:
            return
        seen = self.seen if local is None else self.seen[local]
        late = np.flatnonzero(seen < history.version)
        if not len(late):
            return
        lag = history.version - seen[late]
        late = late if local is None else local[late]
        # Rows of similar lag go together: a group does at most twice the updates that its rows need.
        group = np.frexp(lag.astype(np.float64))[1]
        for g in np.unique(group):
            rows = late[group == g]
            for start in range(0, len(rows), CHUNK):
                self._catch_up(history, rows[start : start + CHUNK])

    def _catch_up(self, history: History, local: np.ndarray) -> None:
        size = padded_size(len(local))
        first = np.full(size, history.length, np.int32)
        first[: len(local)] = self.seen[local] - history.base  # type: ignore[index] # faithful: there are counts
        rows, *state = self._take(local, size)
        new = self.kernels.catch_up(history.values, first, history.length, rows, state)
        self.write(local, [array[: len(local)] for array in new], history.version)

    def _take(self, local: np.ndarray, size: int) -> list[np.ndarray]:
        """Fresh arrays of rows and states, padded with the last row."""
        places = np.concatenate([local, np.full(size - len(local), local[-1])])
        return [array[places] for array in self.arrays]


def array_types(rule: RowRule) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shape of a row and dtype of each array that a partition keeps: parameters, then states."""
    return [(rule.shape, rule.dtype), *((state.shape, state.dtype) for state in rule.state)]


def _allocate(file: Path | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if file is None or 0 in shape:
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(file, dtype, "w+", shape=shape))


def _padded(grads: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
    result = np.zeros((size, *grads.shape[1:]), dtype)
    result[: len(grads)] = grads
    return result
