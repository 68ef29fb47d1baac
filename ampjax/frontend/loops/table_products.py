"""Products of rows read from a small table: the table's own product is computed, and rows of that are read.

A row that a batch reads a hundred times, as the embedding of a frequent word, is multiplied once, and so is its cotangent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.frontend.loops.traced_rows import TracedRows, is_read_early
from ampjax.jaxprs.primitives import bind


@dataclass(frozen=True)
class _TableProduct:
    """A product of rows of a table.

    Args:
      read: The equation that reads the rows, of a table `[table rows, n]`.
      product: The equation that multiplies them, as `[rows, n]`, by a matrix `[n, m]`.
    """

    read: Any
    product: Any

    def compute(
        self,
        table: Any,
        numbers: Any,
        matrix: Any,
    ) -> Any:
        """The product, `[rows, m]`.

        Args:
          table: The table.
          numbers: The operand of the read that tells which rows are read.
          matrix: The matrix.
        """
        # A row that is not read may hold numbers that are not finite.
        is_read = jnp.zeros(len(table), bool).at[numbers[:, 0]].set(True)
        rows = jnp.where(is_read[:, None], table, 0)
        (multiplied,) = bind(self.product, [rows, matrix])
        n_columns = multiplied.shape[1]
        params = {**self.read.params, "slice_sizes": (1, n_columns)}
        (found,) = bind(self.read.replace(params=params), [multiplied, numbers])
        return found.reshape(-1, n_columns)


def products_of_tables(
    every: TracedRows,
    known: Mapping[Any, Any],
    rows: Sequence[Any],
    wanted: Sequence[Any],
) -> dict[Any, Any]:
    """Computes those of some variables that are products of rows of small tables.

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
        each = _table_product(made_by[variable], made_by, every.n_rows)
        if each is None:
            continue
        table, numbers = each.read.invars
        matrix = each.product.invars[1]
        if of_rows.isdisjoint([table, matrix]):
            values = every.compute(known, [table, numbers, matrix])
            found[variable] = each.compute(*values)
    return found


def _table_product(
    product: Any,
    made_by: Mapping[Any, Any],
    n_rows: int,
) -> _TableProduct | None:
    """Finds the read whose rows an equation multiplies by a matrix, if the table has far fewer rows than are read; else None."""
    if product.primitive.name != "dot_general":
        return None
    factor, matrix = product.invars
    if product.params["dimension_numbers"] != (((1,), (0,)), ((), ())) or matrix.aval.ndim != 2:
        return None
    read = made_by.get(factor)
    # a row is read as a slice of one row, whose axis is then left out
    while read is not None and read.primitive.name in ("squeeze", "reshape"):
        read = made_by.get(read.invars[0])
    if read is None or read.primitive.name != "gather" or not _reads_rows(read, n_rows):
        return None
    is_small = not is_read_early(n_rows, read.invars[0].aval.shape[0])
    return _TableProduct(read, product) if is_small else None


def _reads_rows(read: Any, n_rows: int) -> bool:
    """Tells whether a read gives one whole row of a table `[rows, n]` for each of some numbers, in their order."""
    table, numbers = (operand.aval for operand in read.invars)
    if table.ndim != 2 or numbers.ndim != 2 or numbers.shape[0] != n_rows:
        return False
    n_columns = table.shape[1]
    result = read.outvars[0].aval.shape
    how = read.params["dimension_numbers"]
    return (
        read.params["slice_sizes"] == (1, n_columns)
        and how.start_index_map[0] == 0
        and how.operand_batching_dims == ()
        and how.offset_dims == tuple(range(1, len(result)))
        and result in ((n_rows, n_columns), (n_rows, 1, n_columns))
    )
