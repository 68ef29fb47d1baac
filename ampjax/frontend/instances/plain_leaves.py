"""Leaves of many examples in a few passes over all examples: arrays, lists and numbers, as in most data sets.

Whatever is unusual is left to the way that goes example by example (`LeafSpec.read`), and so is what is wrong: that way says in which example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from ampjax.frontend.combinators.structures import Ragged

_MISSING = (KeyError, AttributeError, IndexError, TypeError)
"""What a look-up raises where an example lacks a part."""


def plain_rows(
    instances: Sequence[Any],
    keys: Sequence[Any],
    n_dimensions: int,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Reads the values of a leaf in all instances, one after the other, and counts the elements along each named dimension.

    Args:
      instances: The instances.
      keys: The leaf's path.
      n_dimensions: How many named dimensions it has.
      shape: The shape of a row.

    Returns:
      `[rows, *shape]` in the data's dtype, and for each dimension how many elements each row of the dimension before has; None where something
      is unusual or wrong.
    """
    values = _find_leaves(instances, keys)
    if values is None:
        return None
    sizes: list[np.ndarray] = []
    for left in range(n_dimensions, 0, -1):
        kinds = {*map(type, values)}
        if kinds == {Ragged} and left == 2:
            return _join_ragged(values, shape, sizes)
        if kinds == {np.ndarray} and left == 1:
            return _join_sequences(values, shape, sizes)
        if not kinds <= {list, tuple}:
            return None
        sizes.append(_lengths(values))
        values = [*chain.from_iterable(values)]
    rows = _stack_leaves(values, shape)
    if rows is None:
        return None
    return rows, sizes


def _find_leaves(
    instances: Sequence[Any],
    keys: Sequence[Any],
) -> list[Any] | None:
    """Looks a path up in all instances; None if an instance lacks the path, or has a list of structures there."""
    values: Iterable[Any] = instances
    for key in keys:
        name = getattr(key, "name", None)
        if name is None:
            number = getattr(key, "idx", None)
            look_up = itemgetter(getattr(key, "key", number))
        else:
            look_up = attrgetter(str(name))
        before = [*values]
        if not isinstance(getattr(key, "idx", None), int) and _any_list(before):
            return None
        try:
            values = [*map(look_up, before)]
        except _MISSING:
            return None
    return [*values]


def _any_list(values: Sequence[Any]) -> bool:
    return any(issubclass(kind, list) for kind in {*map(type, values)})


def _lengths(values: Sequence[Any]) -> np.ndarray:
    return np.fromiter(
        map(len, values),
        np.int64,
        len(values),
    )


def _join_ragged(
    values: Sequence[Ragged],
    shape: tuple[int, ...],
    sizes: list[np.ndarray],
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Joins sequences of sequences, each of which is one array."""
    arrays = [each.values for each in values]
    if {*map(type, arrays)} != {np.ndarray}:
        return None
    columns = [np.asarray(each.sizes) for each in values]
    inner = np.concatenate(columns).astype(np.int64)
    return _join_rows(arrays, shape, [*sizes, _lengths(columns), inner])


def _join_sequences(
    arrays: Sequence[np.ndarray],
    shape: tuple[int, ...],
    sizes: list[np.ndarray],
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Joins arrays, each of which has a sequence."""
    try:
        lengths = _lengths(arrays)
    except TypeError:  # a number
        return None
    return _join_rows(arrays, shape, [*sizes, lengths])


def _join_rows(
    arrays: Sequence[Any],
    shape: tuple[int, ...],
    sizes: list[np.ndarray],
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Joins arrays of rows; None unless all are of one dtype and of rows of the shape, not all empty."""
    dtypes = {*map(attrgetter("dtype"), arrays)}
    if len(dtypes) != 1:
        return None
    try:
        rows = np.concatenate(arrays)
    except ValueError:
        return None
    if rows.shape[1:] != shape or not len(rows):
        return None
    return rows, sizes


def _stack_leaves(
    values: Sequence[Any],
    shape: tuple[int, ...],
) -> np.ndarray | None:
    """Stacks numbers, or arrays of a shape; None unless all are of one type and dtype."""
    kinds = {*map(type, values)}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is np.ndarray:
        return _stack_arrays(values, shape)
    if shape or not issubclass(kind, bool | int | float | np.generic):
        return None
    dtype = np.dtype(kind)
    if dtype.kind not in "biufc":
        return None
    try:
        return np.fromiter(
            values,
            dtype,
            len(values),
        )
    except OverflowError:  # NumPy gives each large integer a dtype of its own
        return None


def _stack_arrays(
    values: Sequence[Any],
    shape: tuple[int, ...],
) -> np.ndarray | None:
    shapes = {*map(attrgetter("shape"), values)}
    dtypes = {*map(attrgetter("dtype"), values)}
    if not shape or shapes != {shape}:
        return None
    if len(dtypes) != 1:
        return None
    return np.concatenate(values).reshape(len(values), *shape)
