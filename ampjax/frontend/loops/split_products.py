"""Products of joined rows, each factor apart: a loop then computes only products of late factors.

A recurrent layer is often written as `concatenate([x, h]) @ w`. Its sum is that of `x @ w[:n]`, which waits for nothing and is computed for all rows
before the loop, and of `h @ w[n:]`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.extend.core as jex
from jax.extend.core.primitives import add_p, slice_p

from ampjax.jaxprs.primitives import depending


def with_split_products(jaxpr: Any, late: Collection[Any]) -> Any:
    """An equal open jaxpr, in which no product contracts an axis along which late values are joined to others.

    Args:
      jaxpr: An open jaxpr.
      late: The inputs that come late.
    """
    comes_late = depending(jaxpr.eqns, late)
    joined = {}
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "concatenate":
            joined[equation.outvars[0]] = equation
        equations += _split(equation, joined, comes_late)
    if len(equations) == len(jaxpr.eqns):
        return jaxpr
    return jaxpr.replace(eqns=equations)


def _split(
    product: Any,
    joined: Mapping[Any, Any],
    late: Collection[Any],
) -> list[Any]:
    """The equations of a product whose factor is joined of early and late parts, or the equation alone.

    Args:
      product: An equation.
      joined: The equations that join, by their results.
      late: All variables that come late.
    """
    if product.primitive.name != "dot_general":
        return [product]
    contracted, _ = product.params["dimension_numbers"]
    for side in (0, 1):
        factor = product.invars[side]
        join = None if isinstance(factor, jex.Literal) else joined.get(factor)
        if join is None or contracted[side] != (join.params["dimension"],):
            continue
        groups = []
        for _, parts in itertools.groupby(
            join.invars,
            key=lambda part: _is_late(part, late),
        ):
            groups.append([*parts])
        if len(groups) > 1:
            return _sum_of_products(product, side, join, groups)
    return [product]


def _is_late(part: Any, late: Collection[Any]) -> bool:
    return not isinstance(part, jex.Literal) and part in late


def _sum_of_products(
    product: Any,
    side: int,
    join: Any,
    groups: Sequence[Sequence[Any]],
) -> list[Any]:
    """The equations of a sum of products, one for each group of parts.

    Args:
      product: The product.
      side: Which of its factors is joined.
      join: The equation that joins.
      groups: The parts.
    """
    axis = join.params["dimension"]
    other = product.invars[1 - side]
    contracted, _ = product.params["dimension_numbers"]
    (other_axis,) = contracted[1 - side]
    equations = []
    total = None
    start = 0
    for parts in groups:
        end = start + sum(part.aval.shape[axis] for part in parts)
        # the parts of the group, joined where there are several
        factor = parts[0]
        if len(parts) > 1:
            factor = _resized(join.outvars[0], axis, end - start)
            equations.append(join.replace(invars=[*parts], outvars=[factor]))
        # the rows of the other factor that meet these parts
        rows = _resized(other, other_axis, end - start)
        first = [0] * len(other.aval.shape)
        first[other_axis] = start
        limit = [*other.aval.shape]
        limit[other_axis] = end
        settings = {
            "start_indices": tuple(first),
            "limit_indices": tuple(limit),
            "strides": None,
        }
        equations.append(
            product.replace(
                primitive=slice_p,
                params=settings,
                invars=[other],
                outvars=[rows],
            )
        )
        # their product, added to those of the groups before
        last = parts is groups[-1]
        own = jex.Var(product.outvars[0].aval)
        factors = [rows, rows]
        factors[side] = factor
        equations.append(product.replace(invars=factors, outvars=[own]))
        if total is not None:
            together = product.outvars[0] if last else jex.Var(own.aval)
            equations.append(
                product.replace(
                    primitive=add_p,
                    params={},
                    invars=[total, own],
                    outvars=[together],
                )
            )
            own = together
        total = own
        start = end
    return equations


def _resized(variable: Any, axis: int, size: int) -> Any:
    """A new variable like another one, of another size along an axis."""
    shape = [*variable.aval.shape]
    shape[axis] = size
    return jex.Var(variable.aval.update(shape=tuple(shape)))
