"""Reads whose transpose is a read: where few rows read each row, the host lists the readers, and no cotangents are added up in place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from ampjax.frontend.batches.programs_of_rows import taken
from ampjax.frontend.batches.row_tables import RowTables, by_batch
from ampjax.frontend.loops.table_passes import count_readers, list_readers, wide
from ampjax.jaxprs.primitives import is_inexact
from ampjax.lanes.rewriting.linear_pairs import linear_pair

MOST_READERS = 4
"""Where a row has more readers, cotangents are added where they lie."""


def inverse(
    wanted: np.ndarray,
    n: int,
    tables: RowTables,
    key: Hashable,
) -> np.ndarray:
    """Lists the numbers of each row's reads, `[batches, n, most]`, one more than the last for none; no column where some row has many.

    Args:
      wanted: `[batches, ..., reads]`: the row that each read wants; below 0 for none.
      n: How many rows there are.
      tables: The tables, which keep the number of columns.
      key: What the number of columns is the size of.
    """
    wanted = by_batch(wide(wanted))
    n_batches, n_reads = wanted.shape
    counts = np.zeros((n_batches, n), np.int64)
    most = tables.at_least(
        key,
        count_readers(wanted, counts),
    )
    if most > MOST_READERS:
        return np.zeros((n_batches, n, 0), np.int32)
    readers = np.full(
        (n_batches, n, most),
        n_reads,
        np.int32,
    )
    list_readers(wanted, np.zeros_like(counts), readers)
    return readers


def read(
    values: Any,
    at: Any,
    readers: Any,
) -> Any:
    """Rows by their numbers, of which each is read by few.

    Args:
      values: `[n, ...]`.
      at: `[reads]`: the number of each one's row.
      readers: `[n, most]`: for each row, which reads it has; one more than the last for none. No column, or None, where rows may have many.
    """
    few = readers is not None and readers.shape[1] and len(values) and len(at)
    if not few or not is_inexact(values.dtype):
        return taken(values, at)
    result = jax.ShapeDtypeStruct(
        (len(at), *values.shape[1:]),
        values.dtype,
    )

    def forward(given: Sequence[Any], linear: Sequence[Any]) -> list[Any]:
        return [taken(linear[0], given[0])]

    def backward(given: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        own = given[1]
        total = None
        for number in range(own.shape[1]):
            cotangent = (
                cotangents[0]
                .at[own[:, number]]
                .get(
                    mode="fill",
                    fill_value=0,
                )
            )
            total = cotangent if total is None else total + cotangent
        return [total]

    return linear_pair(
        forward,
        backward,
        [at, readers],
        [values],
        [result],
    )[0]
