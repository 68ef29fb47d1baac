"""Sequences of sequences the other way round, as the columns of a matrix of all pairs are: elements of the second axis, each with one of each of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.draft.long_axes import is_known_length, long_axis
from ampjax.frontend.draft.row_origins import RowOrigin
from ampjax.frontend.draft.values import Constant, Elements


def turned(
    body: Body,
    values: Sequence[Value],
    kinds: Sequence[Any],
    axes: Sequence[int | None],
) -> list[Value] | None:
    """Values whose elements are those of given axes; None where that can't be.

    Args:
      body: Where.
      values: The values.
      kinds: Their types.
      axes: For each value the axis, or None where it does not matter.
    """
    found: list[Value] = []
    for value, kind, axis in zip(values, kinds, axes, strict=True):
        if axis is None or axis == long_axis(kind):
            found.append(value)
            continue
        long = [number for number, size in enumerate(kind.shape) if not is_known_length(size)]
        other = _other_way_round(body, value) if long[1:2] == [axis] else None
        if other is None:
            return None
        found.append(other)
    return found


def _other_way_round(body: Body, value: Value) -> Elements | None:
    """A sequence of sequences with both in the other order; None where the inner ones are not the same sequence for all elements."""
    if not isinstance(value, Elements) or not isinstance(value.element, Elements):
        return None
    low = body.low
    rows = value.element.space
    original = low.original(rows)
    if original is rows or original.parent not in body.space.around():
        return None
    outer = low.copied(Elements(original, Constant(0)), body.space).space
    inner = low.copied(Elements(value.space, Constant(0)), outer).space
    first = value.space

    def every(data: Any) -> np.ndarray:
        return some(data, np.arange(inner.n_rows(data)))

    def some(data: Any, at: np.ndarray) -> np.ndarray:
        column = inner.parents_of(data, at)
        number = at - inner.starts(data)[column]
        row = first.starts(data)[outer.parents(data)[column]] + number
        return rows.starts(data)[row] + outer.numbers(data)[column]

    origin = RowOrigin(inner, every, some)
    element = low.value_at(value.element.element, rows, inner, origin, ("other way", rows))
    return Elements(outer, Elements(inner, element))
