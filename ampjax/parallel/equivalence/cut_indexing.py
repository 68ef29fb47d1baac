"""Rules for reads and writes of cut values by index: gathers, scatters, slices that begin anywhere. See `cut_rules`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ampjax.jaxprs.primitives import applies_function
from ampjax.parallel.equivalence.cut_rules import Pair
from ampjax.parallel.equivalence.cuts import ONE, Cut, Value, add


def _gather(pair: Pair) -> Value:
    operand, indices = pair.cuts
    if indices.scale != ONE:
        return None
    if operand.kind == "total":
        fills = pair.params["mode"] is jax.lax.GatherScatterMode.FILL_OR_DROP
        return operand if indices.kind == "same" and not fills else None
    if operand.kind == "same":
        if indices.kind == "rows":
            return _rows(operand, _batch_axes(pair), indices.axis, indices.order)
        return Cut("same", operand.scale) if indices.kind == "same" else None
    return _gather_rows(pair, operand, indices) if operand.kind == "rows" else None


def _batch_axes(pair: Pair) -> list[int]:
    """The axes of a gather's result along which the indices lie."""
    offsets = pair.params["dimension_numbers"].offset_dims
    return [a for a in range(len(pair.out)) if a not in offsets]


def _gather_rows(
    pair: Pair,
    operand: Cut,
    indices: Cut,
) -> Value:
    """Reads from rows of the examples: with own indices of each example, of its own rows, or whole rows."""
    numbers = pair.params["dimension_numbers"]
    axis = operand.axis
    if axis in numbers.operand_batching_dims:
        number = list(numbers.operand_batching_dims).index(axis)
        indices_axis = numbers.start_indices_batching_dims[number]
        if (indices.kind, indices.axis, indices.order) == ("rows", indices_axis, operand.order):
            return _rows(operand, _batch_axes(pair), indices_axis, operand.order)
        return None
    if axis in numbers.start_index_map:
        indices_axis = _own_place(indices, list(numbers.start_index_map).index(axis))
        is_one = axis in numbers.collapsed_slice_dims and not operand.order
        return (
            _rows(operand, _batch_axes(pair), indices_axis)
            if is_one and indices_axis is not None
            else None
        )
    if indices.kind != "same" or pair.params["slice_sizes"][axis] != pair.shape()[axis]:
        return None
    windows = _windows(pair, numbers.collapsed_slice_dims)
    target = numbers.offset_dims[windows.index(axis)]
    return dataclasses.replace(operand, axis=target, number=None)


def _windows(
    pair: Pair,
    left_out: Sequence[int],
) -> list[int]:
    """The axes of the operand along which a window lies."""
    batch = pair.params["dimension_numbers"].operand_batching_dims
    return [a for a in range(len(pair.shape())) if a not in (*left_out, *batch)]


def _rows(
    operand: Cut,
    batch: Sequence[int],
    axis: int,
    order: Any = (),
) -> Value:
    if axis < len(batch):
        return Cut("rows", operand.scale, batch[axis], order=order)
    return None


def _own_place(indices: Cut, column: int) -> int | None:
    """Finds the axis of the examples, if a column of the indices holds each example's own number, and the other columns belong to the same examples."""
    columns = indices.columns or (indices,)
    if column >= len(columns) or columns[column].kind != "place":
        return None
    axis = columns[column].axis
    others = [c for i, c in enumerate(columns) if i != column]
    fits = all(c.is_plain and (c.kind == "same" or (c.axis, c.order) == (axis, ())) for c in others)
    return axis if fits else None


def _scatter(pair: Pair) -> Value:
    operand, indices, updates = pair.cuts
    if indices.scale != ONE or {operand.order, indices.order, updates.order} != {()}:
        return None
    is_linear = pair.part.primitive.name in _LINEAR and not applies_function(pair.part)
    if not is_linear and not (operand.is_plain and updates.is_plain):
        return None
    if operand.kind == "same":
        return _into_one(pair, operand, indices, updates, _outer_axes(pair))
    if operand.kind == "rows":
        fits = updates.kind == "rows" and updates.axis == _written_axis(pair, operand, indices)
        return _write_rows(operand, updates) if fits else None
    if indices.kind == "same" and operand.kind == "total":
        return add([operand, updates], pair.n)
    return None


