"""Products of rows by matrices that a number chooses for each row: rows of one number lie in blocks, and each block reads its matrix once.

Read row by row, the matrices take many times the memory of the rows, and their derivative adds up as many matrices. Here rows are sorted by number
and cut into blocks of one size, of which one for each number may not be full; zeros fill it up. Where that would not pay, each row reads its matrix.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex
from jax.extend.core.primitives import convert_element_type_p
from jax.interpreters import ad, batching, mlir
from jax.lax import GatherScatterMode

from ampjax.jaxprs.primitives import bind
from ampjax.jaxprs.wide_sums import sum_dtype

MOST_IN_BLOCK = 256
"""Rows of a block at most."""

FEWEST_IN_BLOCK = 4
"""Rows of a block at least: with fewer, blocks read about as many matrices as rows do."""

COST_OF_ROW = 200
"""What it costs to sort a row and to bring it to its block and back, in numbers that are read."""

COST_OF_SORT = 15_000
"""What blocks cost beside, however few the rows are."""

MOST_IN_CACHE = 2**22
"""Numbers that a processor's cache holds; from a larger array each costs four times as much."""

LEAST_GAIN = 1.5
"""Blocks are made where they are expected to cost so many times less."""

ROWS: Any = jex.Primitive("product_by_number")
SUM: Any = jex.Primitive("sum_by_number")


@dataclass(
    frozen=True,
    eq=False,
)
class MatrixRead:
    """A matrix that numbers choose from a table.

    Args:
      equations: JAX's equations: the read of one matrix, and what is then done to its axes and dtype.
    """

    equations: tuple[Any, ...]

    def __call__(
        self,
        table: Any,
        numbers: Sequence[Any],
    ) -> Any:
        """The matrix of one row.

        Args:
          table: The table.
          numbers: The numbers, as the first equation takes them.
        """
        return self._made(
            self.equations,
            table,
            numbers,
        )

    def moved(
        self,
        table: Any,
        numbers: Sequence[Any],
    ) -> Any:
        """The matrix of one row, in the dtype of a table.

        Args:
          table: A table of any dtype.
          numbers: The numbers.
        """
        moves = [each for each in self.equations if each.primitive is not convert_element_type_p]
        return self._made(
            moves,
            table,
            numbers,
        )

    def _made(
        self,
        equations: Sequence[Any],
        table: Any,
        numbers: Sequence[Any],
    ) -> Any:
        read, *others = equations
        (found,) = bind(
            read,
            [table, *numbers],
        )
        for equation in others:
            (found,) = bind(
                equation,
                [found],
            )
        return found

    @property
    def linear(self) -> MatrixRead:
        """The same read of a table's change, which is 0 for numbers outside."""
        if not self._is_filled:
            return self
        read, *others = self.equations
        params = {**read.params, "fill_value": 0}
        return MatrixRead((read.replace(params=params), *others))

    @property
    def table(self) -> Any:
        """The type of the table."""
        return self.equations[0].invars[0].aval

    @property
    def places(self) -> list[int]:
        """The numbers of places to read from, along each axis with a number."""
        shape = self.table.shape
        sizes = self.equations[0].params["slice_sizes"]
        return [shape[axis] - sizes[axis] + 1 for axis in self._axes]

    @property
    def n_groups(self) -> int:
        """The number of different matrices, one for numbers outside included."""
        return math.prod(self.places) + self._is_filled

    def groups(
        self,
        numbers: Sequence[Any],
    ) -> Any:
        """For each row the number of its matrix.

        Args:
          numbers: `[rows, ...]`: what the rows read by.
        """
        if self._is_slice:
            columns = numbers
        else:
            columns = [numbers[0][:, i] for i in range(len(self._axes))]
        group: Any = 0
        is_outside: Any = False
        for column, n in zip(columns, self.places, strict=True):
            last = min(
                n - 1,
                jnp.iinfo(column.dtype).max,
            )
            inside = jnp.clip(
                column,
                0,
                last,
            )
            is_outside |= inside != column
            group = group * n + inside.astype(np.int32)
        if self._is_filled:
            group = jnp.where(
                is_outside,
                math.prod(self.places),
                group,
            )
        return group

    @property
    def _is_slice(self) -> bool:
        return self.equations[0].primitive.name == "dynamic_slice"

    @property
    def _is_filled(self) -> bool:
        mode = self.equations[0].params.get("mode")
        return mode == GatherScatterMode.FILL_OR_DROP

    @property
    def _axes(self) -> Sequence[int]:
        read = self.equations[0]
        if self._is_slice:
            return range(len(read.params["slice_sizes"]))
        return read.params["dimension_numbers"].start_index_map


