"""Computations on pairs in a block: each operand keeps its own axes, and equations run over the axes of all operands together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.frontend.batches.programs_of_rows import Block, Rows, Run, View, as_typed, zeros
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import RowLowering, Value
from ampjax.frontend.blocks.grids import Grid
from ampjax.frontend.blocks.pair_products import product_of, product_of_arrays
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.values import Constant, Static


class BlockBody(Body):
    """The pairs of a block, as a place where steps are added.

    Args:
      low: The lowering.
      block: The block of steps.
      grid: The block of pairs.
    """

    def __init__(self, low: RowLowering, block: Block, grid: Grid):
        super().__init__(
            low,
            block,
            grid.rooms["pax"],
        )
        self._grid = grid

    def operand(self, value: Value, kind: Any) -> Rows | Constant:
        """Returns a value as equations here read the value: with its own axes.

        Args:
          value: A value that is no sequence.
          kind: Its type.
        """
        if isinstance(value, Constant):
            return value
        result = self._grid.results.get(value)
        if result is not None and self.block.sees(result):
            return result
        axes, given = self._side(value)
        operand = self._grid.operand(
            self,
            axes,
            given,
            kind,
        )
        if isinstance(operand, Constant) or operand in self._grid.computed:
            return operand
        return self._grid.derived(self, operand)

    def _side(self, value: Static | View) -> tuple[str, Static | View]:
        """Finds the axes of a value, and the value in the space of these axes."""
        grid = self._grid
        original = self.low.across.get(value)
        if original is not None and _space(value) is grid.spaces.pairs:
            return "px", original
        if isinstance(value, View) and value.rows.room is grid.rooms["px"]:
            return "px", View(value.rows, grid.spaces.across)
        space = _space(value)
        if space in grid.spaces.outer.around():
            return "p", value
        if space in grid.spaces.around.around():
            return "pa", value
        return "pax", value

    def evaluated(
        self,
        equation: Equation,
        operands: Sequence[Rows | Constant],
    ) -> list[Rows]:
        """Adds the step of an equation, which runs over the axes of all operands together.

        Args:
          equation: The equation.
          operands: Its operands.
        """
        grid = self._grid
        total = self._sum_of_products(equation, operands)
        if total is None:
            total = self._softmax(equation, operands)
        if total is not None:
            return [total]
        each = [grid.axes(operand) for operand in operands]
        axes = "".join(axis for axis in "pax" if any(axis in own for own in each))
        room = grid.rooms[axes] if axes else None
        outputs = [Rows(name.aval, room) for name in equation.outputs]

        def compute(run: Run) -> list[Any]:
            sizes = grid.sizes(run)
            lead = [sizes[axis] for axis in axes]
            n = math.prod(lead)
            if axes and not n:
                return [zeros((0,), name.aval) for name in equation.outputs]

            def function(*row: Any) -> Any:
                return equation.evaluate(
                    None,
                    row,
                )

            # the innermost axis first, so that the outermost is mapped over last
            for axis in reversed(axes):
                function = jax.vmap(
                    function,
                    [0 if axis in own else None for own in each],
                )
            values = function(*(grid.shaped(run, operand) for operand in operands))
            if not axes:
                return values
            return [x.reshape(n, *x.shape[len(lead) :]) for x in values]

        self.block.add(outputs, compute)
        grid.computed.update(outputs)
        if equation.source.primitive.name == "sub":
            self._note_difference(operands, outputs[0])
        product = product_of(equation, operands, grid.products)
        if product is not None and axes == "pax":
            grid.products[outputs[0]] = product
        return outputs

    def _sum_of_products(
        self,
        equation: Equation,
        operands: Sequence[Rows | Constant],
    ) -> Rows | None:
        """Adds the step of a sum over some of the axes of a product's own shape, as a matrix product; None for other equations."""
        grid = self._grid
        source = equation.source
        product = grid.products.get(operands[0]) if isinstance(operands[0], Rows) else None
        if product is None or source.primitive.name != "reduce_sum":
            return None
        total = product.summed(grid.axes, source.params["axes"])
        if total is None or not all(map(self.block.sees, total.arrays)):
            return None
        kind = equation.outputs[0].aval
        room = grid.rooms["pax"]
        out = Rows(kind, room)

        def compute(run: Run) -> list[Any]:
            n = run.size(room)
            if not n:
                return [zeros((0,), kind)]
            values = [grid.shaped(run, factor.operand) for factor in total.factors]
            return [as_typed(total.compute(values).reshape(n, *kind.shape), kind)]

        self.block.add([out], compute)
        grid.computed.add(out)
        return out

    def _note_difference(
        self,
        operands: Sequence[Rows | Constant],
        out: Rows,
    ) -> None:
        """Notes the difference of values and the logarithm of the sum of their exponentials."""
        values, logarithm = operands
        known = None
        if isinstance(logarithm, Rows):
            known = self._grid.exponentials.get(logarithm)
        if known is not None and known.values is values:
            self._grid.exponentials[out] = known

    def _softmax(
        self,
        equation: Equation,
        operands: Sequence[Rows | Constant],
    ) -> Rows | None:
        """Adds exponentials over their sum, where both are known; None for other equations."""
        grid = self._grid
        (difference,) = operands[:1]
        if equation.source.primitive.name != "exp" or not isinstance(difference, Rows):
            return None
        known = grid.exponentials.get(difference)
        if known is None or difference.room is not known.each.room:
            return None
        if not (self.block.sees(known.each) and self.block.sees(known.total)):
            return None
        each = known.each
        out = Rows(each.aval, each.room)
        inverse = Rows(each.aval, known.total.room)
        self.block.add(
            [inverse],
            lambda run: [1 / run.get(known.total)],
        )

        def compute(run: Run) -> list[Any]:
            shares = grid.shaped(run, each) * _beside(grid, run, inverse)
            return [shares.reshape(-1, *each.aval.shape)]

        self.block.add([out], compute)
        grid.computed |= {inverse, out}
        if grid.axes(each) == "pax":
            grid.products[out] = product_of_arrays([each, inverse])
        return out

    def view(self, rows: Rows) -> View:
        """Returns an array that an equation here gives, as a value.

        Args:
          rows: The array.
        """
        return self._grid.view(rows)


def _beside(grid: Grid, run: Run, rows: Rows) -> Any:
    """The values of an array without the axis across, with an axis of size 1 in its place."""
    return jnp.expand_dims(grid.shaped(run, rows), len(grid.axes(rows)))


def _space(value: Static | View) -> Any:
    return value.space if isinstance(value, View) else value.column.space
