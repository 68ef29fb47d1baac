"""Functions of the instances' values, computed at nodes whose messages carry these values anyway: so they need no messages of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.node_bodies import NodeNote
from ampjax.frontend.draft.values import Computed, Constant, Static, Value
from ampjax.jaxprs.primitives import bind

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns

_Recipe = Callable[[Sequence[Any]], Any]
"""From a node's inputs to a value."""


class EquationColumn(Column):
    """One result of an operation on columns.

    Args:
      whole: All of its results.
      number: Which one.
      source: JAX's equation, on one row.
      operands: Columns, or values that are the same for all rows.
    """

    def __init__(
        self,
        whole: Column,
        number: int,
        source: Any,
        operands: Sequence[Any],
    ):
        super().__init__(
            whole.space,
            self._values,
        )
        self._whole = whole
        self.number = number
        self.source = source
        self.operands = operands

    def _values(self, data: Columns) -> np.ndarray:
        """Takes the values of some instances of a data set from the values of all, computed only once."""
        if data.selection is not None:
            kind = self.source.outvars[self.number].aval
            row_bytes = kind.size * kind.dtype.itemsize
            selected = data.selection.values(self, row_bytes, data)
            if selected is not None:
                return selected
        results = data.once(
            self._whole,
            lambda: self._whole._compute(data),
        )
        return results[self.number]


def from_carried(
    note: NodeNote,
    carried: Callable[[Value], Value],
) -> NodeNote:
    """Makes a node compute columns from the values that its messages carry.

    Args:
      note: The node.
      carried: From what the instances say to the part of a message that brings it; to itself, if none does.
    """
    inputs: list[Value] = []
    types: list[Any] = []

    def add_input(value: Value, kind: Any) -> _Recipe:
        """An input of the node."""
        inputs.append(value)
        types.append(kind)
        place = len(inputs) - 1
        return lambda values: values[place]

    def add_operation(column: EquationColumn) -> _Recipe:
        """Makes the recipe of an operation's result."""
        parts = []
        for each, atom in zip(column.operands, column.source.invars, strict=True):
            parts.append(
                recipe(
                    Static(each) if isinstance(each, Column) else Constant(each),
                    atom.aval,
                )
            )
        return lambda values: bind(column.source, [part(values) for part in parts])[column.number]

    def recipe(value: Value, kind: Any) -> _Recipe:
        part = carried(value)
        column = part.column.outer if isinstance(part, Static) else None
        if isinstance(column, EquationColumn) and _follows(column, carried):
            return add_operation(column)
        return add_input(part, kind)

    recipes = []
    for value, kind in zip(note.inputs, note.types, strict=True):
        recipes.append(recipe(value, kind))
    if len(inputs) == len(recipes) and all(
        map(
            is_,
            note.inputs,
            inputs,
        )
    ):
        return note
    function = note.function

    def whole(key, *values):
        return function(key, *(part(values) for part in recipes))

    return replace(note, inputs=inputs, types=types, function=whole)


def _follows(
    column: Column,
    carried: Callable[[Value], Value],
) -> bool:
    """Tells whether a column follows from values that messages carry."""
    if isinstance(carried(Static(column)), Computed):
        return True
    origin = column.outer
    return isinstance(origin, EquationColumn) and all(
        _follows(each, carried) for each in origin.operands if isinstance(each, Column)
    )
