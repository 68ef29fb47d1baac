"""The primitive operations that work row by row, and their forms for another number of rows.

An *aligned* array has one entry per row of a table along its first axis. An operation is row-wise if row i of its result
depends on row i of its aligned operands only; then it may be done for any selection of rows. Knows JAX primitives; nothing
of optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.jaxprs.flat_program import Equation
from ampjax.jaxprs.primitives import bind

ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bitcast_convert_type",
        "cbrt",
        "ceil",
        "clamp",
        "clz",
        "complex",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "digamma",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "le_to",
        "lgamma",
        "log",
        "log1p",
        "log2",
        "logistic",
        "lt",
        "lt_to",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "nextafter",
        "not",
        "one_minus_square",
        "or",
        "population_count",
        "pow",
        "real",
        "reduce_precision",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
    ]
)
_REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"])
_COMBINE = {
    "reduce_sum": np.add,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_and": np.logical_and,
    "reduce_or": np.logical_or,
}

_GROUPED = {
    "reduce_sum": jax.ops.segment_sum,
    "reduce_max": jax.ops.segment_max,
    "reduce_min": jax.ops.segment_min,
    "reduce_and": lambda rows, *groups: jax.ops.segment_min(rows.astype(jnp.int8), *groups) > 0,
    "reduce_or": lambda rows, *groups: jax.ops.segment_max(rows.astype(jnp.int8), *groups) > 0,
}


def is_reduction(equation: Equation) -> bool:
    """Tells whether the operation folds all rows of its operand into one value: a sum, maximum, minimum, `all` or `any`."""
    return equation.primitive.name in _REDUCTIONS and 0 in equation.params["axes"]


def is_elementwise(equation: Equation) -> bool:
    """Tells whether the operation treats all numbers of its operand alike, whatever the operand's shape: one by one, or in one fold of all."""
    folds_all = (
        equation.primitive.name in _REDUCTIONS
        and len(equation.params["axes"]) == equation.invars[0].aval.ndim
    )
    return equation.primitive.name in ELEMENTWISE or folds_all


def is_rowwise(equation: Equation, aligned: Sequence[bool]) -> bool:
    """Tells whether the operation's result is aligned and row-wise, by the aligned ones among its operands.

    With no aligned operand this says whether all rows of the result are equal, as those of `zeros_like(table)` are.

    Args:
      equation: One primitive operation, as traced.
      aligned: For each operand, whether it is aligned.

    Returns:
      Whether it is.
    """
    shapes = [atom.aval.shape for atom in equation.invars]
    out = equation.outvars[0].aval.shape
    if len(equation.outvars) != 1 or not out:
        return False
    name = equation.primitive.name
    params = equation.params
    if name in ELEMENTWISE:
        return any(aligned) and all(
            flag or not shape for flag, shape in zip(aligned, shapes, strict=True)
        )
    if name == "broadcast_in_dim":
        return _broadcasts_rows(params["broadcast_dimensions"], shapes[0], out, aligned[0])
    if len(shapes) != 1 or not aligned[0]:
        return False
    if name == "reshape":
        return out[0] == shapes[0][0]
    if name == "transpose":
        return params["permutation"][0] == 0
    if name == "squeeze":
        return 0 not in params["dimensions"]
    return name in _REDUCTIONS and 0 not in params["axes"]


def bind_rows(
    equation: Equation,
    values: Sequence[Any],
    n_rows: int,
) -> Any:
    """The result of a row-wise operation on `n_rows` rows instead of the table's.

    Args:
      equation: An operation that `is_rowwise`.
      values: Its operands; aligned ones have `n_rows` rows.
      n_rows: The number of rows.

    Returns:
      `[n_rows, ...]`.
    """
    if equation.primitive.name == "broadcast_in_dim":
        dimensions = equation.params["broadcast_dimensions"]
        return jax.lax.broadcast_in_dim(
            values[0],
            (n_rows, *equation.outvars[0].aval.shape[1:]),
            dimensions,
        )
    if equation.primitive.name == "reshape":
        return jax.lax.reshape(
            values[0],
            (n_rows, *equation.outvars[0].aval.shape[1:]),
        )
    return bind(equation, values)[0]


def reduce_rows(
    equation: Equation,
    rows: jax.Array,
    weights: jax.Array,
    groups: tuple[jax.Array, int] | None = None,
) -> jax.Array:
    """A reduction of some rows, each counted `weights[i]` times.

    Args:
      equation: An operation that `is_reduction`.
      rows: Its operand, `[n, ...]`.
      weights: How often each row counts, `[n]`, int32; a row of weight 0 is left out, whatever it holds.
      groups: By row its group, `[n]`, int32, and the number of groups, each of which is reduced for itself; None for one group.

    Returns:
      The reductions, with a leading axis of groups.
    """
    name = equation.primitive.name
    axes = equation.params["axes"]
    weights = weights.reshape(
        -1,
        *[1] * (rows.ndim - 1),
    )
    if name == "reduce_sum":
        rows = jnp.where(
            weights > 0,
            rows * weights.astype(rows.dtype),
            0,
        ).astype(rows.dtype)
    else:
        rows = jnp.where(
            weights > 0,
            rows,
            jnp.asarray(
                _neutral(name, np.dtype(rows.dtype)),
                rows.dtype,
            ),
        )
    if groups is None:
        return _fold_rows(name, rows, axes)[None]
    within = tuple(axis for axis in axes if axis)
    return _GROUPED[name](_fold_rows(name, rows, within), *groups)


def _fold_rows(
    name: str,
    rows: jax.Array,
    axes: Sequence[int],
) -> jax.Array:
    if name == "reduce_sum":
        return rows.sum(axes, dtype=rows.dtype)
    return {
        "reduce_max": jnp.max,
        "reduce_min": jnp.min,
        "reduce_and": jnp.all,
        "reduce_or": jnp.any,
    }[name](rows, axes)


def combine(equation: Equation, first: Any, second: Any) -> np.ndarray:
    """Puts the reductions of two parts of a table together.

    Args:
      equation: An operation that `is_reduction`.
      first: The reduction of one part.
      second: The reduction of the other.

    Returns:
      The reduction of both.
    """
    return np.asarray(
        _COMBINE[equation.primitive.name](
            np.asarray(first),
            np.asarray(second),
        )
    )


def _broadcasts_rows(
    dimensions: Sequence[int],
    shape: tuple[int, ...],
    out: tuple[int, ...],
    aligned: bool,
) -> bool:
    if aligned:
        return dimensions[0] == 0 and shape[0] == out[0]
    return 0 not in dimensions or shape[0] == 1


def _neutral(name: str, dtype: np.dtype) -> Any:
    if name in ("reduce_and", "reduce_or"):
        return name == "reduce_and"
    if jnp.issubdtype(dtype, jnp.inexact):
        low = -np.inf
        high = np.inf
    else:
        low = jnp.iinfo(dtype).min
        high = jnp.iinfo(dtype).max
    return low if name == "reduce_max" else high
