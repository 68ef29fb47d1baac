"""Views of tables, for operations on a table before its rows are read: transposes, stacks, parts, concatenations, overwrites.

A `TableView` stands for such an array and never holds it. Its rows are numbered in one line, the *row space*, a segment after the
other; strides say which number stands where in the array, as NumPy's say where an element is. Each equation that only moves
numbers changes strides, segments, or what lies within each row. Knows equations; nothing of reads and programs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives as prim

from ampjax.sparse.detection import strides
from ampjax.sparse.detection.strides import Strides

MAX_ROWS = 2**31 - 1
"""Row numbers are int32."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["leaf", "first", "n_rows"]
)
@dataclasses.dataclass(frozen=True)
class Segment:
    """Rows of one origin: of a table, or of an ordinary array.

    Args:
      leaf: Which parameter leaf; None for an ordinary array.
      first: Which of the table's rows comes first.
      n_rows: How many rows.
      value: `[m, *row]`: a table's pulled rows, None while there are none; or an array's rows, one if they are all equal. While a
        program is only followed: what an array depends on.
    """

    leaf: int | None
    first: int
    n_rows: int
    value: Any = None


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "values"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Overwrite:
    """Rows that were overwritten.

    Args:
      rows: Their numbers in the row space, int32 `[k]`; negative where nothing is written.
      values: What was written, `[k, *row]`. While a program is only followed, both are what they depend on.
    """

    rows: Any
    values: Any


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["mask"], meta_fields=["strides", "offset"]
)
@dataclasses.dataclass(frozen=True)
class Stop:
    """Rows whose gradients are stopped, for the reads concerned.

    Args:
      mask: bool `[m]`, whether gradients come through. While a program is only followed: what that depends on.
      strides: By axis of the view, of the place in the mask.
      offset: The place at index 0 of all axes.
    """

    mask: Any
    strides: Strides
    offset: int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["segments", "writes", "stops"],
    meta_fields=["strides", "offset", "is_tangent"],
)
@dataclasses.dataclass(frozen=True)
class TableView:
    """Stands for an array of whole rows of tables.

    Args:
      segments: The row space.
      writes: What has been written over it, the latest last.
      strides: By axis of the array, of a row's number; None for an axis within rows.
      offset: The number of the row at index 0 of all axes.
      is_tangent: Whether it stands for a tangent, in the rule of a `custom_jvp`.
      stops: Where gradients are stopped, after all writes.
    """

    segments: tuple[Segment, ...]
    writes: tuple[Overwrite, ...]
    strides: Strides
    offset: int = 0
    is_tangent: bool = False
    stops: tuple[Stop, ...] = ()

    @property
    def leaves(self) -> tuple[int, ...]:
        """The numbers of the tables that the view reads."""
        return tuple(s.leaf for s in self.segments if s.leaf is not None)

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axes along which rows are counted."""
        return tuple(a for a, stride in enumerate(self.strides) if stride is not None)

    @property
    def starts(self) -> Iterator[int]:
        """The number of each segment's first row."""
        return itertools.accumulate(
            (s.n_rows for s in self.segments[:-1]),
            initial=0,
        )

    def tangent(self, tangents: TableView) -> TableView:
        """Builds the view for tangents of these rows. Row numbers have no tangents, so this view's are kept.

        Args:
          tangents: The view that stands for the tangents.
        """
        writes = tuple(
            Overwrite(write.rows, t.values)
            for write, t in zip(self.writes, tangents.writes, strict=True)
        )
        return dataclasses.replace(
            tangents,
            writes=writes,
            stops=self.stops,
            is_tangent=True,
        )


def whole_table(
    leaf: int,
    shape: Sequence[int],
    axes: Sequence[int],
    rows: Any = None,
    first: int = 0,
) -> TableView:
    """Builds the view of a parameter that nothing has been done to.

    Args:
      leaf: Which parameter leaf.
      shape: Its shape.
      axes: The axes along which its rows are counted, rising.
      rows: Pulled rows, `[m, ...]`.
      first: Its first row in its table.
    """
    sizes = [n if a in axes else None for a, n in enumerate(shape)]
    if rows is not None:
        rows = rows.reshape(
            rows.shape[0],
            *(n for a, n in enumerate(shape) if a not in axes),
        )
    return TableView(
        (
            Segment(
                leaf,
                first,
                math.prod(shape[a] for a in axes),
                rows,
            ),
        ),
        (),
        strides.in_one_line(sizes),
    )


