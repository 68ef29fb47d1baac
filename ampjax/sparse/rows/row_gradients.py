"""Checks of row ids and row gradients that come from outside, and the sum of duplicates. Changes nothing that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampjax.errors import TableError


def checked_ids(row_ids: Any, n_rows: int, call: str) -> np.ndarray:
    """Row ids as an int64 array `[n]`.

    Raises:
      TableError: If they are no integers, not one-dimensional, or outside `[0, n_rows)`.
    """
    ids = np.asarray(row_ids)
    if not ids.size:
        ids = ids.astype(np.int64)  # an empty list is float64 to NumPy
    if not np.issubdtype(ids.dtype, np.integer):
        raise TableError(
            f"{call}, row ids", "integers", f"{ids.dtype}", "Cast them, or look for a computation that made floats."
        )
    if ids.ndim != 1:
        raise TableError(f"{call}, row ids", "one axis, [n]", f"shape {ids.shape}", "Flatten them with `.reshape(-1)`.")
    outside = np.flatnonzero((ids < 0) | (ids >= n_rows))
    if len(outside):
        first = outside[0]
        raise TableError(
            f"{call}, row ids", f"ids in [0, {n_rows})", f"{ids[first]} at place {first}, and {len(outside) - 1} more outside",
            "A negative id does not count from the end; clip or mask ids before the call.",
        )  # fmt: skip
    return ids.astype(np.int64, copy=False)


def checked_grads(
    row_grads: Any, ids: np.ndarray, row: tuple[int, ...], dtypes: tuple[np.dtype, ...], call: str
) -> np.ndarray:
    """Row gradients as an array `[n, *row]`.

    Args:
      row_grads: What came.
      ids: Their rows, `[n]`.
      row: The shape of one row.
      dtypes: What is taken.
      call: The caller's name, for messages.

    Raises:
      TableError: If the shape or the dtype is wrong, or something is not finite.
    """
    grads = np.asarray(row_grads)
    if grads.shape != (shape := (len(ids), *row)):
        raise TableError(
            f"{call}, gradients", f"shape {shape}", f"{grads.shape}", "Give one row of gradients for each id."
        )
    if grads.dtype not in dtypes:
        names = " or ".join(dict.fromkeys(str(dtype) for dtype in dtypes))
        raise TableError(f"{call}, gradients", names, f"{grads.dtype}", f"Cast them with `.astype('{dtypes[0]}')`.")
    return check_finite(grads, ids, f"{call}, gradients")


def check_finite(rows: np.ndarray, ids: Sequence[int] | np.ndarray, where: str) -> np.ndarray:
    """The rows themselves.

    Args:
      rows: `[n, *row]`.
      ids: What each of them is called, `[n]`.
      where: For messages.

    Raises:
      TableError: If a number is NaN or infinite.
    """
    if np.isfinite(rows).all():
        return rows
    bad = ~np.isfinite(rows)
    first = int(np.flatnonzero(bad.reshape(len(rows), -1).any(1))[0])
    value = rows[first][bad[first]].flat[0]
    raise TableError(
        where,
        "finite numbers",
        f"{value} in row {ids[first]}",
        "Look at the loss: a smaller step or clipping may help.",
    )


def sum_duplicates(row_ids: np.ndarray, grads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each id once, in rising order, with the sum of its gradients, formed in float32 at least.

    Args:
      row_ids: `[n]`, integers.
      grads: `[n, *row]`.

    Returns:
      Ids `[m]` and sums `[m, *row]`; fresh arrays, or the arguments where there was nothing to do.
    """
    if _is_rising(row_ids):
        return row_ids, grads
    order = np.argsort(row_ids, kind="stable")
    row_ids, grads = row_ids[order], grads[order]
    starts = np.flatnonzero(np.concatenate(([True], row_ids[1:] != row_ids[:-1])))
    return row_ids[starts], grads if len(starts) == len(grads) else _sums(grads, starts)


def _sums(grads: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums of consecutive rows that start at `starts`; single rows, mostly the most, are not summed but copied."""
    counts = np.diff(starts, append=len(grads))
    result = grads[starts].astype(np.result_type(grads.dtype, np.float32), copy=False)
    several = counts > 1
    rows = grads[np.repeat(several, counts)].astype(result.dtype, copy=False)
    result[several] = np.add.reduceat(rows, np.cumsum(counts[several]) - counts[several], axis=0)
    return result


def _is_rising(row_ids: np.ndarray) -> bool:
    return bool((row_ids[1:] > row_ids[:-1]).all())