@dataclass(
    frozen=True,
    eq=False,
)
class NumberedProduct:
    """The product of a row by a matrix that numbers choose.

    Args:
      matrix: The matrix.
      product: JAX's equation of one row.
      side: Which factor is the matrix.
      is_turned: Whether it is the transpose: from what has the shape of the product to what has that of the row.
    """

    matrix: MatrixRead
    product: Any
    side: int
    is_turned: bool = False

    @property
    def turned(self) -> NumberedProduct:
        """The transpose in the row."""
        return replace(
            self,
            is_turned=not self.is_turned,
        )

    @property
    def of_change(self) -> NumberedProduct:
        """The same product with a matrix of a table's change."""
        return replace(
            self,
            matrix=self.matrix.linear,
        )

    @property
    def row(self) -> Any:
        """The type of a row."""
        return self._types[self.is_turned]

    @property
    def result(self) -> Any:
        """The type of the product."""
        return self._types[not self.is_turned]

    @property
    def _types(self) -> tuple[Any, Any]:
        return self.product.invars[1 - self.side].aval, self.product.outvars[0].aval

    def times(
        self,
        row: Any,
        matrix: Any,
    ) -> Any:
        """The product.

        Args:
          row: What is multiplied.
          matrix: The matrix.
        """
        if not self.is_turned:
            return self._straight(
                row,
                matrix,
            )
        pull = jax.linear_transpose(
            lambda x: self._straight(
                x,
                matrix,
            ),
            self.result,
        )
        return pull(row)[0]

    def _straight(
        self,
        row: Any,
        matrix: Any,
    ) -> Any:
        factors = [row, row]
        factors[self.side] = matrix
        return bind(
            self.product,
            factors,
        )[0]

    def of_one(self, row: Any, table: Any, *numbers: Any) -> Any:
        """The product of one row.

        Args:
          row: The row.
          table: The table of matrices.
          *numbers: What chooses its matrix.
        """
        return self.times(
            row,
            self.matrix(
                table,
                numbers,
            ),
        )

    def of_rows(self, rows: Any, table: Any, *numbers: Any) -> Any:
        """The products of rows, `[rows, ...]`.

        Args:
          rows: The rows.
          table: The table.
          *numbers: `[rows, ...]`.
        """
        size = self._size_of_block(len(rows))
        if not size:
            each = lambda row, *own: self.of_one(
                row,
                table,
                *own,
            )
            return jax.vmap(each)(
                rows,
                *numbers,
            )
        blocks = Blocks.of(
            self.matrix.groups(numbers),
            self.matrix.n_groups,
            size,
        )
        matrices = self._matrices(
            table,
            blocks,
            numbers,
        )
        of_block = jax.vmap(
            self.times,
            in_axes=(0, None),
        )
        return blocks.rows(
            jax.vmap(of_block)(
                blocks.cut(rows),
                matrices,
            )
        )

    def _matrices(
        self,
        table: Any,
        blocks: Blocks,
        numbers: Sequence[Any],
    ) -> Any:
        """The matrix of each block."""
        own = [each[blocks.first] for each in numbers]
        return jax.vmap(
            lambda *each: self.matrix(
                table,
                each,
            )
        )(*own)

    def of_table(self, table: Any, rows: Any, results: Any, *numbers: Any) -> Any:
        """The cotangent of the table, in the dtype of sums.

        Args:
          table: The type of this cotangent.
          rows: `[rows, ...]`: what was multiplied.
          results: The cotangents of the products.
          *numbers: `[rows, ...]`.
        """
        matrix = self.product.invars[self.side].aval
        wide = sum_dtype(matrix.dtype)
        rows = rows.astype(wide)
        results = results.astype(wide)
        size = self._size_of_block(len(rows))
        if size:
            blocks = Blocks.of(
                self.matrix.groups(numbers),
                self.matrix.n_groups,
                size,
            )
            rows = blocks.cut(rows)
            results = blocks.cut(results)
            numbers = tuple(each[blocks.first] for each in numbers)
        else:
            rows = rows[:, None]
            results = results[:, None]

        def products(matrices: Any) -> Any:
            of_block = jax.vmap(
                self._in(wide),
                in_axes=(0, None),
            )
            return jax.vmap(of_block)(
                rows,
                matrices,
            )

        def matrices(own: Any) -> Any:
            return jax.vmap(
                lambda *each: self.matrix.moved(
                    own,
                    each,
                )
            )(*numbers)

        every = jax.ShapeDtypeStruct(
            (len(rows), *matrix.shape),
            wide,
        )
        (found,) = jax.linear_transpose(
            products,
            every,
        )(results)
        (total,) = jax.linear_transpose(
            matrices,
            table,
        )(found.astype(table.dtype))
        return total

    def _in(
        self,
        dtype: Any,
    ) -> Callable[[Any, Any], Any]:
        """The product of numbers of another dtype."""
        params = {**self.product.params, "preferred_element_type": np.dtype(dtype)}
        return replace(
            self,
            product=self.product.replace(params=params),
        ).times

    def _size_of_block(
        self,
        n: int,
    ) -> int:
        """The number of rows in a block; 0 if matrices are better read row by row."""
        numbers = self.matrix
        matrix = self.product.invars[self.side].aval
        of_matrix = math.prod(matrix.shape)
        of_row = math.prod(self.row.shape) + math.prod(self.result.shape)
        return size_of_block(
            n,
            numbers.n_groups,
            of_matrix,
            of_row,
        )