def views_of_results(
    eqn: Any,
    operands: Sequence[Any],
) -> list[TableView] | None:
    """The views of an equation's results, if the equation keeps every row of its views whole; else None.

    Args:
      eqn: Any equation.
      operands: What stands for its operands, at least one of them a view.
    """
    if eqn.primitive.name in ("concatenate", "stack"):
        result = _join_views(eqn, operands)
        return None if result is None else [result]
    view, *others = operands
    if not isinstance(view, TableView) or any(isinstance(other, TableView) for other in others):
        return None
    if eqn.primitive.name in ("split", "unstack"):
        parts = [part for part in _split(eqn, view) if part is not None]
        return parts if len(parts) == len(eqn.outvars) else None
    if eqn.primitive in _KEEP:
        return [_change_rows(view, lambda rows: eqn.primitive.bind(rows, **eqn.params))]
    rule = _RULES.get(eqn.primitive)
    if rule:
        result = rule(eqn, view, *others)
    else:
        result = None
    return None if result is None else [result]


# ---- one array -------------------------------------------------------------------------------------------------------


def _change_rows(
    view: TableView,
    change: Callable[[Any], Any],
    **fields: Any,
) -> TableView:
    """The view with something done to each of its rows, and other fields."""

    def change_view(rows: Any) -> Any:
        return rows if rows is None or isinstance(rows, frozenset) else change(rows)

    segments = tuple(dataclasses.replace(s, value=change_view(s.value)) for s in view.segments)
    writes = tuple(Overwrite(w.rows, change_view(w.values)) for w in view.writes)
    return dataclasses.replace(view, segments=segments, writes=writes, **fields)


def _move_axes(
    view: TableView,
    numbers: Callable[[strides.Numbers], strides.Numbers | None],
    change: Callable[[Any], Any],
) -> TableView | None:
    """The view with something done to each of its rows, and its axes moved."""
    lines = []
    for each in (view, *view.stops):
        lines.append(numbers((each.strides, each.offset)))
    if None in lines:
        return None
    (first, offset), *others = [line for line in lines if line is not None]
    stops = tuple(Stop(stop.mask, *line) for stop, line in zip(view.stops, others, strict=True))
    return _change_rows(view, change, strides=first, offset=offset, stops=stops)


def with_stop(view: TableView, stop: Stop) -> TableView:
    """The view with gradients stopped for some reads."""
    return dataclasses.replace(view, stops=(*view.stops, stop))


def _places(view: TableView) -> dict[int, int]:
    """For each axis within rows, its place in an array of rows `[m, *row]`."""
    return {
        a: place
        for place, a in enumerate((a for a, s in enumerate(view.strides) if s is None), start=1)
    }


def _keep_view(eqn: Any, view: TableView) -> TableView:
    """A table's sharding says nothing of its rows."""
    del eqn
    return view


def _transpose(eqn: Any, view: TableView) -> TableView | None:
    order = eqn.params["permutation"]
    place = _places(view)
    within = [
        0,
        *(place[a] for a in order if a in place),
    ]
    return _move_axes(
        view,
        lambda numbers: strides.transpose(numbers, order),
        lambda rows: rows.transpose(within),
    )


def _squeeze(eqn: Any, view: TableView) -> TableView | None:
    return _drop_axes(view, eqn.params["dimensions"])


def _drop_axes(view: TableView, gone: Sequence[int]) -> TableView | None:
    """The view without some axes of one."""
    place = [place for a, place in _places(view).items() if a in gone]
    return _move_axes(
        view,
        lambda numbers: strides.drop_axes(numbers, gone),
        lambda rows: jax.lax.squeeze(rows, place),
    )


def _broadcast(eqn: Any, view: TableView) -> TableView | None:
    """New axes, and rows along axes of one, only repeat rows."""
    shapes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    target = eqn.params["broadcast_dimensions"]
    row = [shapes[1][target[a]] for a in _places(view)]
    return _move_axes(
        view,
        lambda numbers: strides.broadcast(numbers, *shapes, target),
        lambda rows: jnp.broadcast_to(rows, (rows.shape[0], *row)),
    )


