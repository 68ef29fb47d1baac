"""The choice between a table and a dense array: the rule of hybrid runners and of nodes of graphs (Parallax §3.1, alpha)."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

ALPHA_THRESHOLD = 0.4
"""A touched row of a table costs about two and a half times as much as a row of a dense update, so at this share both take as long."""

WHAT_ALPHA_DOES = "1 or less keeps dense what is touched that much."
"""For errors."""


class TableOrDense(NamedTuple):
    """A choice between a table and a dense array.

    Args:
      is_table: Whether the rows go into a table.
      why: The reason, in a few words.
      is_too_large: Whether the reason is the size.
    """

    is_table: bool
    why: str
    is_too_large: bool = False


def table_or_dense(
    alpha: float,
    dtype: np.dtype,
    threshold: float = ALPHA_THRESHOLD,
    dense_bytes: int = 0,
    room: int | None = None,
) -> TableOrDense:
    """Chooses the place of rows that are read one by one: a table if updates touch few rows, or if the rows don't fit a device.

    Args:
      alpha: The share of the rows that an update touches (`touched_share`).
      dtype: Their dtype.
      threshold: Rows stay dense from this share on.
      dense_bytes: Bytes that they would take on a device, with what belongs to them there.
      room: Bytes that a device has for them; None if it is not known.

    Returns:
      The choice, and why.

    >>> table_or_dense(0.02, np.dtype("float32"))
    TableOrDense(is_table=True, why='alpha 0.02 is below 0.4', is_too_large=False)
    """
    if dtype.itemsize > 4:
        return TableOrDense(False, f"tables hold no rows of {dtype}")
    if alpha < threshold:
        return TableOrDense(True, f"alpha {alpha:.3g} is below {threshold:g}")
    if room is not None and dense_bytes > room:
        return TableOrDense(
            True, f"{dense_bytes:,} bytes do not fit into a device's {room:,}", True
        )
    return TableOrDense(False, f"alpha {alpha:.3g} is at least {threshold:g}")


def touched_share(n_touched: Collection[int], n_rows: int) -> float:
    """Alpha: the share of its rows that an update touches, the mean over some updates, or over replicas.

    Args:
      n_touched: How many rows each of them touches.
      n_rows: Rows in all.

    Returns:
      A number from 0 to 1.
    """
    return float(np.mean([*n_touched])) / n_rows
