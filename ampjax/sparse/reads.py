"""Which equations keep a table's rows whole, which read rows, and how the same equation reads pulled rows.

Owns the meaning of one equation: its ids, its out-of-range rule, and its form on rows. Knows nothing of programs.

JAX's rules for ids outside the table are kept, read by read:

* `clip` (and `dynamic_slice`): the nearest row is read, and gets the gradient.
* `fill`: NaN or the fill value is read; nothing gets a gradient.
* `promise_in_bounds` (plain `table[ids]`): JAX promises nothing. What it does is kept: the nearest row is read, and the
  gradient is dropped.

Negative ids are counted from the end by `jax.numpy`, in equations of their own before the read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives as prim

GatherMode = jax.lax.GatherScatterMode


@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["leaf", "axis", "tangent"])
@dataclasses.dataclass(frozen=True)
class View:
    """Stands for a table, or for a copy of one that is cast, reshaped or cut to some columns: every row is still in one piece.

    Args:
      leaf: Which parameter leaf.
      axis: The axis of the rows.
      value: While a step is built: pulled rows in the table's place, `[..., m, ...]` with m on `axis`. Else None.
      tangent: Whether it stands for a tangent of the table, in the rule of a `custom_jvp`.
    """

    leaf: int
    axis: int
    value: Any = None
    tangent: bool = False


_KEEP = (
    prim.convert_element_type_p,
    prim.copy_p,
    prim.sharding_constraint_p,
    prim.stop_gradient_p,
    prim.reduce_precision_p,
    prim.name_p,
)
_MOVE = (prim.reshape_p, prim.squeeze_p, prim.broadcast_in_dim_p, prim.transpose_p)


def rows_axis(eqn: Any, axis: int) -> int | None:
    """The rows' axis in the result, if the equation keeps every row of its operand whole and in order; else None.

    Args:
      eqn: An equation of one table.
      axis: The rows' axis in the operand.
    """
    if eqn.primitive in _KEEP or (eqn.primitive is prim.slice_p and _has_all_rows(eqn, axis)):
        return axis
    if eqn.primitive not in _MOVE:
        return None
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if math.prod(old) != math.prod(new):
        return None  # rows would be repeated
    match eqn.primitive:
        case prim.transpose_p:
            return eqn.params["permutation"].index(axis)
        case prim.squeeze_p:
            return axis - sum(d < axis for d in eqn.params["dimensions"])
        case prim.broadcast_in_dim_p:
            return eqn.params["broadcast_dimensions"][axis]
        case _:
            return _reshaped_axis(old, new, axis) if eqn.params["dimensions"] is None else None


def _has_all_rows(eqn: Any, axis: int) -> bool:
    """Whether a slice cuts every row alike."""
    return eqn.invars[0].aval.shape[axis] == eqn.outvars[0].aval.shape[axis]


def _reshaped_axis(old: Sequence[int], new: Sequence[int], axis: int) -> int | None:
    """Where the rows are after a reshape, if they lead on both sides."""
    if math.prod(old[:axis]) != 1:
        return None
    leading = (i for i, size in enumerate(new) if size == old[axis] and math.prod(new[:i]) == 1)
    return next(leading, None)


def view_of(eqn: Any, view: View) -> View:
    """The same equation on pulled rows, for an equation that `rows_axis` accepts."""
    axis = rows_axis(eqn, view.axis)
    assert axis is not None
    if view.value is None or eqn.primitive is prim.sharding_constraint_p:  # a table's sharding says nothing of its rows
        return dataclasses.replace(view, axis=axis)
    params = dict(eqn.params)
    shape = list(eqn.outvars[0].aval.shape)
    shape[axis] = view.value.shape[view.axis]
    if eqn.primitive is prim.reshape_p:
        params["new_sizes"] = tuple(shape)
    elif eqn.primitive is prim.broadcast_in_dim_p:
        params["shape"] = tuple(shape)
    elif eqn.primitive is prim.slice_p:
        params["limit_indices"] = tuple(shape[axis] if a == axis else n for a, n in enumerate(params["limit_indices"]))
    return dataclasses.replace(view, axis=axis, value=eqn.primitive.bind(view.value, **params))


def is_read(eqn: Any, axis: int) -> bool:
    """Whether an equation reads whole rows of its first operand: a gather by row ids, or a slice of one row.

    A slice of several rows is none: that is how a matrix is cut in parts, and each step would read the same rows.
    """
    if eqn.primitive not in (prim.gather_p, prim.dynamic_slice_p, prim.slice_p):
        return False
    shape, is_slice = eqn.invars[0].aval.shape, eqn.primitive is prim.slice_p
    taken = eqn.outvars[0].aval.shape if is_slice else eqn.params["slice_sizes"]
    if taken[axis] != 1 or any(n != size for a, (n, size) in enumerate(zip(taken, shape, strict=True)) if a != axis):
        return False
    numbers = eqn.params.get("dimension_numbers")
    return numbers is None or (numbers.start_index_map.count(axis) == 1 and not numbers.operand_batching_dims)


def read_mode(eqn: Any) -> str:
    """What the read does with ids outside the table, in JAX's words: `clip`, `fill` or `promise_in_bounds`."""
    if eqn.primitive is not prim.gather_p:
        return "clip"
    return {GatherMode.FILL_OR_DROP: "fill", GatherMode.CLIP: "clip"}.get(eqn.params["mode"], "promise_in_bounds")


