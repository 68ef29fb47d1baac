"""Duplicates out of a step's row ids, on the host: each row is pulled once, and its gradients are summed on the device."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int

from ampjax.errors import SettingsError
from ampjax.sparse.rows.aligned_arrays import aligned_empty

MARKED_ROWS = 1 << 10
"""Up to so many rows of the table for each id, marking rows is quicker than sorting ids."""
MARKED_IDS = 1 << 8
"""From so many ids on rows are marked, by compiled loops; fewer are not worth an import of Numba."""


@dataclasses.dataclass(frozen=True)
class UniqueRows:
    """The rows that a step needs of one table.

    Args:
      ids: int `[k]`, ascending, without duplicates, each a row of the table.
      inverse: int32 `[n]`: where in `ids` each of the step's ids lies; k where no row is read.
    """

    ids: Int[np.ndarray, " k"]
    inverse: Int[np.ndarray, " n"]


def unique_rows(
    ids: Int[np.ndarray, " n"],
    n_rows: int,
) -> UniqueRows:
    """Finds the rows behind a step's ids.

    Args:
      ids: int `[n]` as the program of ids gives them, in `[0, n_rows]`; `n_rows` stands where no row is read.
      n_rows: The table's rows.

    Returns:
      The distinct rows, and where each id lies among them.

    Raises:
      SettingsError: If an id is outside that range.

    >>> rows = unique_rows(np.array([7, 3, 100, 7]), n_rows=100)
    >>> rows.ids.tolist(), rows.inverse.tolist()
    ([3, 7], [1, 0, 2, 1])
    """
    ids = np.asarray(ids)
    if ids.size and not 0 <= (low := ids.min()) <= (high := ids.max()) <= n_rows:
        wrong = low if low < 0 else high
        raise SettingsError(
            "row ids",
            f"numbers in [0, {n_rows}]",
            f"{wrong}",
            "Take them from the program's `ids`.",
        )
    if ids.size >= MARKED_IDS and n_rows <= MARKED_ROWS * ids.size:
        distinct, inverse = _mark_ids(ids, n_rows)
    else:
        distinct, inverse = np.unique(ids, return_inverse=True)
    if distinct.size and distinct[-1] == n_rows:
        distinct = distinct[:-1]
    return UniqueRows(
        distinct,
        inverse.reshape(-1).astype(np.int32, copy=False),
    )


def _mark_ids(
    ids: np.ndarray,
    n_rows: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the results of `np.unique` without sorting: each id marks its row, and the marked rows are numbered."""
    from ampjax.sparse.rewrite.unique_loops import SHIFT, number_rows

    n_words = (n_rows >> SHIFT) + 1
    marks = np.zeros(n_words, np.uint32)
    before = np.empty(n_words, np.int32)
    distinct = np.empty(ids.size, ids.dtype)
    inverse = np.empty(ids.size, np.int32)
    n = number_rows(ids.reshape(-1), marks, before, distinct, inverse)
    return distinct[:n], inverse


def pulled_size(k: int) -> int:
    """The next size at which rows are pulled: 8, 12, 16, 24, 32, 48, ... So few sizes are compiled.

    At most a third of the rows is padding (beyond 8), and up to n ids there are 2 log2(n) sizes.

    >>> [pulled_size(k) for k in (0, 8, 9, 13, 25, 800)]
    [8, 8, 12, 16, 32, 1024]
    """
    power = 8
    while power < k:
        if power * 3 // 2 >= k:
            return power * 3 // 2
        power *= 2
    return power


def pad_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """Appends rows of zeros.

    The step never reads the zeros, so their gradients are zero.

    Args:
      rows: `[k, *row]`.
      size: At least k.

    Returns:
      `[size, *row]`.
    """
    padded = aligned_empty(
        (size, *rows.shape[1:]),
        rows.dtype,
    )
    padded[: len(rows)] = rows
    padded[len(rows) :] = 0
    return padded
