"""Equations that read rows of a view or overwrite them: the ids of the rows, and the same read out of pulled rows.

Owns the meaning of one equation's indices and its out-of-range rule. Knows nothing of programs.

JAX's rules for ids outside the table are kept, read by read:

* `clip` (and `dynamic_slice`): the nearest row is read, and gets the gradient.
* `fill`: NaN or the fill value is read; nothing gets a gradient.
* `promise_in_bounds` (plain `table[ids]`): JAX promises nothing. What it does is kept: the nearest row is read, and the
  gradient is dropped.

Negative ids are counted from the end by `jax.numpy`, in equations of their own before the read. Where rows are counted along
several axes, the rule holds for each axis, and an id that is outside along one of them is outside.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives as prim

from ampjax.jaxprs.primitives import applies_function
from ampjax.sparse.detection.table_views import Overwrite, Stop, TableView

GatherMode = jax.lax.GatherScatterMode

MAX_WRITTEN = 256
"""Rows that may be overwritten in a view: each id that is read is compared with each of them."""


def is_read(eqn: Any, view: TableView) -> bool:
    """Tells whether an equation reads whole rows of its first operand: a gather by row ids, or a slice of one row.

    A slice of several rows is none: that is how a matrix is cut in parts, and each step would read the same rows.

    Args:
      eqn: The equation.
      view: The view that is its first operand.
    """
    if (
        eqn.primitive not in (prim.gather_p, prim.dynamic_slice_p, prim.slice_p)
        or not view.row_axes
    ):
        return False
    shape = eqn.invars[0].aval.shape
    is_slice = eqn.primitive is prim.slice_p
    if is_slice:
        taken = eqn.outvars[0].aval.shape
    else:
        taken = eqn.params["slice_sizes"]
    return all(
        n == (size if s is None else 1)
        for n, size, s in zip(taken, shape, view.strides, strict=True)
    )


def read_mode(eqn: Any) -> str:
    """Names a read's treatment of ids outside the table, in JAX's words.

    Returns:
      `clip`, `fill` or `promise_in_bounds`.
    """
    if eqn.primitive is not prim.gather_p:
        return "clip"
    return {GatherMode.FILL_OR_DROP: "fill", GatherMode.CLIP: "clip"}.get(
        eqn.params["mode"], "promise_in_bounds"
    )


def row_ids(
    eqn: Any,
    operands: Sequence[Any],
    n_rows: Mapping[int, int],
) -> dict[int, jax.Array]:
    """The rows that a read touches.

    Args:
      eqn: A read.
      operands: Its operands' values; the first is a view.
      n_rows: By table its rows.

    Returns:
      By segment that is a table's, int32 ids, of any shape. Each is in `[0, n_rows]`: ids outside the table are clipped or, where the read
      fills, replaced by `n_rows`, which means that no row is read; so are ids of other segments, and of overwritten rows.
    """
    view = operands[0]
    number, inside = _numbers(eqn, operands)
    if read_mode(eqn) == "fill":
        number = jnp.where(inside, number, -1)
    for write in view.writes:
        number = jnp.where(
            _hits(number, write).any(-1),
            -1,
            number,
        )
    is_plain = len(view.segments) == 1 and not view.writes and read_mode(eqn) != "fill"
    ids = {}
    for k, (segment, start) in enumerate(zip(view.segments, view.starts, strict=True)):
        if segment.leaf is not None:
            offset = number - start
            is_here = (offset >= 0) & (offset < segment.n_rows)
            ids[k] = offset + segment.first
            if not is_plain:
                ids[k] = jnp.where(
                    is_here,
                    ids[k],
                    n_rows[segment.leaf],
                )
    return ids


def read_rows(
    eqn: Any,
    operands: Sequence[Any],
    positions: Mapping[int, jax.Array],
) -> jax.Array:
    """Computes the result of a read from pulled rows.

    Args:
      eqn: A read.
      operands: Its operands; the first is a view with pulled rows.
      positions: By segment where each of its `row_ids` lies among the pulled rows, int32, of their shape. Anything where no row is read.

    Returns:
      The read's result: values and gradients as from the whole array.
    """
    view = operands[0]
    number, inside = _numbers(eqn, operands)
    rows: Any = None
    for k, (segment, start) in enumerate(zip(view.segments, view.starts, strict=True)):
        if segment.n_rows:
            segment_rows = jnp.take(
                segment.value,
                positions.get(k, number - start),
                axis=0,
                mode="clip",
            )
            if rows is None:
                rows = segment_rows
            else:
                rows = _where(number >= start, segment_rows, rows)
    for write in view.writes:
        hits = _hits(number, write)
        last = hits.shape[-1] - 1 - jnp.argmax(hits[..., ::-1], axis=-1)
        rows = _where(
            hits.any(-1),
            jnp.take(write.values, last, axis=0, mode="clip"),
            rows,
        )
    for stop in view.stops:
        passes = jnp.take(
            stop.mask,
            _number_rows(stop, _index(eqn, operands[1:]), _last_indices(eqn))[0],
            mode="clip",
        )
        rows = _where(passes, rows, _without_gradient(rows, view))
    return _arrange_axes(eqn, _outside(eqn, view, rows, inside), number.ndim)


def is_plain(view: TableView) -> bool:
    """Tells whether a view is a whole table without overwritten rows: reads of several such tables can be made at once."""
    is_whole = len(view.segments) == 1 and view.segments[0].leaf is not None and not view.offset
    return is_whole and not view.writes and not view.stops


class LaneReads:
    """Equal reads of several tables whose rows lie in one, made at once.

    Args:
      eqns: The reads, all gathers, or all slices of one row.
      views: What each of them reads, all plain, with equal strides.
      indices: Values of their other operands, `[n, ...]`, or without the axis of lanes where they are equal.
      axes: By operand 0, or None where it is the same for all.
    """

    def __init__(
        self,
        eqns: Sequence[Any],
        views: Sequence[TableView],
        indices: Sequence[Any],
        axes: Sequence[int | None],
    ):
        self._eqn = eqns[0]
        self._views = views
        last = [_last_indices(eqn) for eqn in eqns]
        bounds = {}
        for a in last[0]:
            bounds[a] = np.array([of_one[a] for of_one in last])

        def numbers(
            bounds: Mapping[int, Any],
            *indices: Any,
        ) -> tuple[jax.Array, jax.Array]:
            return _number_rows(views[0], _index(eqns[0], indices), bounds)

        count = jax.vmap(
            numbers,
            in_axes=(0, *axes),
            axis_size=len(eqns),
        )
        self._number, self._inside = count(bounds, *indices)

    def ids(self, n_rows: int) -> jax.Array:
        """The rows that the reads touch, int32 `[n, *ids]`, as `row_ids` gives them.

        Args:
          n_rows: Rows of the table that holds them all.
        """
        first = np.array(
            [view.segments[0].first for view in self._views],
            np.int32,
        )
        ids = self._number + first.reshape(-1, *[1] * (self._number.ndim - 1))
        if read_mode(self._eqn) == "fill":
            return jnp.where(self._inside, ids, n_rows)
        return ids

    def rows(self, positions: jax.Array) -> jax.Array:
        """The results of the reads, `[n, ...]`.

        Args:
          positions: Where each of the ids lies among the pulled rows, int32, of their shape.
        """
        view = self._views[0]
        rows = jnp.take(
            view.segments[0].value,
            positions,
            axis=0,
            mode="clip",
        )
        rows = _outside(self._eqn, view, rows, self._inside)
        return jax.vmap(lambda of_one: _arrange_axes(self._eqn, of_one, self._number.ndim - 1))(
            rows
        )


def _without_gradient(rows: Any, view: TableView) -> Any:
    """Rows through which no gradient comes. A tangent only counts in its transpose, where a zero drops the gradient."""
    return jnp.zeros_like(rows) if view.is_tangent else jax.lax.stop_gradient(rows)


def write_rows(eqn: Any, operands: Sequence[Any]) -> TableView | None:
    """Builds the view of a scatter's result, if the scatter overwrites a few whole rows of its first operand; else None.

    Args:
      eqn: Any equation.
      operands: Its operands, or what they depend on; the first is a view.

    Returns:
      The view after the write; None for any other equation.
    """
    if (
        eqn.primitive is not prim.scatter_p
        or applies_function(eqn)
        or not isinstance(operands[0], TableView)
        or operands[0].stops
    ):
        return None
    view, numbers, values = operands
    shape = eqn.invars[0].aval.shape
    windows = _windows(eqn)
    repeats = any(stride == 0 and n != 1 for stride, n in zip(view.strides, shape, strict=True))
    cuts_rows = any(s is None and windows[a] != shape[a] for a, s in enumerate(view.strides))
    n_ids = math.prod(eqn.invars[1].aval.shape[:-1])
    if (
        repeats
        or cuts_rows
        or not 0 < n_ids * math.prod(windows[a] for a in view.row_axes) <= MAX_WRITTEN
    ):
        return None
    if isinstance(numbers, frozenset):
        write = Overwrite(numbers, values)
    else:
        write = _write(eqn, view, numbers, values, windows)
    return dataclasses.replace(view, writes=(*view.writes, write))


# ---- numbers of rows -------------------------------------------------------------------------------------------------


def _numbers(
    eqn: Any,
    operands: Sequence[Any],
) -> tuple[jax.Array, jax.Array]:
    """Maps ids to numbers of rows in the row space, int32, clipped for ids outside; and to flags: inside or not."""
    return _number_rows(
        operands[0],
        _index(eqn, operands[1:]),
        _last_indices(eqn),
    )


def index_of(
    eqn: Any,
    operands: Sequence[Any],
) -> dict[int, tuple[jax.Array, int]]:
    """Finds the indices along each axis of a read's operand, and the last index that is inside.

    Args:
      eqn: A read.
      operands: Its operands' values; the first is a view.
    """
    last = _last_indices(eqn)
    result = {}
    for a, start in _index(eqn, operands[1:]).items():
        result[a] = (jnp.asarray(start), last[a])
    return result


def _index(
    eqn: Any,
    indices: Sequence[Any],
) -> dict[int, Any]:
    """Finds the index along each axis of a read's operand."""
    match eqn.primitive:
        case prim.gather_p:
            numbers = eqn.params["dimension_numbers"]
            return _starts(indices[0], numbers.start_index_map, numbers)
        case prim.dynamic_slice_p:
            return dict(enumerate(indices))
        case _:
            result = {}
            for a, start in enumerate(eqn.params["start_indices"]):
                result[a] = np.int32(start)
            return result


