"""Weighted sums: the summands of a result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.frontend.deduction.equations import Atom, Equation
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.values import Constant, Static, Value


def summands(
    equation: Equation,
    values: Sequence[Value | None],
) -> list[tuple[Atom, Value | None]]:
    """Splits a weighted sum into atoms with their factors (None: 1); empty if the equation is no such sum."""
    name = equation.source.primitive.name
    minus = Constant(np.float32(-1.0))
    if name in ("add", "sub", "add_any"):
        left, right = equation.inputs
        return [(left, None), (right, minus if name == "sub" else None)]
    if name == "neg":
        return [(equation.inputs[0], minus)]
    if name == "mul":
        for factor, other in ((0, 1), (1, 0)):
            if isinstance(value := values[factor], Constant | Static):
                return [(equation.inputs[other], value)]
    if name == "div" and isinstance(value := values[1], Constant | Static):
        return [(equation.inputs[0], invert(value))]
    return []


def invert(value: Value) -> Value:
    """`1 / value` of a constant or static number."""
    if isinstance(value, Constant):
        return Constant(1 / np.asarray(value.value))
    assert isinstance(value, Static)
    column = value.column
    return Static(Column(column.space, lambda data: 1 / column.of(data)))
