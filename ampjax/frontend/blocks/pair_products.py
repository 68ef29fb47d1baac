"""Products of arrays on pairs, with their factors: a sum of products is a matrix product, and no array of all pairs by all features is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.programs_of_rows import Rows
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.values import Constant

LETTERS = "ijklmnoqrstuvwyz"
"""Names of the axes of a value's own shape in a sum of products."""


@dataclass(frozen=True, eq=False)
class Factor:
    """One of the arrays that are multiplied.

    Args:
      operand: The array.
      axes: For each axis of its own shape the axis of the product; None for one of size 1.
    """

    operand: Rows | Constant
    axes: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class PairProduct:
    """An array on pairs as a product of others, each with some of its axes.

    Args:
      factors: The others.
      shape: The product's own shape.
    """

    factors: tuple[Factor, ...]
    shape: tuple[int, ...]

    def moved(
        self,
        axes: Sequence[int | None],
        shape: Sequence[int],
    ) -> PairProduct:
        """The same product in another shape.

        Args:
          axes: For each axis so far the axis of the new shape; None for one that goes.
          shape: The new shape.
        """
        factors = []
        for factor in self.factors:
            own = [None if axis is None else axes[axis] for axis in factor.axes]
            factors.append(
                Factor(
                    factor.operand,
                    tuple(own),
                )
            )
        return PairProduct(tuple(factors), tuple(shape))

    def summed(
        self,
        lead: Callable[[Rows | Constant], str],
        sums: Sequence[int],
        across: bool = False,
    ) -> SumOfProducts | None:
        """The sum of the product over some of its axes; None if that is no matrix product: one factor has all axes, or an axis is in none.

        Args:
          lead: Gives the axes of an array beside its own ones: `p`, `a`, `x`.
          sums: The axes of the product's own shape over which it is summed.
          across: Whether it is summed over `x` as well.
        """
        every = {axis for axis, size in enumerate(self.shape) if size != 1}
        names = []
        for factor in self.factors:
            own = [LETTERS[axis] for axis in factor.axes if axis is not None]
            names.append(lead(factor.operand) + "".join(own))
        all_letters = {*"pax", *(LETTERS[axis] for axis in every)}
        used = [set(name) for name in names]
        if set().union(*used) != all_letters or all_letters in used:
            return None
        if any(len(set(name)) < len(name) for name in names):
            return None
        left = [LETTERS[axis] for axis in sorted(every - {*sums})]
        letters = ("pa" if across else "pax") + "".join(left)
        return SumOfProducts(
            self.factors,
            names,
            letters,
        )


@dataclass(frozen=True, eq=False)
class SumOfProducts:
    """A sum over axes of a product.

    Args:
      factors: The product's factors.
      names: The axes of each, a letter each.
      letters: The axes of the sum.
    """

    factors: tuple[Factor, ...]
    names: Sequence[str]
    letters: str

    @property
    def arrays(self) -> list[Rows]:
        """The arrays among the factors."""
        operands = []
        for factor in self.factors:
            if isinstance(factor.operand, Rows):
                operands.append(factor.operand)
        return operands

    def compute(self, values: Sequence[Any], counts: Any = None) -> Any:
        """Computes the sum, with axes as its letters say.

        Args:
          values: The factors' values, each with an axis for each of its own.
          counts: Which elements across count, `[p, x]`; None where the sum is over other axes.
        """
        numbers: list[Any] = []
        arrays = []
        names = []
        for factor, name, value in zip(
            self.factors,
            self.names,
            values,
            strict=True,
        ):
            shape = jnp.shape(value)
            n_lead = len(shape) - len(factor.axes)
            sizes = [*shape[:n_lead]]
            for axis, size in zip(
                factor.axes,
                shape[n_lead:],
                strict=True,
            ):
                if axis is not None:
                    sizes.append(size)
            if name:
                arrays.append(jnp.reshape(value, sizes))
                names.append(name)
            else:
                numbers.append(jnp.reshape(value, ()))
        # what is the same for all pairs, and elements that do not count, go into the factor with the fewest numbers
        across = [i for i, name in enumerate(names) if "x" in name]
        fewest = min(
            across,
            key=lambda i: arrays[i].size,
        )
        for number in numbers:
            arrays[fewest] = arrays[fewest] * number.astype(arrays[fewest].dtype)
        if counts is not None:
            mask = _fit_axes(counts, names[fewest])
            arrays[fewest] = jnp.where(
                mask,
                arrays[fewest],
                jnp.zeros_like(arrays[fewest]),
            )
        return jnp.einsum(
            f"{','.join(names)}->{self.letters}",
            *arrays,
            precision=jax.lax.Precision.HIGHEST,
        )


