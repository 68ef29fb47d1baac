"""Checks of row ids and row gradients that come from outside; no input is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ampjax.errors import TableError
from ampjax.optim.row_rule import RowRule
from ampjax.optim.row_sums import sum_duplicates


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
            f"{call}, row ids",
            "integers",
            f"{ids.dtype}",
            "Cast them, or look for a computation that made floats.",
        )
    if ids.ndim != 1:
        raise TableError(
            f"{call}, row ids",
            "one axis, [n]",
            f"shape {ids.shape}",
            "Flatten them with `.reshape(-1)`.",
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < n_rows:
        outside = np.flatnonzero((ids < 0) | (ids >= n_rows))
        first = outside[0]
        others = f", and {len(outside) - 1} more outside" if len(outside) > 1 else ""
        raise TableError(
            f"{call}, row ids", f"ids in [0, {n_rows})", f"{ids[first]} at place {first}{others}",
            "A negative id does not count from the end; clip or mask ids before the call.",
        )  # fmt: skip
    return ids.astype(np.int64, copy=False)


def checked_grads(
    row_grads: Any,
    ids: np.ndarray,
    rule: RowRule,
    dtypes: tuple[np.dtype, ...],
    call: str,
) -> np.ndarray:
    """Row gradients as an array `[n, *row]`.

    Args:
      row_grads: What came.
      ids: Their rows, `[n]`.
      rule: The optimizer's rule for the table.
      dtypes: What is taken.
      call: The caller's name, for messages.

    Raises:
      TableError: If the shape or the dtype is wrong, or something is not finite, unless the rule takes that.
    """
    grads = np.asarray(row_grads)
    if grads.shape != (shape := (len(ids), *rule.shape)):
        raise TableError(
            f"{call}, gradients",
            f"shape {shape}",
            f"{grads.shape}",
            "Give one row of gradients for each id.",
        )
    if grads.dtype not in dtypes:
        names = " or ".join(dict.fromkeys(str(dtype) for dtype in dtypes))
        raise TableError(
            f"{call}, gradients",
            names,
            f"{grads.dtype}",
            f"Cast them with `.astype('{dtypes[0]}')`.",
        )
    if not rule.check_finite:
        return grads
    return check_finite(grads, ids, f"{call}, gradients", rule.row_name)


def ready_to_push(
    ids: np.ndarray, row_grads: Any, rule: RowRule, wire: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Checks one client's row gradients, sums them row by row, and casts them to the dtype of the wire.

    Args:
      ids: Rows, `[n]`, int64.
      row_grads: What came of them.
      rule: The optimizer's rule for the table.
      wire: The dtype in which gradients travel.

    Returns:
      Rising ids `[m]`, and their gradients `[m, *row]` in that dtype.

    Raises:
      TableError: If the shape or the dtype is wrong, or something is not finite, unless the rule takes that.
    """
    grads = checked_grads(
        row_grads,
        ids,
        rule,
        (rule.dtype, wire, np.dtype(np.float32)),
        "push",
    )
    ids, sums = sum_duplicates(ids, grads)
    sums = sums.astype(wire, copy=False)
    if rule.check_finite and sums is not grads:  # a sum or a cast may overflow
        check_finite(sums, ids, "push, gradients", rule.row_name)
    return ids, sums


def check_finite(
    rows: np.ndarray,
    ids: Sequence[int] | np.ndarray,
    where: str,
    row_name: Callable[[int], str] = "row {}".format,
) -> np.ndarray:
    """The rows themselves.

    Args:
      rows: `[n, *row]`.
      ids: Their numbers, `[n]`.
      where: For messages.
      row_name: What a row of some number is called.

    Raises:
      TableError: If a number is NaN or infinite.
    """
    if np.isfinite(rows).all():
        return rows
    first = int(np.flatnonzero(_are_bad(rows))[0])
    raise _not_finite(where, _bad_number(rows[first]), row_name(int(ids[first])))


def refuse_new_rows(
    rows: np.ndarray,
    grads: np.ndarray,
    ids: np.ndarray,
    row_name: Callable[[int], str],
) -> NoReturn:
    """Raises the error about new rows with NaN or infinity. It names a row with such a gradient before others, which may be so for its sake.

    Args:
      rows: `[n, *row]`.
      grads: The gradients of which they were made, `[n, *row]`.
      ids: Their numbers, `[n]`.
      row_name: What a row of some number is called.

    Raises:
      TableError: Always.
    """
    bad = _are_bad(rows)
    culprits = bad & _are_bad(grads)
    of_gradient = bool(culprits.any())
    first = int(np.flatnonzero(culprits if of_gradient else bad)[0])
    name = row_name(int(ids[first]))
    if of_gradient:
        name = f"{name}, whose gradient has {_bad_number(grads[first])}"
    raise _not_finite("apply, new rows", _bad_number(rows[first]), name)


def _are_bad(rows: np.ndarray) -> np.ndarray:
    """Bad rows, `[n]`: with a number beyond the finite ones."""
    finite = np.isfinite(rows).reshape(len(rows), -1)
    return np.logical_not(finite.all(axis=1))


def _bad_number(row: np.ndarray) -> Any:
    """The first NaN or infinity of a row."""
    return row[~np.isfinite(row)].flat[0]


def _not_finite(
    where: str,
    value: Any,
    row: str,
) -> TableError:
    """The error that names a number and its row."""
    return TableError(
        where,
        "finite numbers",
        f"{value} in {row}",
        "Look at the loss: a smaller step or clipping may help.",
    )
