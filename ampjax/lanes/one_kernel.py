"""Loops as one kernel: XLA's runtime for CPUs starts a kernel for each operation of a loop, which takes a microsecond, however small its arrays are.

It can also compile a call, loops inside included, to a single kernel. It does so by itself for loops that touch less than a kilobyte, and wherever a call has the
attribute that is set here. Not all operations can be in such a kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from ampjax.jaxprs.primitives import bind, called, evaluate, opened, while_parts
from ampjax.lanes.row_writes import is_written_by_rows, write_rows
from ampjax.lanes.splitting import INLINED

LARGE = 1 << 16
"""Bytes of an array from which on several threads would share its operations, which one kernel does not."""

MOST_PRODUCTS = 1 << 12
"""Products of numbers in a matrix product, up to which it is written as a sum."""

_CALL = {"xla_cpu_small_call": "true", "inlineable": "false"}
_INSIDE = {"xla_cpu_small_call": "false", "inlineable": "true"}
_OPERATION = re.compile(r"= \"?(?:stablehlo|chlo)\.(\w+)")
_ALLOWED = frozenset(
    [
        "abs",
        "add",
        "and",
        "atan2",
        "bitcast_convert",
        "broadcast_in_dim",
        "case",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "concatenate",
        "constant",
        "convert",
        "cosine",
        "count_leading_zeros",
        "divide",
        "dynamic_slice",
        "dynamic_update_slice",
        "erf",
        "erf_inv",
        "exponential",
        "exponential_minus_one",
        "floor",
        "gather",
        "if",
        "iota",
        "is_finite",
        "log",
        "log_plus_one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "next_after",
        "not",
        "or",
        "pad",
        "popcnt",
        "power",
        "reduce",
        "reduce_precision",
        "remainder",
        "reshape",
        "return",
        "reverse",
        "round_nearest_afz",
        "round_nearest_even",
        "rsqrt",
        "select",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sine",
        "slice",
        "sqrt",
        "square",
        "subtract",
        "tan",
        "tanh",
        "transpose",
        "while",
        "xor",
    ]
)
"""Operations of StableHLO that XLA compiles inside of one kernel."""


def in_one_kernel(function: Callable[..., Any], *args: Any) -> Any:
    """Computes a function of small arrays in one kernel.

    Args:
      function: The function.
      *args: Its arguments, pytrees of arrays.

    Returns:
      What the function returns; None if XLA can't compile it so.
    """
    if jax.default_backend() != "cpu":
        return None
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    given = jax.tree.leaves(args)
    # the barrier hides from XLA which arguments are constants: it can't compile a kernel with an argument that it has no need to read
    compute = jax.jit(lambda *given: _run(traced, lax.optimization_barrier(given)))
    # equations inside would inherit the attributes of the call, so they get others
    with set_xla_metadata(**_INSIDE):
        call, constants = opened(jax.make_jaxpr(compute)(*given))
    if not _can_be_one(compute, given):
        return None
    with set_xla_metadata(**_CALL):
        results = evaluate(call, constants, given, _call)
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def _call(eqn: Any, operands: list[Any]) -> list[Any]:
    """The results of a call, under the settings of here."""
    return eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))


def _can_be_one(jitted: Any, given: Sequence[Any]) -> bool:
    """Tells whether all operations of a function may be in one kernel."""
    types = []
    for x in given:
        aval = jax.typeof(x)
        types.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type))
    text = jitted.lower(*types).as_text()
    return set(_OPERATION.findall(text)) <= _ALLOWED


def _results(eqn: Any, operands: list[Any]) -> list[Any]:
    """The results of an equation, by operations that one kernel may have where there are such."""
    name = eqn.primitive.name
    if is_written_by_rows(eqn):
        return [write_rows(eqn, operands)]
    if name == "dot_general" and _is_small_product(eqn):
        return [_as_sum(eqn, *operands)]
    if name == "while":
        return _while(eqn, operands)
    if name == "scan":
        return _scan(eqn, operands)
    if name == "cond":
        branches = [lambda *own, b=branch: _run(b, own) for branch in eqn.params["branches"]]
        return lax.switch(jnp.asarray(operands[0], jnp.int32), branches, *operands[1:])
    if name in INLINED:
        return _run(called(eqn), operands)
    return bind(eqn, operands)


def _run(jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
    body, constants = opened(jaxpr)
    return evaluate(body, constants, operands, _results)


def _while(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    asked, closed, carry = while_parts(eqn, operands)
    return lax.while_loop(
        lambda carry: _run(eqn.params["cond_jaxpr"], [*asked, *carry])[0],
        lambda carry: _run(eqn.params["body_jaxpr"], [*closed, *carry]),
        carry,
    )


def _scan(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    n_closed = eqn.params["num_consts"]
    n_carried = eqn.params["num_carry"]
    closed = operands[:n_closed]
    carry = list(operands[n_closed : n_closed + n_carried])

    def step(carry: Any, rows: Any) -> Any:
        results = _run(eqn.params["jaxpr"], [*closed, *carry, *rows])
        return results[:n_carried], results[n_carried:]

    carry, rows = lax.scan(
        step,
        carry,
        list(operands[n_closed + n_carried :]),
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
    )
    return [*carry, *rows]


def _is_small_product(eqn: Any) -> bool:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    n = math.prod(shape[axis] for axis in contracted)
    return n * math.prod(eqn.outvars[0].aval.shape) <= MOST_PRODUCTS


def _as_sum(eqn: Any, a: Any, b: Any) -> Any:
    """A matrix product as a sum of products."""
    (of_a, of_b), (shared_a, shared_b) = eqn.params["dimension_numbers"]
    out = eqn.outvars[0].aval
    own_a = [axis for axis in range(a.ndim) if axis not in (*of_a, *shared_a)]
    own_b = [axis for axis in range(b.ndim) if axis not in (*of_b, *shared_b)]
    # axes: shared, those of a alone, those of b alone, summed
    a = a.transpose(*shared_a, *own_a, *of_a).astype(out.dtype)
    b = b.transpose(*shared_b, *own_b, *of_b).astype(out.dtype)
    a = jnp.expand_dims(a, [len(shared_a) + len(own_a) + i for i in range(len(own_b))])
    b = jnp.expand_dims(b, [len(shared_b) + i for i in range(len(own_a))])
    n = len(of_a)
    return jnp.sum(a * b, axis=tuple(range(out.ndim, out.ndim + n)), dtype=out.dtype)