def _last_indices(eqn: Any) -> dict[int, int]:
    """By axis of a read's operand the last index that is inside."""
    is_slice = eqn.primitive is prim.slice_p
    if is_slice:
        sizes = eqn.outvars[0].aval.shape
    else:
        sizes = eqn.params["slice_sizes"]
    shape = eqn.invars[0].aval.shape
    if eqn.primitive is not prim.gather_p:
        result = {}
        for a, (n, size) in enumerate(zip(shape, sizes, strict=True)):
            result[a] = n - size
        return result
    numbers = eqn.params["dimension_numbers"]
    axes = (*numbers.start_index_map, *numbers.operand_batching_dims) or (0,)
    return {a: shape[a] - sizes[a] for a in axes}


def _number_rows(
    numbering: TableView | Stop,
    starts: Mapping[int, Any],
    last: Mapping[int, Any],
) -> tuple[jax.Array, jax.Array]:
    """Numbers in a row space, from an index and the last one that is inside by axis; and whether all are inside."""
    number = jnp.int32(numbering.offset)
    inside = jnp.bool_(True)
    for a, start in starts.items():
        stride = numbering.strides[a]
        start = jnp.asarray(start)
        if stride is not None:
            number = number + stride * _clip_ids(start, last[a])
        inside = inside & _in_range(start, last[a])
    return jnp.broadcast_arrays(number, inside)  # pyright: ignore[reportReturnType]


