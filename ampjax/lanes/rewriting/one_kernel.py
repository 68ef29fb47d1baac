"""Small programs as one kernel: XLA's runtime for CPUs starts a kernel for each operation of a loop, which takes a microsecond, however small its arrays are.

XLA can also compile a call, loops inside included, to a single kernel. It does so by itself for loops that touch less than a kilobyte, and wherever a call has the
attribute that is set here. Not all operations can be in such a kernel, and versions of JAX differ, so only what was tried is compiled so.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental.xla_metadata import set_xla_metadata

from ampjax.jaxprs.primitives import (
    CUSTOM_CALLS,
    REMATERIALIZED,
    bind,
    evaluate,
    inner,
    is_anywhere,
    opened,
)
from ampjax.lanes.rewriting.replaced_equations import (
    Run,
    Values,
    in_place,
    type_of_argument,
    with_replaced,
)
from ampjax.lanes.rewriting.row_writes import COMBINED, is_written_by_rows, write_rows

SWITCH = "AMPJAX_ONE_KERNEL"
"""The environment variable that leaves this to XLA alone, where it is 0."""

NEWEST = (0, 13)
"""The first version of JAX that was not tried."""

LARGE = 1 << 16
"""Bytes of an array from which on several threads would share an operation, which one kernel does not."""

MOST_PRODUCTS = 1 << 10
"""Products of numbers in a matrix product, up to which it is written as a sum."""

MOST_OF_SQUARES = 1 << 12
"""The same where all sides of both matrices are short: XLA makes vector instructions of such a sum."""

SHORT = 32
"""The length of a short side."""

_LOOPS = ("while", "scan")
"""Equations whose results their bodies write, part by part."""

_CALL = {"xla_cpu_small_call": "true", "inlineable": "false"}
_INSIDE = {"xla_cpu_small_call": "false", "inlineable": "true"}
_OPERATION = re.compile(r"= \"?(?:stablehlo|chlo)\.(\w+)")
_OPERATIONS = """
abs add and atan2 bitcast_convert broadcast_in_dim case cbrt ceil clamp compare concatenate constant convert cosine count_leading_zeros divide
dynamic_slice dynamic_update_slice erf erf_inv exponential exponential_minus_one floor gather if iota is_finite log log_plus_one logistic maximum
minimum multiply negate next_after not optimization_barrier or pad popcnt power reduce reduce_precision remainder reshape reverse round_nearest_afz
round_nearest_even rsqrt select shift_left shift_right_arithmetic shift_right_logical sign sine slice sqrt square subtract tan tanh transpose while
xor
"""
_ALLOWED = frozenset(_OPERATIONS.split())
"""Operations of StableHLO that were tried in one kernel."""


def in_one_kernel(
    function: Callable[..., Any],
    *args: Any,
) -> Any:
    """Computes a function in one kernel.

    Args:
      function: The function.
      *args: Its arguments, pytrees of arrays.

    Returns:
      What the function returns; None if it is better left to XLA.
    """
    is_known = jax.__version_info__ < NEWEST
    is_tried = is_known and jax.default_backend() == "cpu"
    is_jitted = not jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    if os.environ.get(SWITCH) == "0" or not (is_tried and is_jitted):
        return None
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    given = jax.tree.leaves(args)
    body, values = opened(traced)
    for eqn in body.eqns:
        if any(is_anywhere(each, _is_large) for each in inner(eqn)):
            return None
    operands = [*values, *given]
    n = len(values)

    @jax.jit
    def compute(*operands: Any) -> Values:
        results = with_replaced(body, operands[:n], operands[n:], _RULES)
        return [*results, *operands]

    # equations inside would inherit the attributes of the call, so they get others
    with set_xla_metadata(**_INSIDE):
        whole = jax.make_jaxpr(compute)(*operands)
        call, constants = opened(whole)
        # here it is the same trace
        can_be_one = _can_be_one(compute, operands)
    if not can_be_one:
        return None
    structure = jax.tree.structure(shape)
    kernel = _kernel(compute, call, constants)
    results = kernel(*operands)
    return jax.tree.unflatten(structure, results[: structure.num_leaves])


def are_small(equations: Sequence[Any]) -> bool:
    """Tells whether equations compute small arrays and small matrix products only: a loop of such steps is faster as one kernel.

    Args:
      equations: The equations.
    """
    for eqn in equations:
        if _is_large(eqn) or any(is_anywhere(each, _is_large) for each in inner(eqn)):
            return False
    return True


def _is_large(eqn: Any) -> bool:
    """Tells whether an equation computes a large array, or a large matrix product."""
    name = eqn.primitive.name
    if name in _LOOPS:
        return False
    if name == "dot_general" and not _is_small(eqn):
        return True
    # an update in place computes no more than what it writes
    computed = eqn.invars[1:2] if name == "dynamic_update_slice" else eqn.outvars
    for var in computed:
        width = getattr(var.aval.dtype, "itemsize", 8)
        if width * math.prod(var.aval.shape) > LARGE:
            return True
    return False


def _kernel(
    compute: Any,
    call: Any,
    constants: Sequence[Any],
) -> Callable[..., Any]:
    """A function as one kernel; under `jax.vmap`, which brings other operations, the plain function.

    Args:
      compute: The function.
      call: A jaxpr that calls it.
      constants: Values of the jaxpr's constants.
    """

    # XLA can't compile a kernel with an argument that nothing reads. So arguments are results, too, and barriers hide that nobody needs these, and which ones are
    # constants, as constants would be moved into the kernel.
    @custom_vmap
    def run(*operands: Any) -> Values:
        operands = lax.optimization_barrier(operands)
        with set_xla_metadata(**_CALL):
            results = evaluate(call, constants, operands, _call)
        return list(lax.optimization_barrier(results))

    @run.def_vmap
    def _(
        size: int,
        is_batched: Sequence[bool],
        *operands: Any,
    ) -> tuple[Values, list[bool]]:
        axes = [0 if batched else None for batched in is_batched]
        together = jax.vmap(
            compute,
            in_axes=tuple(axes),
            axis_size=size,
        )
        results = together(*operands)
        return results, [True] * len(results)

    return run


def _call(
    eqn: Any,
    operands: list[Any],
) -> list[Any]:
    """The results of a call, under the settings of here."""
    params = eqn.primitive.get_bind_params(eqn.params)
    return eqn.primitive.bind(*operands, **params)


def _can_be_one(compute: Any, operands: Sequence[Any]) -> bool:
    """Tells whether all operations of a function may be in one kernel."""
    types = []
    for x in operands:
        aval = jax.typeof(x)
        types.append(type_of_argument(aval))
    text = compute.lower(*types).as_text()
    return set(_OPERATION.findall(text)) <= _ALLOWED


def _written(
    eqn: Any,
    values: Values,
    run: Run,
) -> Sequence[Any]:
    if not is_written_by_rows(eqn):
        return bind(eqn, values)
    return [write_rows(eqn, values)]


def _multiplied(
    eqn: Any,
    values: Values,
    run: Run,
) -> Sequence[Any]:
    if not _is_small(eqn):
        return bind(eqn, values)
    return [_as_sum(eqn, *values)]


def _is_small(eqn: Any) -> bool:
    """Tells whether a matrix product is written as a sum."""
    (of_a, of_b), (shared_a, shared_b) = eqn.params["dimension_numbers"]
    a, b = (var.aval for var in eqn.invars)
    axes_a = (of_a, shared_a, _other_axes(a, [*of_a, *shared_a]))
    sides = []
    for axes in axes_a:
        side = math.prod(a.shape[axis] for axis in axes)
        sides.append(side)
    own_b = _other_axes(b, [*of_b, *shared_b])
    sides.append(math.prod(b.shape[axis] for axis in own_b))
    is_short = max(sides) <= SHORT
    most = MOST_OF_SQUARES if is_short else MOST_PRODUCTS
    return math.prod(sides) <= most


def _as_sum(
    eqn: Any,
    a: Any,
    b: Any,
) -> Any:
    """A matrix product as a sum of products."""
    (of_a, of_b), (shared_a, shared_b) = eqn.params["dimension_numbers"]
    out = eqn.outvars[0].aval
    own_a = _other_axes(a, [*of_a, *shared_a])
    own_b = _other_axes(b, [*of_b, *shared_b])
    # axes: shared, those of a alone, those of b alone, summed
    a = a.transpose(*shared_a, *own_a, *of_a)
    b = b.transpose(*shared_b, *own_b, *of_b)
    a = a.astype(out.dtype)
    b = b.astype(out.dtype)
    n_shared = len(shared_a)
    behind_a = n_shared + len(own_a)
    behind_b = behind_a + len(own_b)
    a = jnp.expand_dims(a, [*range(behind_a, behind_b)])
    b = jnp.expand_dims(b, [*range(n_shared, behind_a)])
    product = a * b
    summed = tuple(range(out.ndim, product.ndim))
    return jnp.sum(product, axis=summed, dtype=out.dtype)


def _other_axes(array: Any, axes: Sequence[int]) -> list[int]:
    """The axes of an array beside some."""
    return [axis for axis in range(array.ndim) if axis not in axes]


_RULES = {
    "dot_general": _multiplied,
    **dict.fromkeys(COMBINED, _written),
    **dict.fromkeys((*CUSTOM_CALLS, *REMATERIALIZED), in_place),
}
"""What is computed otherwise in one kernel."""
