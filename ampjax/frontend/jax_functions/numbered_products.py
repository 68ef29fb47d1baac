"""Products with matrices that numbers choose, as `x @ table[number]`: the read and the product become one equation.

Of many rows it is computed in blocks of rows of one number; see `grouped_rows`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from ampjax.frontend.deduction.equations import Atom, Equation
from ampjax.frontend.draft.long_axes import element_type, is_sequence, long_axis, n_long_axes
from ampjax.frontend.jax_functions.element_operations import (
    NotByElementError,
    element_axes,
    on_element,
)
from ampjax.frontend.loops.grouped_rows import ROWS, MatrixRead, NumberedProduct
from ampjax.frontend.loops.table_products import MOST_ROWS
from ampjax.jaxprs.primitives import is_inexact, opened
from ampjax.lanes.rewriting.linear_pairs import fill_tangents

READS = ("gather", "dynamic_slice")

MOVES = ("convert_element_type", "reshape", "squeeze", "transpose")
"""Operations between the read of a matrix and its use that change its axes and dtype."""

ONE: Any = jex.Primitive("numbered_product")


def with_numbered_products(
    equations: Sequence[Equation], results: Sequence[Atom]
) -> list[Equation]:
    """The same equations, with reads of matrices joined to products where no other equation uses the matrices.

    Args:
      equations: A function's equations, in order.
      results: What it gives.
    """
    if not any(each.source.primitive.name in (*READS, ONE.name) for each in equations):
        return [*equations]
    found = _factors(equations)
    users: dict[Atom, list[Equation | None]] = defaultdict(list)
    for equation in equations:
        for atom in equation.inputs:
            users[atom].append(equation)
    for atom in results:
        users[atom].append(None)
    joined = []
    for equation in equations:
        factor = found.get(equation)
        if equation.source.primitive is ONE:
            joined.append(
                replace(
                    equation,
                    indexing=_read_in(equation),
                )
            )
        elif factor is not None and _is_for_products(factor.read, users, found):
            joined.append(factor.joined(equation))
        else:
            joined.append(equation)
    return joined


def _factors(equations: Sequence[Equation]) -> dict[Equation, _Factor]:
    """The products of which one factor is a matrix that is read, and not both."""
    made_by = {name: equation for equation in equations for name in equation.outputs}
    found = {}
    for equation in equations:
        factors = [
            _factor(
                equation,
                side,
                made_by,
            )
            for side in (0, 1)
        ]
        one, *others = [factor for factor in factors if factor is not None] or [None]
        if one is not None and not others:
            found[equation] = one
    return found


def _read_in(product: Equation) -> Equation:
    """The read in a product of one element."""
    how = product.source.params["how"]
    return replace(
        product,
        source=how.matrix.equations[0],
        inputs=product.inputs[1:],
    )


@dataclass(
    frozen=True,
    eq=False,
)
class _Factor:
    """A matrix, read by numbers, that is a factor of a product.

    Args:
      read: The equation that reads it.
      how: The product of one row.
    """

    read: Equation
    how: NumberedProduct

    def joined(
        self,
        product: Equation,
    ) -> Equation:
        """The product and the read as one equation."""
        place = 1 - self.how.side
        source = product.source.replace(
            primitive=ONE,
            params={"how": self.how},
            invars=[product.source.invars[place], *self.read.source.invars],
        )
        inputs = (product.inputs[place], *self.read.inputs)
        return replace(
            product,
            source=source,
            inputs=inputs,
            indexing=self.read,
        )


def _factor(
    product: Equation,
    side: int,
    made_by: Mapping[Any, Equation],
) -> _Factor | None:
    """A factor of a product, if a matrix that is larger than the other factor and the result is read there from a small table."""
    if product.source.primitive.name != "dot_general":
        return None
    equation = made_by.get(product.inputs[side])
    chain = [product]
    while equation is not None and equation.source.primitive.name in MOVES:
        chain.append(equation)
        equation = made_by.get(equation.inputs[0])
    if equation is None or equation.source.primitive.name not in READS:
        return None
    chain.append(equation)
    sources = _of_one_row(
        [each.source for each in reversed(chain)],
        side,
    )
    if sources is None or not _is_by_numbers(sources[0]):
        return None
    *reads, last = sources
    how = NumberedProduct(
        MatrixRead(tuple(reads)),
        last,
        side,
    )
    shapes = (how.row.shape, how.result.shape)
    is_larger = math.prod(last.invars[side].aval.shape) > sum(map(math.prod, shapes))
    is_table = 1 < how.matrix.n_groups <= MOST_ROWS
    return (
        _Factor(
            equation,
            how,
        )
        if is_larger and is_table
        else None
    )


def _of_one_row(
    equations: Sequence[Any],
    side: int,
) -> list[Any] | None:
    """Equations from a read to a product, of one row; of sequences for one element, or None where the elements' axis is elsewhere than in front.

    Args:
      equations: JAX's equations.
      side: Which factor of the product is read.
    """
    read, *moves, product = equations
    other = product.invars[1 - side]
    given = [other.aval, *(atom.aval for atom in read.invars)]
    if not any(map(is_sequence, [*given, read.outvars[0].aval])):
        return [*equations]
    if not all(map(_is_of_elements, equations)):
        return None
    types = [element_type(kind) if is_sequence(kind) else kind for kind in given]

    def of_one(row: Any, *operands: Any) -> Any:
        (found,) = on_element(
            read,
            operands,
        )
        for each in moves:
            (found,) = on_element(
                each,
                [found],
            )
        factors = [row, row]
        factors[side] = found
        return on_element(
            product,
            factors,
        )

    try:
        found, _ = opened(jax.make_jaxpr(of_one)(*types))
    except NotByElementError:
        return None
    is_same = [each.primitive for each in found.eqns] == [each.primitive for each in equations]
    return [*found.eqns] if is_same else None


def _is_of_elements(equation: Any) -> bool:
    """Whether an equation does the same to each element of sequences, whose axes are in front."""
    long = [long_axis(atom.aval) for atom in equation.invars]
    is_each = element_axes(equation) == long and long_axis(equation.outvars[0].aval) == 0
    return is_each and max(map(_n_long, equation.invars)) <= 1 and not any(long)


def _n_long(atom: Any) -> int:
    return n_long_axes(atom.aval)


def _is_by_numbers(read: Any) -> bool:
    """Whether an equation of one row reads one part of an array of floats of known shape."""
    table, numbers, *_ = (atom.aval for atom in read.invars)
    if is_sequence(table) or not is_inexact(table.dtype):
        return False
    if read.primitive.name == "dynamic_slice":
        return True
    is_batched = read.params["dimension_numbers"].operand_batching_dims
    return len(numbers.shape) == 1 and not is_batched


def _is_for_products(
    read: Equation, users: Mapping[Atom, Sequence[Equation | None]], found: Mapping[Any, Any]
) -> bool:
    """Whether all uses of a read are products that the read can be joined to."""
    for user in users[read.outputs[0]]:
        if user is None:
            return False
        if user.source.primitive.name in MOVES:
            if not _is_for_products(user, users, found):
                return False
        elif user not in found:
            return False
    return True


def _run(*args: Any, how: NumberedProduct) -> Any:
    return how.of_one(*args)


def _derivative(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    how: NumberedProduct,
) -> Any:
    """Differentiates the product of one row as JAX does."""
    return jax.jvp(
        how.of_one,
        tuple(primals),
        tuple(map(fill_tangents, tangents)),
    )


def _of_rows(
    args: Sequence[Any],
    axes: Sequence[Any],
    how: NumberedProduct,
) -> Any:
    """The products of many rows: of matrices that are not each row's own, as JAX computes the read and the product."""
    is_each = [axis is not None for axis in axes]
    if is_each[1] or not any(is_each[2:]):
        return jax.vmap(
            how.of_one,
            in_axes=tuple(axes),
        )(*args), 0
    n = args[is_each.index(True)].shape[axes[is_each.index(True)]]
    moved = []
    for place, (value, axis) in enumerate(zip(args, axes, strict=True)):
        if axis is not None:
            moved.append(
                jnp.moveaxis(
                    value,
                    axis,
                    0,
                )
            )
        elif place == 1:
            moved.append(value)
        else:
            moved.append(
                jnp.broadcast_to(
                    value,
                    (n, *jnp.shape(value)),
                )
            )
    return ROWS.bind(
        *moved,
        how=how,
    ), 0


ONE.def_impl(_run)
ONE.def_abstract_eval(
    lambda *_, how: ShapedArray(
        how.result.shape,
        how.result.dtype,
    )
)
ad.primitive_jvps[ONE] = _derivative
batching.primitive_batchers[ONE] = _of_rows
mlir.register_lowering(
    ONE,
    mlir.lower_fun(
        _run,
        multiple_results=False,
    ),
)