def _outer_axes(pair: Pair) -> list[int]:
    """The axes of a scatter's updates along which the indices lie."""
    windows = pair.params["dimension_numbers"].update_window_dims
    return [a for a in range(len(pair.shape(2))) if a not in windows]


def _written_axis(
    pair: Pair,
    operand: Cut,
    indices: Cut,
) -> int | None:
    """Finds the axis of the updates whose rows go to the rows of the same examples; None if examples may write to rows of others."""
    numbers = pair.params["dimension_numbers"]
    axis = operand.axis
    if axis in numbers.operand_batching_dims:
        number = list(numbers.operand_batching_dims).index(axis)
        indices_axis = numbers.scatter_indices_batching_dims[number]
        is_same = (indices.kind, indices.axis) == ("rows", indices_axis)
        return _outer_axes(pair)[indices_axis] if is_same else None
    if axis in numbers.scatter_dims_to_operand_dims:
        indices_axis = _own_place(indices, list(numbers.scatter_dims_to_operand_dims).index(axis))
        if indices_axis is None or axis not in numbers.inserted_window_dims:
            return None
        return _outer_axes(pair)[indices_axis]
    windows = _windows(pair, numbers.inserted_window_dims)
    if indices.kind != "same" or axis not in windows:
        return None
    indices_axis = numbers.update_window_dims[windows.index(axis)]
    return indices_axis if pair.shape(2)[indices_axis] == pair.shape()[axis] else None


def _into_one(
    pair: Pair,
    operand: Cut,
    indices: Cut,
    updates: Cut,
    outer: Sequence[int],
) -> Value:
    """Writes into a value that is the same for all parts. A sum over examples into zeros is a total."""
    if indices.kind == "same" and updates.kind == "same":
        if operand.scale == ONE or operand.number == 0:
            return add([operand, updates], pair.n)
        return None
    is_sum = pair.part.primitive.name in ("scatter-add", "scatter_add") and operand.number == 0
    of_examples = indices.kind == "rows" and updates.kind == "rows" and indices.axis < len(outer)
    if is_sum and of_examples and updates.axis == outer[indices.axis]:
        return Cut("total", updates.scale)
    return None


def _write_rows(operand: Cut, updates: Cut) -> Value:
    """Rows of which some numbers are others now."""
    if operand.scale == updates.scale or operand.number == 0:
        return Cut("rows", operand.scale, operand.axis)
    return None


def _dynamic_slice(pair: Pair) -> Value:
    operand, *starts = pair.cuts
    if any(start.kind != "same" or start.scale != ONE for start in starts):
        return None
    if operand.kind != "rows":
        return operand if operand.kind in ("same", "total") else None
    if pair.out[operand.axis] == pair.shape()[operand.axis]:
        return operand
    return None


def _dynamic_update(pair: Pair) -> Value:
    operand, update, *starts = pair.cuts
    if any(start.kind != "same" or start.scale != ONE for start in starts) or operand.kind not in (
        "same",
        "rows",
    ):
        return None
    is_whole = operand.kind == "same" or pair.shape(1)[operand.axis] == pair.shape()[operand.axis]
    if is_whole and update.kind == operand.kind:
        return add([operand, update], pair.n)
    return None


_LINEAR = ("scatter", "scatter-add", "scatter_add", "scatter-sub")
"""Writes of which multiples make multiples, and totals totals."""

INDEXING: dict[str, Callable[[Pair], Any]] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    **dict.fromkeys((*_LINEAR, "scatter-mul", "scatter_mul"), _scatter),
    **dict.fromkeys(("scatter-min", "scatter_min", "scatter-max", "scatter_max"), _scatter),
}
"""By primitive its rule."""
