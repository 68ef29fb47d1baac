"""Rules for reads and writes of cut values by index: gathers, scatters, slices that begin anywhere. See `cut_rules`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ampjax.parallel.equivalence.cut_rules import Pair
from ampjax.parallel.equivalence.cuts import ONE, Cut, Value, add


def _gather(pair: Pair) -> Value:
    operand, indices = pair.cuts
    numbers = pair.params["dimension_numbers"]
    sizes = pair.params["slice_sizes"]
    if indices.scale != ONE:
        return None
    windows = []
    for a in range(len(pair.shape())):
        if a not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims):
            windows.append(a)
    batch = []
    for a in range(len(pair.out)):
        if a not in numbers.offset_dims:
            batch.append(a)
    if operand.kind == "total":
        is_sum = (
            indices.kind == "same"
            and pair.params["mode"] is not jax.lax.GatherScatterMode.FILL_OR_DROP
        )
        return operand if is_sum else None
    if operand.kind == "same":
        if indices.kind == "rows":
            return _rows(operand, batch, indices.axis, indices.order)
        return Cut("same", operand.scale) if indices.kind == "same" else None
    if operand.kind != "rows":
        return None
    if operand.axis in numbers.operand_batching_dims:
        places = dict(
            zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        )
        is_same = (
            indices.kind == "rows"
            and indices.axis == places[operand.axis]
            and indices.order == operand.order
        )
        if is_same:
            return _rows(operand, batch, indices.axis, operand.order)
        return None
    if operand.axis in numbers.start_index_map:
        axis = _own_place(indices, list(numbers.start_index_map).index(operand.axis))
        is_one = operand.axis in numbers.collapsed_slice_dims and not operand.order
        return _rows(operand, batch, axis) if is_one and axis is not None else None
    is_whole = indices.kind == "same" and sizes[operand.axis] == pair.shape()[operand.axis]
    if is_whole:
        target = numbers.offset_dims[windows.index(operand.axis)]
    else:
        target = 0
    if is_whole:
        return dataclasses.replace(operand, axis=target, number=None)
    return None


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
    numbers = pair.params["dimension_numbers"]
    if indices.scale != ONE or {operand.order, indices.order, updates.order} != {()}:
        return None
    if pair.part.primitive.name not in _LINEAR and not (operand.is_plain and updates.is_plain):
        return None
    written = pair.shape(2)
    outer = [a for a in range(len(written)) if a not in numbers.update_window_dims]
    if operand.kind == "same":
        return _into_one(pair, operand, indices, updates, outer)
    if operand.kind != "rows" or updates.kind not in ("same", "rows"):
        if indices.kind == "same" and operand.kind == "total":
            return add([operand, updates], pair.n)
        return None
    if operand.axis in numbers.operand_batching_dims:
        places = dict(
            zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        )
        axis = places[operand.axis]
        fits = (
            indices.kind == "rows"
            and indices.axis == axis
            and updates.kind == "rows"
            and updates.axis == outer[axis]
        )
        return _write_rows(operand, updates) if fits else None
    if operand.axis in numbers.scatter_dims_to_operand_dims:
        axis = _own_place(indices, list(numbers.scatter_dims_to_operand_dims).index(operand.axis))
        fits = axis is not None and updates.kind == "rows" and updates.axis == outer[axis]
        return (
            _write_rows(operand, updates)
            if fits and operand.axis in numbers.inserted_window_dims
            else None
        )
    windows = []
    for a in range(len(pair.shape())):
        if a not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims):
            windows.append(a)
    if operand.axis in windows:
        own = numbers.update_window_dims[windows.index(operand.axis)]
    else:
        own = -1
    fits = indices.kind == "same" and updates.kind == "rows" and updates.axis == own
    if fits and written[own] == pair.shape()[operand.axis]:
        return _write_rows(operand, updates)
    return None


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