def row_ids(eqn: Any, operands: Sequence[Any], axis: int, n_rows: int) -> jax.Array:
    """The rows that a read touches.

    Args:
      eqn: A read.
      operands: Its operands' values; the first is not looked at.
      axis: The rows' axis.
      n_rows: The table's rows.

    Returns:
      int32, of any shape. Each is in `[0, n_rows]`: ids outside the table are clipped or, where the read fills,
      replaced by `n_rows`, which means that no row is read.
    """
    if eqn.primitive is not prim.gather_p:
        is_fixed = eqn.primitive is prim.slice_p
        start = np.int32(eqn.params["start_indices"][axis]) if is_fixed else operands[1 + axis]
        return _clipped(jnp.asarray(start), n_rows)[None]
    ids = _id_column(eqn, operands[1], axis)
    inside = _clipped(ids, n_rows)
    return jnp.where(_in_range(ids, n_rows), inside, n_rows) if read_mode(eqn) == "fill" else inside


def read_rows(eqn: Any, operands: Sequence[Any], position: jax.Array, n_rows: int) -> jax.Array:
    """What a read gives, out of pulled rows.

    Args:
      eqn: A read.
      operands: Its operands; the first is a `View` with pulled rows.
      position: Where each of `row_ids` lies among the pulled rows, int32, of their shape. Anything where no row is read.
      n_rows: The table's rows.

    Returns:
      The read's result: values and gradients as from the whole table.
    """
    view = operands[0]
    if eqn.primitive is not prim.gather_p:
        return jnp.take(view.value, position, axis=view.axis, mode="clip")
    ids = _id_column(eqn, operands[1], view.axis)
    match read_mode(eqn):
        case "clip":
            return _gather(eqn, view, operands[1], position)
        case "fill":
            beyond = view.value.shape[view.axis]
            return _gather(eqn, view, operands[1], jnp.where(_in_range(ids, n_rows), position, beyond))
        case _:
            rows = _gather(eqn, view, operands[1], position)
            kept = _along(eqn, _in_range(ids, n_rows), rows)
            # A tangent only counts in its transpose, where a zero drops the gradient.
            other = jnp.zeros_like(rows) if view.tangent else jax.lax.stop_gradient(rows)
            return jnp.where(kept, rows, other)


# ---- gathers ---------------------------------------------------------------------------------------------------------


def _column(eqn: Any, axis: int) -> int:
    return eqn.params["dimension_numbers"].start_index_map.index(axis)


def _id_column(eqn: Any, indices: jax.Array, axis: int) -> jax.Array:
    """The row ids of a gather's index array `[*ids, n_axes]`."""
    return jnp.asarray(indices)[..., _column(eqn, axis)]


def _gather(eqn: Any, view: View, indices: jax.Array, position: jax.Array) -> jax.Array:
    """The gather with positions in place of ids; what it says of other axes stays."""
    # Ids may be bytes; positions need not fit in there.
    indices = jnp.asarray(indices).astype(jnp.int32).at[..., _column(eqn, view.axis)].set(position)
    params = eqn.params
    return jax.lax.gather(
        view.value,
        indices,
        params["dimension_numbers"],
        params["slice_sizes"],
        unique_indices=params["unique_indices"],
        indices_are_sorted=False,  # ids that are filled go to the end, wherever they stand
        mode=params["mode"],
        fill_value=params["fill_value"],
    )


def _along(eqn: Any, mask: jax.Array, rows: jax.Array) -> jax.Array:
    """A mask of the ids' shape, for the gathered rows."""
    offset = eqn.params["dimension_numbers"].offset_dims
    return jax.lax.broadcast_in_dim(mask, rows.shape, [a for a in range(rows.ndim) if a not in offset])


def _clipped(ids: jax.Array, n_rows: int) -> jax.Array:
    # The bound has to fit the ids' own dtype: bytes can't name row 1000, so they need no bound there.
    return jnp.clip(ids, 0, min(n_rows - 1, int(jnp.iinfo(ids.dtype).max))).astype(jnp.int32)


def _in_range(ids: jax.Array, n_rows: int) -> jax.Array:
    return (ids >= 0) & (ids <= min(n_rows - 1, int(jnp.iinfo(ids.dtype).max)))
