"""Sums and the like over the elements across, of values in a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, as_typed, zeros
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.blocks.block_bodies import BlockBody
from ampjax.frontend.blocks.block_maps import block_in, is_in_block
from ampjax.frontend.blocks.grids import Exponentials, Grid
from ampjax.frontend.blocks.pair_products import SumOfProducts
from ampjax.frontend.combinators.sequences import LOGSUMEXP, MAX, SUM, least
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.loops.masked_rows import along


def block_reduction(
    body: Body,
    name: str,
    xs: Elements,
    kind: Any,
    element: Any,
) -> View | None:
    """Reduces the pairs of each row; None where the pairs are no block, or a block does not know the reduction.

    Args:
      body: The rows.
      name: Which; a block knows `sum`, `max`, `min`, `argmax`, `argmin` and `logsumexp`.
      xs: The pairs.
      kind: The type of a result.
      element: The type of an element.
    """
    if name != LOGSUMEXP.name and name not in _REDUCTIONS:
        return None
    grid = block_in(body, xs.space)
    if grid is None or not is_in_block(
        body,
        grid,
        xs.element,
    ):
        return None
    inner = BlockBody(body.low, body.block, grid)
    rows = inner.operand(xs.element, element)
    if "x" not in grid.axes(rows):
        return None
    assert isinstance(rows, Rows)
    axes = grid.axes(rows).removesuffix("x")
    if name == LOGSUMEXP.name:
        out = _log_sum_exp(body, grid, rows, axes)
        return _note_reduction(body, grid, out, name)
    out = Rows(kind, grid.rooms[axes])
    total = _summed_product(inner, grid, rows) if name == SUM.name else None

    def compute(run: Run) -> list[Any]:
        sizes = grid.sizes(run)
        lead = [sizes[axis] for axis in axes]
        if 0 in (*lead, sizes["x"]):
            return [zeros((math.prod(lead),), kind)]
        if total is not None:
            result = _computed_total(grid, run, total)
            result = result.reshape(*lead, *kind.shape)
        else:
            result = _reduce_across(
                grid,
                run,
                rows,
                axes,
                name,
            )
        return [
            as_typed(
                result.reshape(-1, *result.shape[len(axes) :]),
                kind,
            )
        ]

    body.block.add([out], compute)
    return _note_reduction(body, grid, out, name)


def _summed_product(
    inner: BlockBody,
    grid: Grid,
    rows: Rows,
) -> SumOfProducts | None:
    """The sum of rows over the elements across, as a sum of products; None where rows are no product, or the block lacks a factor."""
    product = grid.products.get(rows)
    if product is None:
        return None
    total = product.summed(
        grid.axes,
        (),
        across=True,
    )
    if total is None or not all(map(inner.block.sees, total.arrays)):
        return None
    return total


def _computed_total(
    grid: Grid,
    run: Run,
    total: SumOfProducts,
) -> Any:
    """The value of a sum of products."""
    factors = []
    for factor in total.factors:
        factors.append(grid.shaped(run, factor.operand))
    return total.compute(factors, grid.counts(run))


def _reduce_across(
    grid: Grid,
    run: Run,
    rows: Rows,
    axes: str,
    name: str,
) -> Any:
    """Rows reduced over the elements across, by the reduction of a name."""
    values = grid.shaped(run, rows)
    counts = _along(
        grid.counts(run),
        "px",
        axes + "x",
        values.ndim,
    )
    return _REDUCTIONS[name](
        values,
        counts,
        len(axes),
    )


def _note_reduction(
    body: Body,
    grid: Grid,
    out: Rows,
    name: str,
) -> View:
    """A reduction for the rows around, which the block knows as its own."""
    result = _outside(body, grid, out, name)
    grid.results[result] = out
    return result


def _log_sum_exp(
    body: Body,
    grid: Grid,
    rows: Rows,
    axes: str,
) -> Rows:
    """Adds the logarithm of a sum of exponentials, and keeps these for a softmax."""
    kind = rows.aval
    room = grid.rooms[axes]
    out = Rows(kind, room)
    each = Rows(kind, rows.room)
    total = Rows(kind, room)

    def compute(run: Run) -> list[Any]:
        values = grid.shaped(run, rows)
        lead = math.prod(values.shape[: len(axes)])
        if not values.size:
            return [
                zeros(
                    (lead,),
                    kind,
                ),
                run.zeros(each),
                zeros((lead,), kind),
            ]
        counts = _along(
            grid.counts(run),
            "px",
            axes + "x",
            values.ndim,
        )
        # what does not count is a copy of what does, so no exponential is above 1
        largest = jnp.max(
            jnp.where(
                counts,
                jax.lax.stop_gradient(values),
                -jnp.inf,
            ),
            len(axes),
            keepdims=True,
        )
        largest = jnp.where(
            jnp.isfinite(largest),
            largest,
            0,
        )
        shifted = jnp.exp(values - largest)
        sums = _sum(
            shifted,
            counts,
            len(axes),
        )
        logarithm = jnp.log(sums) + jnp.squeeze(
            largest,
            len(axes),
        )
        parts = [logarithm.reshape(lead, *kind.shape)]
        parts.append(shifted.reshape(-1, *kind.shape))
        parts.append(sums.reshape(lead, *kind.shape))
        return [as_typed(x, kind) for x in parts]

    body.block.add([out, each, total], compute)
    grid.computed |= {each, total}
    grid.exponentials[out] = Exponentials(
        rows,
        each,
        total,
    )
    return out


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
    none = Static(
        Column(
            body.space,
            lambda data: pairs.lengths(data) == 0,
        )
    )
    is_empty = body.rows(
        none,
        jax.ShapeDtypeStruct((), np.bool_),
    )
    out = Rows(kind, body.room)
    empty = _OF_NOTHING[name](kind.dtype)

    def compute(run: Run) -> list[Any]:
        values = run.get(given)
        of_nothing = jnp.asarray(
            empty,
            kind.dtype,
        )
        return [
            jnp.where(
                along(run.get(is_empty), values),
                of_nothing,
                values,
            )
        ]

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


def _sum(values: Any, counts: Any, axis: int) -> Any:
    return jnp.sum(
        jnp.where(
            counts,
            values,
            jnp.zeros_like(values),
        ),
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


def _min(values: Any, counts: Any, axis: int) -> Any:
    largest = _greatest(values.dtype)
    return jnp.min(
        jnp.where(counts, values, jnp.asarray(largest, values.dtype)),
        axis,
        initial=largest,
    )


def _argmax(values: Any, counts: Any, axis: int) -> Any:
    lowest = jnp.asarray(least(values.dtype), values.dtype)
    return jnp.argmax(jnp.where(counts, values, lowest), axis)


def _argmin(values: Any, counts: Any, axis: int) -> Any:
    largest = jnp.asarray(_greatest(values.dtype), values.dtype)
    return jnp.argmin(jnp.where(counts, values, largest), axis)


def _greatest(dtype: Any) -> Any:
    """The number that no other one of a dtype exceeds."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.inf
    return True if dtype == np.bool_ else jnp.iinfo(dtype).max


_REDUCTIONS: dict[str, Callable[[Any, Any, int], Any]] = {
    SUM.name: _sum,
    MAX.name: _max,
    "min": _min,
    "argmax": _argmax,
    "argmin": _argmin,
}

_OF_NOTHING: dict[str, Callable[[Any], Any]] = {
    SUM.name: lambda dtype: 0,
    MAX.name: least,
    LOGSUMEXP.name: least,
    "min": _greatest,
    "argmax": lambda dtype: 0,
    "argmin": lambda dtype: 0,
}
"""The reduction of no pairs, by the dtype of a result."""
