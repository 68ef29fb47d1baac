"""Products of rows read from a small table: the table is multiplied, and rows of the product are read.

A row that a batch reads a hundred times, as the embedding of a frequent word, is multiplied once, and so is its cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.lax import GatherScatterMode

from ampjax.frontend.loops.traced_rows import TracedRows, is_read_early
from ampjax.jaxprs.primitives import bind, is_inexact
from ampjax.jaxprs.wide_sums import WIDE, is_low

LEAVES_OUT_AXES = ("squeeze", "reshape")
"""Operations between the read of a slice of one row and its use as a row."""


MOST_ROWS = 1000
"""Rows of a small table at most. A larger one is read row by row, as data-parallel runners want the tables that they keep in host memory."""


def is_small(n_reads: int, n_rows: int) -> bool:
    """Tells whether a table has far fewer rows than are read.

    Args:
      n_reads: How many reads there are.
      n_rows: How many rows the table has.
    """
    return n_rows <= MOST_ROWS and not is_read_early(n_reads, n_rows)


def reads_rows(read: Any) -> bool:
    """Tells whether an equation reads whole rows of a table `[rows, n]`.

    The second operand has the numbers of the rows, each alone or with the number of a column behind.

    Args:
      read: An equation of JAX.
    """
    name = read.primitive.name
    if name not in ("gather", "dynamic_slice"):
        return False
    table, numbers, *_ = (operand.aval for operand in read.invars)
    if table.ndim != 2 or not is_inexact(table.dtype):
        return False
    params = read.params
    n_columns = table.shape[1]
    if name == "dynamic_slice":
        return params["slice_sizes"] == (1, n_columns)
    how = params["dimension_numbers"]
    # with a number outside, a whole row is filled: with what a product turns into the same
    is_filled = params["mode"] == GatherScatterMode.FILL_OR_DROP
    fills_alike = not is_filled or params["fill_value"] in (None, 0)
    by_row = how.start_index_map == (0,) or (how.start_index_map == (0, 1) and not is_filled)
    # the axes of the result: first that of the numbers, if there is one, then those of a row
    shape = read.outvars[0].aval.shape
    n_front = numbers.ndim - 1
    return (
        by_row
        and fills_alike
        and not how.operand_batching_dims
        and params["slice_sizes"] == (1, n_columns)
        and how.offset_dims == tuple(range(n_front, len(shape)))
        and shape[n_front:] in ((n_columns,), (1, n_columns))
    )


def read_of_product(
    read: Any,
    table: Any,
    numbers: Any,
    multiply: Callable[[Any], Any],
) -> Any:
    """The products of rows of a table, `[n, ...]`.

    Args:
      read: The equation that reads the rows.
      table: The table.
      numbers: `[n]`, `[n, 1]` or `[n, 2]`, as the equation takes them, of one row or of all.
      multiply: From rows to their products.
    """
    mode = read.params.get("mode", GatherScatterMode.CLIP)
    at = numbers.reshape(len(numbers), -1)[:, 0]
    if mode == GatherScatterMode.CLIP:
        at = jnp.clip(at, 0, len(table) - 1)
    # a row that is not read may hold numbers that are not finite
    is_read = (
        jnp.zeros(len(table), bool)
        .at[at]
        .set(
            True,
            mode="drop",
        )
    )
    products = multiply(jnp.where(is_read[:, None], table, 0))
    dtype = products.dtype
    if is_low(dtype):
        # cotangents of a row that is read often are then summed in float32
        products = products.astype(WIDE)
    found = products.at[at].get(
        mode=mode,
        fill_value=read.params.get("fill_value"),
        wrap_negative_indices=False,
    )
    return found.astype(dtype)


def products_of_tables(
    every: TracedRows,
    known: Mapping[Any, Any],
    rows: Sequence[Any],
    wanted: Sequence[Any],
) -> dict[Any, Any]:
    """Computes variables which are products of rows of small tables.

    Args:
      every: A function of rows.
      known: Values of its inputs that are known.
      rows: Inputs with a row for each row; a table is none of these, and does not depend on any.
      wanted: The variables.
    """
    made_by = {v: equation for equation in every.jaxpr.eqns for v in equation.outvars}
    of_rows = every.depending(rows)
    found = {}
    for variable in wanted:
        product = made_by[variable]
        read = _multiplied_read(product, made_by)
        if read is None or not is_small(
            every.n_rows,
            read.invars[0].aval.shape[0],
        ):
            continue
        table, numbers = read.invars
        matrix = product.invars[1]
        if numbers in of_rows and of_rows.isdisjoint([table, matrix]):
            own_table, at, other = every.compute(known, [table, numbers, matrix])
            found[variable] = read_of_product(
                read,
                own_table,
                at,
                lambda each, product=product, other=other: bind(product, [each, other])[0],
            )
    return found


def _multiplied_read(product: Any, made_by: Mapping[Any, Any]) -> Any:
    """The read of rows which an equation multiplies by a matrix, or None."""
    if product.primitive.name != "dot_general":
        return None
    factor, matrix = product.invars
    if product.params["dimension_numbers"] != (((1,), (0,)), ((), ())) or matrix.aval.ndim != 2:
        return None
    read = made_by.get(factor)
    # a row is read as a slice of one row, whose axis is then left out
    while read is not None and read.primitive.name in LEAVES_OUT_AXES:
        read = made_by.get(read.invars[0])
    if read is None or not reads_rows(read):
        return None
    # one row for each number, and each as it lies in the table
    table, numbers, *_ = (operand.aval.shape for operand in read.invars)
    return read if factor.aval.shape == (*numbers[:1], table[1]) else None
