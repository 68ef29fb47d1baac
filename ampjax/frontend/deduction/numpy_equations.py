"""Operations on columns in NumPy, with JAX's results: on truth values and integers, where nothing is rounded; nothing is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def _largest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Computes `np.maximum`; returns a column unchanged if no entry is below the number."""
    for least, column in ((x, y), (y, x)):
        if not least.ndim and column.size and column.min() >= least:
            return column
    return np.maximum(x, y)


def _smallest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`np.minimum`, likewise."""
    for most, column in ((x, y), (y, x)):
        if not most.ndim and column.size and column.max() <= most:
            return column
    return np.minimum(x, y)


def select(
    which: np.ndarray,
    *cases: np.ndarray,
) -> np.ndarray:
    """One of several columns for each row, of as many as there are: `np.choose` takes 64 at most.

    Args:
      which: `[rows]`: for each row, the column's number; the nearest that there is, for any other.
      *cases: The columns, `[rows]`, or numbers that are the same for all rows.
    """
    which, *columns = np.broadcast_arrays(which, *cases)
    return np.take_along_axis(np.stack(columns), which.clip(0, len(columns) - 1)[None], axis=0)[0]


SAME: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda least, x, most: _smallest(_largest(x, least), most),
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": _largest,
    "min": _smallest,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "or": np.bitwise_or,
    "select_n": lambda which, *cases: (
        np.where(which, *cases[::-1]) if len(cases) == 2 else select(which, *cases)
    ),
    "sub": np.subtract,
}


def numpy_results(
    source: Any,
    values: Sequence[Any],
) -> list[np.ndarray] | None:
    """Computes an operation's results, if NumPy's equal JAX's; else None.

    Args:
      source: JAX's equation, on one row.
      values: For each operand `[rows]`, or a number that is the same for all rows. Rows are numbers.

    Returns:
      A column for each result; None if the operation is not one of these, or works on floats or on arrays.
    """
    if not is_exact(source):
        return None
    (result,) = source.outvars
    name = source.primitive.name
    operands = []
    for value, atom in zip(values, source.invars, strict=True):
        operands.append(np.asarray(value, atom.aval.dtype))
    if name != "convert_element_type":
        return [np.asarray(SAME[name](*operands), result.aval.dtype)]
    return [operands[0].astype(result.aval.dtype)]


@functools.lru_cache(maxsize=4096)
def is_exact(source: Any) -> bool:
    """Tells whether NumPy's result equals JAX's, on one number or on many."""
    name = source.primitive.name
    if len(source.outvars) != 1 or (name not in SAME and name != "convert_element_type"):
        return False
    kinds = [
        (t.shape, t.dtype.kind)
        for t in (*(atom.aval for atom in source.invars), source.outvars[0].aval)
    ]
    if name == "convert_element_type" and kinds[0][1] not in "biu" and kinds[1][1] != "f":
        return False  # what is out of range differs, and bfloat16 is no kind of NumPy's floats
    return all(
        shape == () and (kind in "biu" or name == "convert_element_type") for shape, kind in kinds
    )