def size_of_block(
    n: int,
    n_groups: int,
    of_matrix: int,
    of_row: int,
) -> int:
    """The number of rows in a block; 0 if matrices are better read row by row.

    Args:
      n: How many rows there are.
      n_groups: How many matrices there are.
      of_matrix: The numbers in a matrix.
      of_row: The numbers in a row and its product.
    """
    if not n or n * n_groups >= 2**31:
        return 0
    # the larger blocks are, the fewer matrices are read, and the more rows fill blocks up
    best = math.sqrt(n * of_matrix / (n_groups * of_row))
    size = min(
        1
        << max(
            round(math.log2(best)),
            0,
        ),
        MOST_IN_BLOCK,
    )
    if size < FEWEST_IN_BLOCK:
        return 0
    blocks = most_blocks(
        n,
        n_groups,
        size,
    )
    cost = n * COST_OF_ROW + COST_OF_SORT
    cost += _cost_of_reading(blocks * of_matrix) + _cost_of_reading(blocks * size * of_row)
    return size if LEAST_GAIN * cost < _cost_of_reading(n * of_matrix) else 0


def _cost_of_reading(n_numbers: int) -> int:
    return n_numbers if n_numbers <= MOST_IN_CACHE else 4 * n_numbers


def most_blocks(
    n: int,
    n_groups: int,
    size: int,
) -> int:
    """The largest number of blocks.

    Args:
      n: How many rows there are.
      n_groups: How many groups the rows are in.
      size: How many rows a block has.
    """
    return min(
        n,
        (
            n
            + min(
                n,
                n_groups,
            )
            * (size - 1)
        )
        // size,
    )


@dataclass(
    frozen=True,
    eq=False,
)
class Blocks:
    """Rows in blocks, each of rows of one group.

    Args:
      at: `[rows]`: where each row lies.
      sources: `[blocks, rows of a block]`: which row lies there; one more than the last for none.
      first: `[blocks]`: a row of the group; for a block without rows, any row.
    """

    at: Any
    sources: Any
    first: Any

    @classmethod
    def of(
        cls,
        groups: Any,
        n_groups: int,
        size: int,
    ) -> Blocks:
        """The blocks of some rows.

        Args:
          groups: `[rows]`: the group of each row.
          n_groups: How many groups there are.
          size: How many rows a block has.
        """
        n = len(groups)
        rows = jnp.arange(
            n,
            dtype=np.int32,
        )
        # one number for each row is sorted much faster than a pair
        ordered = jnp.sort(groups * n + rows)
        order = ordered % n
        group = ordered // n
        starts = (
            jnp.arange(
                n_groups + 1,
                dtype=np.int32,
            )
            * n
        )
        bounds = jnp.searchsorted(
            ordered,
            starts,
        ).astype(np.int32)
        counts = jnp.diff(bounds)
        blocks = (counts + size - 1) // size
        before = jnp.cumsum(blocks) - blocks
        own = before[group] * size + rows - bounds[group]
        n_blocks = most_blocks(
            n,
            n_groups,
            size,
        )
        none = jnp.full(
            n_blocks * size,
            n,
            np.int32,
        )
        sources = none.at[own].set(
            order,
            unique_indices=True,
        )
        sources = sources.reshape(
            n_blocks,
            size,
        )
        at = (
            jnp.zeros(
                n,
                np.int32,
            )
            .at[order]
            .set(
                own,
                unique_indices=True,
            )
        )
        first = jnp.where(
            sources[:, 0] < n,
            sources[:, 0],
            order[-1],
        )
        return cls(
            at,
            sources,
            first,
        )

    def cut(
        self,
        values: Any,
    ) -> Any:
        """Rows in blocks, with zeros for none.

        Args:
          values: `[rows, ...]`.
        """
        return values.at[self.sources].get(
            mode="fill",
            fill_value=0,
        )

    def rows(
        self,
        values: Any,
    ) -> Any:
        """Rows of blocks, in their old order.

        Args:
          values: `[blocks, rows of a block, ...]`.
        """
        flat = values.reshape(
            -1,
            *values.shape[2:],
        )
        return flat.at[self.at].get(mode="promise_in_bounds")


