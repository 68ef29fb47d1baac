"""Sums of low precision, formed in float32: the gradients of bfloat16 and float16 parameters.

Each row's gradient is of the parameters' precision, as in plain JAX. Their sum is not: 256 + 0.5 is 256 in bfloat16, so a sum of many rows
would stop to grow. Where a gradient leaves a function, and on its way from the operations that sum over rows to there, it is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Literal

from ampjax.jaxprs.primitives import bind, called, evaluate, opened, value_of

WIDE = jnp.float32

_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")

_PASSING = frozenset(
    [
        "add",
        "add_any",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "div",
        "dynamic_slice",
        "expand_dims",
        "mul",
        "neg",
        "pad",
        "reduce_sum",
        "reshape",
        "rev",
        "scatter-add",
        "select_n",
        "slice",
        "squeeze",
        "sub",
        "transpose",
    ]
)
"""Operations that can be done on float32 as well: what they read is widened, too, if nobody else reads it."""

_PRODUCTS = frozenset(["conv_general_dilated", "dot_general"])
"""Operations that sum in float32 what they read in low precision."""


def wide_segment_sum(
    values: Any,
    ids: Any,
    n: int,
    **options: Any,
) -> Array:
    """Sums of segments, of the values' dtype; sums of low precision are formed in float32, as by `jnp.sum`.

    Args:
      values: `[rows, ...]`.
      ids: `[rows]`: each row's segment; `n` for none.
      n: How many segments there are.
      **options: Of JAX's `.at[...].add`; by default rows of no segment are dropped.
    """
    dtype = values.dtype
    if is_low(dtype):
        values = values.astype(WIDE)
    none = jnp.zeros(
        (n, *values.shape[1:]),
        values.dtype,
    )
    settings = {"mode": "drop", "wrap_negative_indices": False, **options}
    return none.at[ids].add(values, **settings).astype(dtype)


def with_wide_sums(
    function: Callable[[], tuple[Any, ...]],
    params: Any,
) -> tuple[Any, ...]:
    """Calls a function that gives gradients of parameters, and sums gradients of low precision in float32.

    Args:
      function: Gives the gradients, and anything else behind them. Traced once; may use values of a trace around it.
      params: The parameters. Where none is of low precision, nothing is changed.

    Returns:
      What the function gives, with gradients of low precision in float32.
    """
    if not any(is_low(jnp.result_type(leaf)) for leaf in jax.tree.leaves(params)):
        return function()
    whole, shapes = jax.make_jaxpr(function, return_shape=True)()
    flat = jax.make_jaxpr(lambda: _evaluate(whole.jaxpr, whole.consts, ()))()
    results = _evaluate_wide(
        flat.jaxpr,
        flat.consts,
        len(jax.tree.leaves(shapes[0])),
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def is_low(dtype: Any) -> bool:
    """Tells whether a dtype is a float narrower than float32.

    Args:
      dtype: The dtype.
    """
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def sum_dtype(dtype: Any) -> Any:
    """The dtype in which sums of a dtype's numbers are formed: float32 at least.

    Args:
      dtype: A dtype of floats.
    """
    return jnp.promote_types(dtype, WIDE)


def _evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
) -> list[Any]:
    """Evaluates a jaxpr, with calls replaced by their bodies."""

    def results(equation: Any, operands: list[Any]) -> list[Any]:
        if equation.primitive.name in _CALLS:
            return _evaluate(*opened(called(equation)), operands)
        return bind(equation, operands)

    return evaluate(jaxpr, constants, args, results)


def _evaluate_wide(
    jaxpr: Any,
    constants: Sequence[Any],
    n: int,
) -> list[Any]:
    """The jaxpr's outputs, of which the first n are widened."""
    widened = _find_wide(jaxpr, n)
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    for equation in jaxpr.eqns:
        if not widened.isdisjoint(equation.outvars):
            env[equation.outvars[0]] = _wide_result(equation, env)
        else:
            env.update(
                zip(
                    equation.outvars,
                    bind(equation, [value_of(v, env) for v in equation.invars]),
                    strict=True,
                )
            )
    results = [value_of(v, env) for v in jaxpr.outvars]
    return [
        *map(_as_wide, results[:n]),
        *results[n:],
    ]


def _find_wide(jaxpr: Any, n: int) -> set[Any]:
    """Finds the variables to compute in float32: all their readers do so, or they are only among the first n outputs."""
    wanted = set()
    for v in jaxpr.outvars[:n]:
        if not isinstance(v, Literal) and is_low(v.aval.dtype):
            wanted.add(v)
    narrow = set()
    for v in jaxpr.outvars[n:]:
        if not isinstance(v, Literal):
            narrow.add(v)
    widened: set[Any] = set()
    for equation in reversed(jaxpr.eqns):
        name = equation.primitive.name
        outputs = (wanted - narrow) & set(equation.outvars)
        if name in _PASSING | _PRODUCTS:
            widened |= outputs
        passes = name in _PASSING and bool(outputs)
        (wanted if passes else narrow).update(
            v for v in equation.invars if not isinstance(v, Literal)
        )
    return widened


def _wide_result(equation: Any, env: dict[Any, Any]) -> Array:
    """Computes the result of an equation with one result, in float32."""
    name = equation.primitive.name
    params = dict(equation.params)
    operands = [value_of(v, env) for v in equation.invars]
    with equation.ctx.manager:
        if name in _PRODUCTS:
            return equation.primitive.bind(
                *operands, **{**params, "preferred_element_type": jnp.dtype(WIDE)}
            )
        operands = [*map(_as_wide, operands)]
        if name == "convert_element_type":
            return operands[0].astype(WIDE)
        if name == "scatter-add":  # its parameters hold a program for the narrow numbers
            options = {
                key: params[key]
                for key in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
            }
            return lax.scatter_add(*operands, **options)
    return bind(equation, operands)[0]


def _as_wide(value: Any) -> Any:
    """Casts a value of low precision to float32; returns any other value unchanged."""
    return jnp.asarray(value, WIDE) if is_low(jnp.result_type(value)) else value