def _fit_axes(counts: Any, letters: str) -> Any:
    """`[p, x]` in a shape that fits an array of these axes."""
    sizes = dict(zip("px", counts.shape, strict=True))
    shape = [sizes.get(letter, 1) for letter in letters]
    return counts.reshape(shape)


Products = Mapping[Rows, PairProduct]
"""By array, what it is a product of."""


def product_of(
    equation: Equation,
    operands: Sequence[Rows | Constant],
    known: Products,
) -> PairProduct | None:
    """Returns the product of which an equation gives the result; None for other equations.

    Args:
      equation: The equation.
      operands: Its operands.
      known: Of products so far.
    """
    source = equation.source
    rule = _RULES.get(source.primitive.name)
    kind = equation.outputs[0].aval.dtype
    if rule is None or not jnp.issubdtype(
        kind,
        jnp.floating,
    ):
        return None
    parts = []
    for operand in operands:
        if isinstance(operand, Constant):
            parts.append(_alone(operand))
            continue
        if operand.aval.dtype != kind:
            return None
        parts.append(known.get(operand) or _alone(operand))
    return rule(
        source.params,
        parts,
        tuple(equation.outputs[0].aval.shape),
    )


def product_of_arrays(arrays: Sequence[Rows]) -> PairProduct:
    """The product of arrays of one shape.

    Args:
      arrays: The arrays.
    """
    return _mul(
        None,
        [_alone(array) for array in arrays],
        tuple(arrays[0].aval.shape),
    )


def _alone(operand: Rows | Constant) -> PairProduct:
    """An array as a product of one factor."""
    if isinstance(operand, Constant):
        shape = np.shape(operand.value)
    else:
        shape = operand.aval.shape
    axes = [None if size == 1 else axis for axis, size in enumerate(shape)]
    return PairProduct(
        (Factor(operand, tuple(axes)),),
        tuple(shape),
    )


Parts = Sequence[PairProduct]
Shape = tuple[int, ...]


def _mul(params: Any, parts: Parts, shape: Shape) -> PairProduct:
    factors = [factor for part in parts for factor in part.factors]
    return PairProduct(tuple(factors), shape)


def _div(params: Any, parts: Parts, shape: Shape) -> PairProduct | None:
    """A quotient by an array that is known, as a product with its reciprocal."""
    dividend, divisor = parts
    factor = divisor.factors[0]
    if len(divisor.factors) > 1 or not isinstance(factor.operand, Constant):
        return None
    reciprocal = Constant(1 / jnp.asarray(factor.operand.value))
    return _mul(
        params,
        [dividend, PairProduct((Factor(reciprocal, factor.axes),), shape)],
        shape,
    )


def _neg(params: Any, parts: Parts, shape: Shape) -> PairProduct:
    minus = _alone(Constant(np.float32(-1)))
    return _mul(params, [*parts, minus], shape)


def _broadcast(params: Any, parts: Parts, shape: Shape) -> PairProduct:
    (part,) = parts
    return part.moved(
        params["broadcast_dimensions"],
        shape,
    )


def _reshape(params: Any, parts: Parts, shape: Shape) -> PairProduct | None:
    """Another shape with the same axes but for axes of size 1."""
    (part,) = parts
    before = [axis for axis, size in enumerate(part.shape) if size != 1]
    after = [axis for axis, size in enumerate(shape) if size != 1]
    if [part.shape[axis] for axis in before] != [shape[axis] for axis in after]:
        return None
    moved = dict(zip(before, after, strict=True))
    return part.moved(
        [moved.get(axis) for axis in range(len(part.shape))],
        shape,
    )


def _transpose(params: Any, parts: Parts, shape: Shape) -> PairProduct:
    (part,) = parts
    moved = {axis: number for number, axis in enumerate(params["permutation"])}
    return part.moved(
        [moved[axis] for axis in range(len(shape))],
        shape,
    )


def _outer(params: Any, parts: Parts, shape: Shape) -> PairProduct | None:
    """A matrix product without a sum, with the axes of both, in the order of JAX."""
    contracted, batched = params["dimension_numbers"]
    if math.prod(parts[0].shape[axis] for axis in contracted[0]) != 1:
        return None
    n = len(batched[0])
    moved = []
    for part, gone, shared in zip(
        parts,
        contracted,
        batched,
        strict=True,
    ):
        axes: list[int | None] = [None] * len(part.shape)
        for number, axis in enumerate(shared):
            axes[axis] = number
        for axis in range(len(part.shape)):
            if axis not in gone and axis not in shared:
                axes[axis] = n
                n += 1
        moved.append(part.moved(axes, shape))
    return _mul(params, moved, shape)


_RULES: Mapping[str, Callable[[Any, Parts, Shape], PairProduct | None]] = {
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "dot_general": _outer,
}
