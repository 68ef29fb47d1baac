"""Products that sum over several axes at once are made over one.

Where messages are matrices (a batch of images, a bucket of sequences), the gradient of a weight sums over the messages and over the rows of each. That is a product
over two axes, for which XLA writes an operand anew, transposed; over the two axes put together, which is the same memory, it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import Array

from ampjax.jaxprs.flat_program import bind, is_literal, opened


def over_one_axis(function: Callable[[], Any], rows: Iterable[Array]) -> Any:
    """What `function` gives, a pytree of arrays, with products over several leading axes of both operands made over one.

    Those in loops and branches stay as they are.

    Args:
      function: Traced once; may use values of a trace around it.
      rows: What it works on, `[k, *shape]`: if none of them has more than two axes, no message is a matrix, and nothing is changed.
    """
    if all(x.ndim < 3 for x in rows):
        return function()
    closed, shapes = jax.make_jaxpr(function, return_shape=True)()
    return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(closed.jaxpr, closed.consts, ()))


def _evaluate(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The jaxpr's outputs, with jitted calls replaced by what is in them."""
    values = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    for equation in jaxpr.eqns:
        given, name = [read(atom) for atom in equation.invars], equation.primitive.name
        if name in ("jit", "pjit"):
            made = _evaluate(*opened(equation.params["jaxpr"]), given)
        elif name == "dot_general" and _sums_over_several(equation):
            made = [_product(equation, *given)]
        else:
            made = bind(equation, given)
        values.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _sums_over_several(equation: Any) -> bool:
    """Whether a product sums over the first axes of both operands, more than one, in their order."""
    (left, right), batch = equation.params["dimension_numbers"]
    return len(left) > 1 and tuple(left) == tuple(right) == tuple(range(len(left))) and not any(batch)


def _product(equation: Any, left: Array, right: Array) -> Array:
    """The product over one axis."""
    (axes, _), _ = equation.params["dimension_numbers"]
    n = len(axes)
    left, right = (x.reshape(math.prod(x.shape[:n]), *x.shape[n:]) for x in (left, right))
    given = {**equation.params, "dimension_numbers": (((0,), (0,)), ((), ()))}
    with equation.ctx.manager:
        return equation.primitive.bind(left, right, **given)
