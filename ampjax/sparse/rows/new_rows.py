"""Rows that begin anew: checks of their values, and their first optimizer state."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.errors import TableError
from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows.row_gradients import check_finite
from ampjax.sparse.rows.row_kernels import kernels_for, padded_size


def checked_new_rows(
    values: Any,
    ids: np.ndarray,
    rule: RowRule,
    call: str,
) -> np.ndarray:
    """Checks new values of rows.

    Args:
      values: What came.
      ids: Their rows, `[n]`.
      rule: The optimizer's rule for the table.
      call: The caller's name, for messages.

    Returns:
      An array of its own, `[n, *row]`, in the table's dtype.

    Raises:
      TableError: If a row is there twice, or the values have another shape, are no real numbers, or are not finite.
    """
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise TableError(
            f"{call}, row ids",
            "each row once",
            f"{rule.row_name(int(distinct[counts > 1][0]))} {counts.max()} times",
            "Say which of the values it shall have.",
        )
    array = np.asarray(values)
    shape = (len(ids), *rule.shape)
    if array.shape != shape:
        raise TableError(
            f"{call}, values",
            f"shape {shape}",
            f"{array.shape}",
            "Give one row of values for each id.",
        )
    # NumPy gives JAX's short floats the kind of raw bytes.
    if array.dtype.kind not in "fiuV":
        fix = "Cast them with `.astype(np.float32)`."
        raise TableError(f"{call}, values", "real numbers", f"{array.dtype}", fix)
    rows = np.array(array, rule.dtype, order="C")
    return check_finite(rows, ids, f"{call}, values", rule.row_name)


def first_states(rows: np.ndarray, rule: RowRule) -> list[np.ndarray]:
    """Makes the first optimizer state of some rows.

    Args:
      rows: `[n, *row]`, at least one.
      rule: The optimizer's rule.

    Returns:
      The states, `[n, ...]` each, in the rule's order.
    """
    # Few shapes, few compilations: the last row fills what is left.
    padded = np.empty(
        (padded_size(len(rows)), *rows.shape[1:]),
        rows.dtype,
    )
    padded[: len(rows)] = rows
    padded[len(rows) :] = rows[-1]
    return [state[: len(rows)] for state in kernels_for(rule).init(padded)]
