"""Matrix products that sum over several axes are computed over one axis.

Where messages are matrices (a batch of images, a bucket of sequences), the gradient of a weight sums over the messages and over the rows of
each. For such a product over two axes XLA writes an operand anew, transposed. Over the two axes merged into one, which is the same memory,
it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import Array

from ampjax.jaxprs.primitives import CALLS, bind, called, evaluate, opened


def over_one_axis(
    function: Callable[[], Any],
    rows: Iterable[Array],
) -> Any:
    """Calls a function with products over several leading axes of both operands computed over one axis.

    Those in loops and branches stay as they are.

    Args:
      function: Traced once; may use values of a trace around it.
      rows: The arrays that it works on, `[k, *shape]`. If none has more than two axes, no message is a matrix, and nothing is changed.

    Returns:
      What the function gives, a pytree of arrays.
    """
    if all(x.ndim < 3 for x in rows):
        return function()
    closed, shapes = jax.make_jaxpr(function, return_shape=True)()
    return jax.tree.unflatten(
        jax.tree.structure(shapes),
        _evaluate(closed.jaxpr, closed.consts, ()),
    )


def _evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
) -> list[Any]:
    """Evaluates a jaxpr, with jitted calls replaced by their bodies."""
    return evaluate(jaxpr, constants, args, _results)


def _results(equation: Any, operands: list[Any]) -> list[Any]:
    if equation.primitive.name in CALLS:
        return _evaluate(*opened(called(equation)), operands)
    if equation.primitive.name == "dot_general" and _sums_over_several(equation):
        return [_product(equation, *operands)]
    return bind(equation, operands)


def _sums_over_several(equation: Any) -> bool:
    """Tells whether a product sums over the first axes of both operands, more than one, in their order."""
    (left, right), batch = equation.params["dimension_numbers"]
    return (
        len(left) > 1 and tuple(left) == tuple(right) == tuple(range(len(left))) and not any(batch)
    )


def _product(equation: Any, left: Array, right: Array) -> Array:
    """The product over one axis."""
    (axes, _), _ = equation.params["dimension_numbers"]
    n = len(axes)
    left, right = (x.reshape(math.prod(x.shape[:n]), *x.shape[n:]) for x in (left, right))
    params = {
        **equation.params,
        "dimension_numbers": (
            ((0,), (0,)),
            ((), ()),
        ),
    }
    with equation.ctx.manager:
        return equation.primitive.bind(left, right, **params)