def _starts(
    indices: Any,
    index_map: Sequence[int],
    numbers: Any,
) -> dict[int, Any]:
    """Takes the index along each axis of the operand out of a gather's or scatter's indices `[*ids, n_axes]`."""
    indices = jnp.asarray(indices)
    starts: dict[int, Any] = {a: indices[..., column] for column, a in enumerate(index_map)}
    batching = getattr(numbers, "start_indices_batching_dims", None) or getattr(
        numbers, "scatter_indices_batching_dims", ()
    )
    for a, place in zip(numbers.operand_batching_dims, batching, strict=True):
        starts[a] = jax.lax.broadcasted_iota(
            jnp.int32,
            indices.shape[:-1],
            int(place),
        )
    return starts or {0: jnp.zeros(indices.shape[:-1], jnp.int32)}


def _clip_ids(ids: jax.Array, last: Any) -> jax.Array:
    return jnp.clip(ids, 0, _bound(ids, last)).astype(jnp.int32)


def _in_range(ids: jax.Array, last: Any) -> jax.Array:
    return (ids >= 0) & (ids <= _bound(ids, last))


def _bound(ids: jax.Array, last: Any) -> Any:
    """Casts the last index to the ids' own dtype: bytes can't name row 1000, so for bytes there is no bound there."""
    most = int(jnp.iinfo(ids.dtype).max)
    if isinstance(last, jax.Array):
        return jnp.minimum(last, most).astype(ids.dtype)
    return min(int(last), most)