def _slice(eqn: Any, view: TableView) -> TableView | None:
    start, limit, step = (
        eqn.params[name] for name in ("start_indices", "limit_indices", "strides")
    )
    return _cut(
        view,
        [slice(*span) for span in zip(start, limit, step or [1] * len(start), strict=True)],
    )


def _split(eqn: Any, view: TableView) -> list[TableView | None]:
    """Several parts along one axis; of one each, without that axis, if the array is unstacked."""
    shape = eqn.invars[0].aval.shape
    axis = eqn.params["axis"]
    stops = list(
        itertools.accumulate(
            eqn.params.get(
                "sizes",
                [1] * shape[axis],
            )
        )
    )
    every = [slice(0, n, 1) for n in shape]
    spans = (slice(start, stop, 1) for start, stop in itertools.pairwise([0, *stops]))
    parts = []
    for span in spans:
        parts.append(
            _cut(
                view,
                [*every[:axis], span, *every[axis + 1 :]],
            )
        )
    if eqn.primitive.name == "unstack":
        return [part and _drop_axes(part, [axis]) for part in parts]
    return parts


def _cut(view: TableView, spans: Sequence[slice]) -> TableView | None:
    """A part of a view, by axis from where to where and in which steps."""
    row = [spans[a] for a in _places(view)]
    return _move_axes(
        view,
        lambda numbers: strides.cut(numbers, spans),
        lambda rows: rows[:, *row],
    )


def _rev(eqn: Any, view: TableView) -> TableView | None:
    turned = eqn.params["dimensions"]
    shape = eqn.invars[0].aval.shape
    within = [place for a, place in _places(view).items() if a in turned]
    return _move_axes(
        view,
        lambda numbers: strides.reverse_axes(numbers, shape, turned),
        lambda rows: jnp.flip(rows, within),
    )


def _reshape(eqn: Any, view: TableView) -> TableView | None:
    """Rows' axes may be joined and cut, and so may axes within rows, but not one kind with the other."""
    old = eqn.invars[0].aval.shape
    new = eqn.outvars[0].aval.shape
    if eqn.params["dimensions"] is not None or 0 in old:
        return None
    row = strides.reshape((view.strides, view.offset), old, new)
    if row is None:
        sizes = []
    else:
        sizes = []
        for n, stride in zip(new, row[0], strict=True):
            if stride is None:
                sizes.append(n)
    return _move_axes(
        view,
        lambda numbers: strides.reshape(numbers, old, new),
        lambda rows: rows.reshape(rows.shape[0], *sizes),
    )


# ---- several arrays --------------------------------------------------------------------------------------------------


def _join_views(eqn: Any, operands: Sequence[Any]) -> TableView | None:
    """Joins views, and ordinary arrays among them, along the rows' outermost axis, which a stack adds."""
    parts = []
    for value, v in zip(operands, eqn.invars, strict=True):
        if 0 not in v.aval.shape:
            parts.append((value, v.aval.shape))
    axis = eqn.params.get("dimension", eqn.params.get("axis"))
    if eqn.primitive.name == "stack":
        parts = [_with_axis(*part, axis) for part in parts]
    axes, *others = {v.row_axes for v, _ in parts if isinstance(v, TableView)} or {()}
    if others or axis not in axes:
        return None
    lines = []
    for v, shape in parts:
        lines.append(
            _line(v, shape)
            if isinstance(v, TableView)
            else _array(
                v,
                shape,
                axes,
            )
        )
    return _in_one_line(lines, eqn, axes, axis)


def _with_axis(
    value: Any,
    shape: Sequence[int],
    axis: int,
) -> tuple[Any, tuple[int, ...]]:
    """A value with one more axis of one, and its shape."""
    if isinstance(value, TableView):
        value = dataclasses.replace(
            value,
            strides=(
                *value.strides[:axis],
                0,
                *value.strides[axis:],
            ),
        )
    elif not isinstance(value, frozenset):
        value = jnp.expand_dims(value, axis)
    return value, (*shape[:axis], 1, *shape[axis:])