# -- as operations of JAX, which a loop's steps and the search for what to keep see as one each


def _product(
    rows: Any,
    table: Any,
    *numbers: Any,
    how: NumberedProduct,
) -> Any:
    """The products of rows, as one operation."""
    return ROWS.bind(
        rows,
        table,
        *numbers,
        how=how,
    )


def _table_sum(
    rows: Any,
    results: Any,
    *numbers: Any,
    how: NumberedProduct,
    table: Any,
) -> Any:
    """The cotangent of a table, as one operation."""
    return SUM.bind(
        rows,
        results,
        *numbers,
        how=how,
        table=table,
    )


def _run_product(
    rows: Any,
    table: Any,
    *numbers: Any,
    how: NumberedProduct,
) -> Any:
    return how.of_rows(
        rows,
        table,
        *numbers,
    )


def _run_sum(
    rows: Any,
    results: Any,
    *numbers: Any,
    how: NumberedProduct,
    table: Any,
) -> Any:
    return how.of_table(
        table,
        rows,
        results,
        *numbers,
    )


def _type_of_product(
    rows: Any,
    *_: Any,
    how: NumberedProduct,
) -> Any:
    return ShapedArray(
        (rows.shape[0], *how.result.shape),
        how.result.dtype,
    )


def _type_of_sum(
    *_: Any,
    how: NumberedProduct,
    table: Any,
) -> Any:
    return ShapedArray(
        table.shape,
        table.dtype,
    )


def _transposed_product(
    cotangent: Any, rows: Any, table: Any, *numbers: Any, how: NumberedProduct
) -> list[Any]:
    """The transpose of products, in the rows or in the table."""
    of_rows = of_table = None
    if isinstance(cotangent, ad.Zero):
        return [None] * (2 + len(numbers))
    if ad.is_undefined_primal(rows):
        of_rows = _product(
            cotangent,
            table,
            *numbers,
            how=how.turned,
        )
    else:
        kind = table.aval
        wide = jax.ShapeDtypeStruct(
            kind.shape,
            sum_dtype(kind.dtype),
        )
        pair = (cotangent, rows) if how.is_turned else (rows, cotangent)
        straight = replace(
            how,
            is_turned=False,
        )
        total = _table_sum(
            *pair,
            *numbers,
            how=straight,
            table=wide,
        )
        of_table = total.astype(kind.dtype)
    return [of_rows, of_table, *[None] * len(numbers)]


def _transposed_sum(
    cotangent: Any, rows: Any, results: Any, *numbers: Any, how: NumberedProduct, table: Any
) -> list[Any]:
    """The transpose of a table's cotangent, in the rows or in the products' cotangents."""
    of_rows = of_results = None
    if isinstance(cotangent, ad.Zero):
        return [None] * (2 + len(numbers))
    how = how.of_change
    own = cotangent.astype(how.matrix.table.dtype)
    if ad.is_undefined_primal(rows):
        of_rows = _product(
            results,
            own,
            *numbers,
            how=how.turned,
        )
    else:
        of_results = _product(
            rows,
            own,
            *numbers,
            how=how,
        )
    return [of_rows, of_results, *[None] * len(numbers)]


def _changed(operation: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """The change of an operation that is linear in each of its first two operands."""
    change: Any = None
    for place in (0, 1):
        if isinstance(tangents[place], ad.Zero):
            continue
        given = list(primals)
        given[place] = tangents[place]
        own = params
        if operation is ROWS and place == 1:
            own = {"how": params["how"].of_change}
        part = operation.bind(
            *given,
            **own,
        )
        change = part if change is None else change + part
    return operation.bind(
        *primals,
        **params,
    ), change


def _batched(run: Any, args: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
    """Several such operations at a time, by JAX's own rules for the equations inside."""
    every = jax.vmap(
        lambda *each: run(
            *each,
            **params,
        ),
        in_axes=tuple(axes),
    )
    return every(*args), 0


for _operation, _run, _type, _transposed in (
    (ROWS, _run_product, _type_of_product, _transposed_product),
    (SUM, _run_sum, _type_of_sum, _transposed_sum),
):
    _operation.def_impl(_run)
    _operation.def_abstract_eval(_type)
    ad.primitive_jvps[_operation] = functools.partial(
        _changed,
        _operation,
    )
    ad.primitive_transposes[_operation] = _transposed
    batching.primitive_batchers[_operation] = functools.partial(
        _batched,
        _run,
    )
    mlir.register_lowering(
        _operation,
        mlir.lower_fun(
            _run,
            multiple_results=False,
        ),
    )
