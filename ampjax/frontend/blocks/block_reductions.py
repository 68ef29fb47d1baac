"""Sums and the like over the elements across, of values in a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, along, as_typed, zeros
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.blocks.block_bodies import BlockBody
from ampjax.frontend.blocks.block_maps import block_in, is_in_block
from ampjax.frontend.blocks.grids import Grid
from ampjax.frontend.combinators.sequences import least
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.values import Constant, Elements, Static

LETTERS = "ijklmnoqrstuvwyz"
"""Names of the axes of a value's own shape in a sum of products."""


def block_reduction(
    body: Body,
    name: str,
    xs: Elements,
    kind: Any,
    element: Any,
) -> View | None:
    """Reduces the pairs of each row; None where the pairs are no block.

    Args:
      body: The rows.
      name: Which: `sum`, `max` or `logsumexp`.
      xs: The pairs.
      kind: The type of a result.
      element: The type of an element.
    """
    grid = block_in(body, xs.space)
    if grid is None or not is_in_block(body, grid, xs.element):
        return None
    inner = BlockBody(body.low, body.block, grid)
    rows = inner.operand(xs.element, element)
    if "x" not in grid.axes(rows):
        return None
    assert isinstance(rows, Rows)
    axes = grid.axes(rows).removesuffix("x")
    out = Rows(kind, grid.rooms[axes])
    factors = grid.products.get(rows, ())
    is_product = name == "sum" and _is_sum_of_products(inner, grid, rows, factors)

    def compute(run: Run) -> list[Any]:
        sizes = grid.sizes(run)
        lead = [sizes[axis] for axis in axes]
        if 0 in (*lead, sizes["x"]):
            return [zeros((math.prod(lead),), kind)]
        if is_product:
            found = _sum_of_products(
                grid,
                run,
                rows,
                factors,
            )
        else:
            values = grid.shaped(run, rows)
            counts = _along(
                grid.counts(run),
                "px",
                axes + "x",
                values.ndim,
            )
            found = _REDUCTIONS[name](
                values,
                counts,
                len(axes),
            )
        return [as_typed(found.reshape(-1, *found.shape[len(axes) :]), kind)]

    body.block.add([out], compute)
    result = _outside(body, grid, out, name)
    grid.results[result] = out
    return result


def _outside(
    body: Body,
    grid: Grid,
    rows: Rows,
    name: str,
) -> View:
    """Brings a reduction to the rows around; rows without pairs get the reduction of nothing."""
    kind = rows.aval
    pairs = grid.spaces.pairs
    given = body.rows(grid.view(rows), kind)
    none = Static(Column(body.space, lambda data: pairs.lengths(data) == 0))
    is_empty = body.rows(
        none,
        jax.ShapeDtypeStruct((), np.bool_),
    )
    out = Rows(kind, body.room)
    empty = 0 if name == "sum" else least(kind.dtype)

    def compute(run: Run) -> list[Any]:
        values = run.get(given)
        of_nothing = jnp.asarray(
            empty,
            kind.dtype,
        )
        return [jnp.where(along(run.get(is_empty), values), of_nothing, values)]

    body.block.add([out], compute)
    return View(out, body.space)


def _along(
    mask: Any,
    own: str,
    axes: str,
    n_axes: int,
) -> Any:
    """A mask over some axes, of a shape that fits values with more.

    Args:
      mask: The mask.
      own: Its axes.
      axes: The values' leading axes.
      n_axes: How many axes they have.
    """
    sizes = dict(zip(own, mask.shape, strict=True))
    shape = [sizes.get(axis, 1) for axis in axes]
    return mask.reshape(
        *shape,
        *(1,) * (n_axes - len(axes)),
    )


def _is_sum_of_products(
    body: Body,
    grid: Grid,
    rows: Rows,
    factors: Any,
) -> bool:
    """Whether each of two factors lacks an axis that the product has, so that their sum is a matrix product."""
    if len(factors) != 2 or any(isinstance(x, Constant) or x.room is None for x in factors):
        return False
    if not all(body.block.sees(x) for x in factors):
        return False
    if not jnp.issubdtype(rows.aval.dtype, jnp.floating):
        return False
    every = _letters(grid, rows, rows)
    return all(_letters(grid, x, rows) != every for x in factors)


def _letters(grid: Grid, factor: Rows, product: Rows) -> str:
    """Names the axes of a factor, a letter each; leaves out axes of size 1 that are longer in the product."""
    shape = factor.aval.shape
    own = ""
    if shape:
        for letter, size, whole in zip(LETTERS, shape, product.aval.shape, strict=False):
            if size == whole:
                own += letter
    return grid.axes(factor) + own


def _sum_of_products(
    grid: Grid,
    run: Run,
    rows: Rows,
    factors: Any,
) -> Any:
    counts = grid.counts(run)
    operands = []
    names = []
    each = [grid.shaped(run, factor) for factor in factors]
    # elements that do not count are nothing in one of the factors: that with fewer numbers
    of_pairs = [i for i in range(len(factors)) if "x" in grid.axes(factors[i])]
    fewest = min(of_pairs, key=lambda i: each[i].size)
    for number, (factor, values) in enumerate(zip(factors, each, strict=True)):
        axes = grid.axes(factor)
        if number == fewest:
            mask = _along(
                counts,
                "px",
                axes,
                values.ndim,
            )
            values = jnp.where(
                mask,
                values,
                jnp.zeros_like(values),
            )
        own = _letters(grid, factor, rows)
        ones = []
        for number, size in enumerate(factor.aval.shape):
            if size != rows.aval.shape[number]:
                ones.append(len(axes) + number)
        operands.append(jnp.squeeze(values, tuple(ones)))
        names.append(own)
    every = _letters(grid, rows, rows).replace(
        "x",
        "",
    )
    formula = f"{','.join(names)}->{every}"
    return jnp.einsum(
        formula,
        *operands,
        precision=jax.lax.Precision.HIGHEST,
    )


def _sum(values: Any, counts: Any, axis: int) -> Any:
    return jnp.sum(
        jnp.where(counts, values, jnp.zeros_like(values)),
        axis,
        dtype=values.dtype,
    )


def _max(values: Any, counts: Any, axis: int) -> Any:
    lowest = jnp.asarray(
        least(values.dtype),
        values.dtype,
    )
    return jnp.max(
        jnp.where(counts, values, lowest),
        axis,
        initial=lowest,
    )


def _log_sum_exp(values: Any, counts: Any, axis: int) -> Any:
    return jax.nn.logsumexp(jnp.where(counts, values, -jnp.inf), axis)


_REDUCTIONS: dict[str, Callable[[Any, Any, int], Any]] = {
    "sum": _sum,
    "max": _max,
    "logsumexp": _log_sum_exp,
}