def _pad(eqn: Any, view: TableView, value: Any) -> TableView | None:
    """Rows that are all equal, before and after the others."""
    axes = view.row_axes
    config = eqn.params["padding_config"]
    shape = eqn.invars[0].aval.shape
    padded = []
    for a, entry in enumerate(config):
        if tuple(entry) != (0, 0, 0):
            padded.append(a)
    if (
        len(padded) != 1
        or padded[0] not in axes
        or min(config[padded[0]]) < 0
        or config[padded[0]][2]
    ):
        return None
    (axis,) = padded
    before, after, _ = config[padded[0]]
    if not isinstance(value, frozenset):
        value = jnp.broadcast_to(
            value,
            (
                1,
                *(n for a, n in enumerate(shape) if a not in axes),
            ),
        )
    each = math.prod(shape[a] for a in axes if a != axis)
    edges = []
    for n in (before, after):
        edges.append(
            (
                (
                    Segment(
                        None,
                        0,
                        n * each,
                        value,
                    ),
                ),
                (),
            )
        )
    return _in_one_line(
        [edges[0], _line(view, shape), edges[1]],
        eqn,
        axes,
        axis,
    )


Line = tuple[tuple[Segment, ...], tuple[Overwrite, ...]]
"""A row space."""


def _line(view: TableView, shape: Sequence[int]) -> Line | None:
    """Describes the row space of a view's own rows, if they lie in one line; None if not."""
    rows = []
    for a in view.row_axes:
        rows.append((view.strides[a], shape[a]))
    if view.stops or not strides.is_one_line(rows):
        return None
    start = view.offset
    stop = view.offset + math.prod(n for _, n in rows)
    segments = []
    for segment, first in zip(view.segments, view.starts, strict=True):
        low = max(start, first)
        high = min(stop, first + segment.n_rows)
        # Equal rows are one row, wherever they are cut; pulled rows are found by their ids.
        value = segment.value
        if (
            segment.leaf is None
            and not isinstance(value, frozenset)
            and value.shape[0] == segment.n_rows
        ):
            value = value[low - first : max(low, high) - first]
        segments.append(
            Segment(
                segment.leaf,
                segment.first + low - first,
                max(0, high - low),
                value,
            )
        )
    return tuple(segments), tuple(_shift_write(w, start, stop, -start) for w in view.writes)


def _array(
    value: Any,
    shape: Sequence[int],
    axes: Sequence[int],
) -> Line:
    """An ordinary array as rows."""
    n_rows = math.prod(shape[a] for a in axes)
    if not isinstance(value, frozenset):
        row = [a for a in range(len(shape)) if a not in axes]
        value = jnp.transpose(value, [*axes, *row]).reshape(
            n_rows,
            *(shape[a] for a in row),
        )
    return (Segment(None, 0, n_rows, value),), ()


def _in_one_line(
    parts: Sequence[Line | None],
    eqn: Any,
    axes: Sequence[int],
    axis: int,
) -> TableView | None:
    """The view of row spaces one after the other, if `axis` is the outermost of the rows' axes."""
    shape = eqn.outvars[0].aval.shape
    n_rows = math.prod(shape[a] for a in axes)
    if any(shape[a] != 1 for a in axes if a < axis) or n_rows > MAX_ROWS:
        return None
    segments = []
    writes = []
    start = 0
    for part in parts:
        if part is None:
            return None
        stop = sum(segment.n_rows for segment in part[0])
        segments += part[0]
        writes += [_shift_write(w, 0, stop, start) for w in part[1]]
        start += stop
    return TableView(
        tuple(segments),
        tuple(writes),
        strides.in_one_line([n if a in axes else None for a, n in enumerate(shape)]),
    )


def _shift_write(
    write: Overwrite,
    start: int,
    stop: int,
    shift: int,
) -> Overwrite:
    """Cuts a write down to rows from start to stop, and renumbers its rows."""
    if isinstance(write.rows, frozenset):
        return write
    inside = (write.rows >= start) & (write.rows < stop)
    return Overwrite(
        jnp.where(inside, write.rows + shift, -1),
        write.values,
    )


_KEEP = (
    prim.convert_element_type_p,
    prim.copy_p,
    prim.stop_gradient_p,
    prim.reduce_precision_p,
    prim.name_p,
)

_RULES: dict[Any, Callable[..., TableView | None]] = {
    prim.sharding_constraint_p: _keep_view,
    prim.transpose_p: _transpose,
    prim.squeeze_p: _squeeze,
    prim.broadcast_in_dim_p: _broadcast,
    prim.slice_p: _slice,
    prim.rev_p: _rev,
    prim.reshape_p: _reshape,
    prim.pad_p: _pad,
}