def _hits(number: jax.Array, write: Overwrite) -> jax.Array:
    """Marks which writes meet which rows, `[*ids, k]`."""
    return (number[..., None] == write.rows) & (write.rows >= 0)


# ---- rows in and out -------------------------------------------------------------------------------------------------


def _outside(
    eqn: Any,
    view: TableView,
    rows: jax.Array,
    inside: jax.Array,
) -> jax.Array:
    """Replaces rows `[*ids, *row]` of ids outside by the read's fill values, and drops the gradient there."""
    match read_mode(eqn):
        case "fill":
            return _where(
                inside,
                rows,
                jnp.full_like(rows, _fill_value(eqn, rows.dtype)),
            )
        case "promise_in_bounds":
            # A tangent only counts in its transpose, where a zero drops the gradient.
            other = jnp.zeros_like(rows) if view.is_tangent else jax.lax.stop_gradient(rows)
            return _where(inside, rows, other)
        case _:
            return rows


def _where(
    mask: jax.Array,
    first: jax.Array,
    second: jax.Array,
) -> jax.Array:
    """One choice for each row, for arrays `[*ids, *row]`."""
    return jnp.where(
        mask.reshape(
            *mask.shape,
            *[1] * (first.ndim - mask.ndim),
        ),
        first,
        second,
    )


def _fill_value(eqn: Any, dtype: Any) -> Any:
    value = eqn.params["fill_value"]
    return jnp.nan if value is None and jnp.issubdtype(dtype, jnp.inexact) else value


def _arrange_axes(
    eqn: Any,
    rows: jax.Array,
    n_id_axes: int,
) -> jax.Array:
    """Moves the axes of rows `[*ids, *row]` to where the read's result has them."""
    out = eqn.outvars[0].aval.shape
    if eqn.primitive is not prim.gather_p:
        return rows.reshape(out)
    offset = [int(a) for a in eqn.params["dimension_numbers"].offset_dims]
    ids = [a for a in range(len(out)) if a not in offset]
    rows = rows.reshape(
        *rows.shape[:n_id_axes],
        *(out[a] for a in offset),
    )
    return rows.transpose(np.argsort([*ids, *offset]))


def _windows(eqn: Any) -> list[int]:
    """Lists the extent of each axis that one index of a scatter overwrites."""
    numbers = eqn.params["dimension_numbers"]
    updates = eqn.invars[2].aval.shape
    ones = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    rest = iter(numbers.update_window_dims)
    result = []
    for a in range(len(eqn.invars[0].aval.shape)):
        result.append(1 if a in ones else updates[next(rest)])
    return result


def _write(
    eqn: Any,
    view: TableView,
    indices: Any,
    values: Any,
    windows: Sequence[int],
) -> Overwrite:
    """Collects the rows that a scatter overwrites, and their new values."""
    numbers = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    starts = _starts(indices, numbers.scatter_dims_to_operand_dims, numbers)
    number, inside = _number_rows(
        view,
        starts,
        {a: shape[a] - windows[a] for a in starts},
    )
    if eqn.params["mode"] is not GatherMode.CLIP:
        number = jnp.where(inside, number, -1)
    # Each index writes over a block of rows: one more axis for each of the rows' axes.
    n_ids = number.ndim
    for a in view.row_axes:
        more = (view.strides[a] or 0) * jnp.arange(windows[a], dtype=jnp.int32)
        number = jnp.where(
            number[..., None] < 0,
            -1,
            number[..., None] + more,
        )
    window = [int(a) for a in numbers.update_window_dims]
    ids = [a for a in range(jnp.ndim(values)) if a not in window]
    values = jnp.transpose(
        jnp.asarray(values),
        [*ids, *window],
    )
    values = values.reshape(*values.shape[:n_ids], *windows)
    row = [n_ids + a for a, stride in enumerate(view.strides) if stride is None]
    values = jnp.transpose(
        values,
        [
            *range(n_ids),
            *(n_ids + a for a in view.row_axes),
            *row,
        ],
    )
    return Overwrite(
        number.ravel(),
        values.reshape(
            number.size,
            *(values.shape[len(values.shape) - len(row) :]),
        ),
    )
