"""Matrix products of two sequences that are turned round: `jnp.einsum` swaps its operands at will, and turns the result round behind the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from ampjax.frontend.combinators.tracing import trace, type_of
from ampjax.frontend.deduction.equations import Equation, Name, flatten
from ampjax.frontend.draft.long_axes import n_long_axes
from ampjax.jaxprs.primitives import bind


def with_products_straight(equations: Sequence[Equation]) -> list[Equation]:
    """The same equations, with operands of products swapped where the result's own axes of two sequences are.

    Args:
      equations: A function's equations, in order.
    """
    products = {}
    result = []
    for equation in equations:
        name = equation.source.primitive.name
        if name == "dot_general" and n_long_axes(equation.outputs[0].aval) > 1:
            products[equation.outputs[0]] = equation
        product = products.get(equation.inputs[0]) if name == "transpose" else None  # type: ignore[call-overload]
        if product is not None and _is_turned(equation):
            result += _swap_operands(product, equation)
        else:
            result.append(equation)
    return result


def _is_turned(equation: Equation) -> bool:
    """Whether a transpose puts axes of sequences in another order."""
    (operand,) = equation.inputs
    assert isinstance(operand, Name)
    order = []
    for axis in equation.source.params["permutation"]:
        if not isinstance(operand.aval.shape[axis], int):
            order.append(axis)
    return order != sorted(order)


def _swap_operands(product: Equation, turn: Equation) -> list[Equation]:
    """The equations of a product with its operands swapped, and of the transpose of its result.

    Args:
      product: The product.
      turn: The transpose behind it.
    """
    params = product.source.params
    contracted, batched = params["dimension_numbers"]
    numbers = (contracted[::-1], batched[::-1])
    precision = params["precision"]
    if isinstance(precision, tuple):
        precision = precision[::-1]
    swapped = product.source.replace(
        params={**params, "dimension_numbers": numbers, "precision": precision},
        invars=product.source.invars[::-1],
    )
    n_shared = len(batched[0])
    n_bound = len(contracted[0]) + n_shared
    left, right = (len(_type_of(atom).shape) - n_bound for atom in product.inputs)
    # where each axis of the product is when its operands are swapped
    places = [*range(n_shared)]
    places += range(
        n_shared + right,
        n_shared + right + left,
    )
    places += range(n_shared, n_shared + right)
    order = [places[axis] for axis in turn.source.params["permutation"]]

    def both(x: Any, y: Any) -> Any:
        return jax.lax.transpose(
            bind(swapped, [y, x])[0],
            order,
        )

    function = trace(
        both,
        *map(_type_of, product.inputs),
    )[0]
    atoms = dict(
        zip(
            function.variables,
            product.inputs,
            strict=True,
        )
    )
    equations, _ = flatten(function, atoms)
    placed = [
        replace(
            each,
            place=turn.place,
        )
        for each in equations
    ]
    return [
        *placed[:-1],
        replace(
            placed[-1],
            outputs=turn.outputs,
        ),
    ]


def _type_of(atom: Any) -> Any:
    """The type of an operand."""
    return atom.aval if isinstance(atom, Name) else type_of(atom.value)
