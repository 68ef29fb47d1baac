"""Sums of the gradients of rows that come several times."""

from __future__ import annotations

import numpy as np


def sum_duplicates(
    row_ids: np.ndarray,
    grads: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
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
    row_ids = row_ids[order]
    grads = grads[order]
    starts = np.flatnonzero(np.concatenate(([True], row_ids[1:] != row_ids[:-1])))
    return row_ids[starts], grads if len(starts) == len(grads) else _sums(grads, starts)


def _sums(grads: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums of consecutive rows that start at `starts`; single rows, mostly the most, are not summed but copied."""
    counts = np.diff(starts, append=len(grads))
    result = grads[starts].astype(
        np.result_type(grads.dtype, np.float32),
        copy=False,
    )
    several = counts > 1
    rows = grads[np.repeat(several, counts)].astype(
        result.dtype,
        copy=False,
    )
    result[several] = np.add.reduceat(
        rows,
        np.cumsum(counts[several]) - counts[several],
        axis=0,
    )
    return result


def _is_rising(row_ids: np.ndarray) -> bool:
    return bool((row_ids[1:] > row_ids[:-1]).all())
