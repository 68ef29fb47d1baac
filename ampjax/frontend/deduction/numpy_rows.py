"""Operations on all rows of a data set at once in NumPy, with JAX's results: on arrays as on numbers, and moves of arrays of any dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.frontend.deduction.numpy_equations import SAME, numpy_results


def rows_in_numpy(
    source: Any,
    values: Sequence[Any],
    is_column: Sequence[bool],
) -> list[np.ndarray] | None:
    """Computes an operation's results on all rows, if NumPy's equal JAX's; else None.

    Args:
      source: JAX's equation, on one row.
      values: For each operand `[rows, *shape]`, or a value that is the same for all rows.
      is_column: Which operands are columns; one at least.

    Returns:
      A column for each result; None if the operation is not one of these, or rounds.
    """
    direct = numpy_results(source, values)
    if direct is not None:
        return direct
    if len(source.outvars) != 1 or any(_kind(atom) not in "biufc" for atom in _atoms(source)):
        return None
    operands = []
    for value, atom in zip(values, source.invars, strict=True):
        operands.append(np.asarray(value, atom.aval.dtype))
    moved = _move(source, operands, is_column)
    if moved is None:
        moved = _compute(source, operands, is_column)
    if moved is None:
        return None
    return [moved]


def _move(
    source: Any,
    values: Sequence[np.ndarray],
    is_column: Sequence[bool],
) -> np.ndarray | None:
    """The result of an operation that computes nothing."""
    move = _MOVES.get(source.primitive.name)
    if move is None or not is_column[0]:
        return None
    return move(source, values)


def _compute(
    source: Any,
    values: Sequence[np.ndarray],
    is_column: Sequence[bool],
) -> np.ndarray | None:
    """The result of an operation on truth values and integers, or of a choice between floats that is clear."""
    name = source.primitive.name
    kind = source.outvars[0].aval.dtype
    is_whole = all(_kind(atom) in "biu" for atom in _atoms(source))
    is_reduced = name in _REDUCED and is_column[0]
    if is_whole and is_reduced and values[0].size:
        axes = tuple(axis + 1 for axis in source.params["axes"])
        reduced = _REDUCED[name](values[0], axis=axes)
        return np.asarray(reduced, kind)
    if name not in SAME or not _is_by_element(source, is_column):
        return None
    if not is_whole and name not in ("max", "min"):
        return None
    result = np.asarray(SAME[name](*values), kind)
    return result if is_whole or _is_clear(result) else None


def _is_clear(result: np.ndarray) -> bool:
    """Tells whether floats are numbers of which JAX has the same bits: no zeros, which have a sign, and none so small that zero takes their place."""
    if result.dtype.kind != "f":
        return False
    return bool((np.abs(result) >= np.finfo(result.dtype).tiny).all())


def _atoms(source: Any) -> list[Any]:
    return [*source.invars, *source.outvars]


def _kind(atom: Any) -> str:
    return getattr(atom.aval.dtype, "kind", "-")


def _is_by_element(
    source: Any,
    is_column: Sequence[bool],
) -> bool:
    """Tells whether columns have the shape of the result, and other operands that one or none."""
    shape = source.outvars[0].aval.shape
    for atom, is_one in zip(source.invars, is_column, strict=True):
        shape_of_atom = atom.aval.shape
        if shape_of_atom == shape:
            continue
        if is_one or shape_of_atom != ():
            return False
    return True


def _broadcast(
    source: Any,
    values: Sequence[np.ndarray],
) -> np.ndarray | None:
    if len(values) > 1:  # lengths of the result
        return None
    (rows,) = values
    shape = source.outvars[0].aval.shape
    own = [1] * len(shape)
    places = source.params["broadcast_dimensions"]
    sizes = rows.shape[1:]
    for place, size in zip(places, sizes, strict=True):
        own[place] = size
    spread = np.broadcast_to(
        rows.reshape(len(rows), *own),
        (len(rows), *shape),
    )
    return np.array(spread)


def _reshape(
    source: Any,
    values: Sequence[np.ndarray],
) -> np.ndarray | None:
    if len(values) > 1 or source.params["dimensions"] is not None:
        return None
    return _squeeze(source, values)


def _squeeze(
    source: Any,
    values: Sequence[np.ndarray],
) -> np.ndarray:
    (rows,) = values
    shape = source.outvars[0].aval.shape
    return rows.reshape(len(rows), *shape)


def _pad(
    source: Any,
    values: Sequence[np.ndarray],
) -> np.ndarray | None:
    rows, fill = values
    config = source.params["padding_config"]
    slices = [slice(None)]
    sizes = rows.shape[1:]
    for (before, behind, inside), size in zip(config, sizes, strict=True):
        if min(before, behind) < 0 or inside:
            return None
        slices.append(slice(before, before + size))
    if fill.ndim:  # a column
        return None
    shape = source.outvars[0].aval.shape
    padded = np.full((len(rows), *shape), fill)
    padded[tuple(slices)] = rows
    return padded


_MOVES: Mapping[str, Callable[[Any, Sequence[np.ndarray]], np.ndarray | None]] = {
    "broadcast_in_dim": _broadcast,
    "pad": _pad,
    "reshape": _reshape,
    "squeeze": _squeeze,
}
"""Operations that compute nothing."""

_REDUCED: Mapping[str, Callable[..., Any]] = {
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_sum": np.sum,
}
