"""The test whether an update with a zero gradient changes nothing, by following zeros through the update's operations.

A small abstract interpretation: each value is known to be zero, known to equal one input, or unknown. Shared values are
taken to be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ampjax.jaxprs.flat_program import Equation, Var, is_literal
from ampjax.jaxprs.program_slices import RowSlice

_ZERO = "zero"
_KEEPS_ZERO = frozenset(
    [
        "abs",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "broadcast_in_dim",
        "cbrt",
        "ceil",
        "convert_element_type",
        "erf",
        "expm1",
        "floor",
        "imag",
        "log1p",
        "neg",
        "real",
        "reduce_max",
        "reduce_min",
        "reduce_precision",
        "reduce_sum",
        "reshape",
        "round",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "squeeze",
        "tan",
        "tanh",
        "transpose",
    ]
)


def zero_gradient_is_noop(
    update: RowSlice,
    gradient: Var,
    outputs: Mapping[Var, Any],
) -> bool:
    """Tells whether an update changes neither parameters nor state of rows with a zero gradient, so that these rows can be left out.

    True for SGD and Adagrad; false where momentum, decay or an average goes on without a gradient. It may be False for an update that
    changes nothing, but is never True for one that does.

    Args:
      update: The row update.
      gradient: The row gradients' variable.
      outputs: For each row input that is a parameter or a state, its new value.
    """
    known: dict[Var, Any] = {gradient: _ZERO} | {var: var for var in outputs}

    def read(atom: Any) -> Any:
        if is_literal(atom):
            return float(atom.val)
        return known.get(atom)

    for equation in update.equations:
        known[equation.outvars[0]] = _result(
            equation,
            [read(atom) for atom in equation.invars],
        )
    return all(read(new) is old for old, new in outputs.items())


def _result(equation: Equation, operands: list[Any]) -> Any:
    name = equation.primitive.name
    if name == "convert_element_type" and hasattr(operands[0], "aval"):
        return _read_converted(operands[0], equation.params["new_dtype"])
    if name in _KEEPS_ZERO:
        return _ZERO if _is_zero(operands[0]) else None
    if name == "integer_pow":
        return _ZERO if _is_zero(operands[0]) and equation.params["y"] > 0 else None
    return _RULES[name](operands) if name in _RULES else None


def _read_converted(value: Var, dtype: Any) -> Var | None:
    """An input's value in another dtype: the same number, if that dtype has all numbers of the input's."""
    old_dtype = value.aval.dtype
    for each in (old_dtype, dtype):
        if not jnp.issubdtype(each, jnp.floating):
            return None
    return value if jnp.promote_types(old_dtype, dtype) == dtype else None


def _is_zero(value: Any) -> bool:
    return value == _ZERO or (isinstance(value, float) and value == 0)


def _add(operands: list[Any]) -> Any:
    first, second = operands
    if _is_zero(first):
        return _ZERO if _is_zero(second) else second
    return first if _is_zero(second) else None


def _subtract(operands: list[Any]) -> Any:
    return _add(operands) if _is_zero(operands[1]) else None


def _select(operands: list[Any]) -> Any:
    _, *cases = operands
    if all(_is_zero(case) for case in cases):
        return _ZERO
    if cases[0] is not None and all(case is cases[0] for case in cases):
        return cases[0]
    return None


def _bound_rule(holds: Callable[[float], bool]) -> Callable[[list[Any]], Any]:
    """The rule of `max` or `min` with a number: zero stays where the number does not bind."""
    return lambda xs: (
        _ZERO
        if any(map(_is_zero, xs)) and all(_is_zero(x) or _is_number(x, holds) for x in xs)
        else None
    )


def _is_number(
    value: Any,
    holds: Callable[[float], bool],
) -> bool:
    return isinstance(value, float) and holds(value)


_RULES: dict[str, Callable[[list[Any]], Any]] = {
    "copy": lambda xs: xs[0],
    "copy_p": lambda xs: xs[0],
    "add": _add,
    "add_any": _add,
    "sub": _subtract,
    "mul": lambda xs: _ZERO if any(map(_is_zero, xs)) else None,
    "div": lambda xs: _ZERO if _is_zero(xs[0]) and not _is_zero(xs[1]) else None,
    "select_n": _select,
    "max": _bound_rule(lambda number: number <= 0),
    "min": _bound_rule(lambda number: number >= 0),
}
