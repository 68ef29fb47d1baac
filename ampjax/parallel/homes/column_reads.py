"""Finds the columns of a table's rows that a program reads, and their dtype, so that rows are cut and cast before they travel.

That is Parallax's +OPSW (arXiv version). A table is followed from its leaf to the first equations that compute with it, through those that
only move numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ampjax.devices.random_keys import on_host
from ampjax.jaxprs.primitives import CALLS, REMATERIALIZED, called, opened
from ampjax.parallel.homes.row_homes import WHOLE, Reading
from ampjax.sparse.detection.row_axes import table_shape
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.table.table_settings import DTYPES

Tree = Any
Use = tuple[np.dtype, int, int]
"""The dtype in which some columns are used, the first of these columns, and the one after the last."""


class Readings:
    """The columns of each table that must travel, by the batch's shapes, on which a program's reads may depend.

    Args:
      program: The loss on pulled rows.
      narrow: Whether to look; if not, whole rows travel.
    """

    def __init__(self, program: SparseProgram, narrow: bool):
        self._program = program
        self._narrow = narrow
        self._known: dict[Any, dict[str, Reading]] = {}

    def for_batch(self, batch: Tree, from_host: bool = False) -> dict[str, Reading]:
        """Finds the columns that a program reads of each table for batches of this one's shapes.

        Args:
          batch: The batch.
          from_host: Whether the program takes it as arrays of the host. A device's may have a weak type, by which other columns are cast.

        Returns:
          By table the dtype and the columns that have to travel.
        """
        if self._narrow:
            shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        else:
            shapes = ()
        if shapes not in self._known:
            if from_host:
                batch = jax.tree.map(on_host, batch)
            self._known[shapes] = {
                table: self._read(table, batch) for table in self._program.tables
            }
        return self._known[shapes]

    def _read(self, table: str, batch: Tree) -> Reading:
        first, *others = {
            self.of_variable(path, batch) for path in self._program.stacks[table].paths
        }
        return WHOLE if others else first

    def of_variable(self, path: str, batch: Tree) -> Reading:
        """Finds the columns that a program reads of one variable's rows."""
        if self._narrow:
            return reading(self._program, path, batch)
        return WHOLE


@dataclasses.dataclass(frozen=True)
class _RowPart:
    """The columns of a table's rows in a value.

    Args:
      first: The first column.
      end: The column after the last.
      is_last: Whether these columns are the value's last axis.
      is_cast: Whether it has been cast.
    """

    first: int
    end: int
    is_last: bool
    is_cast: bool = False


Outside = Callable[[int, _RowPart], set[Use]]
"""Gives the uses of a jaxpr's output, by its number."""


def reading(program: SparseProgram, path: str, batch: Tree) -> Reading:
    """Finds the columns of a table's rows with which a program computes, and the dtype to which the program casts them before.

    Rows that are cut and cast at the server are then the numbers that the program would have computed itself. Gradients of columns
    that are not read are zero and need not travel. The other gradients keep their dtype.

    Returns:
      The dtype is None if rows are used as they are, or in several ways, or in a dtype in which rows don't travel; the
      columns are None if all are used.
    """
    split = program.split_loss(batch)
    jaxpr, _ = opened(split.traced.jaxpr)
    place = [leaf.path for leaf in split.traced.leaves].index(path)
    table = split.traced.leaves[place]
    if len(table.shape) > 1:
        width = table_shape(table.shape, program.axes[path])[-1]
    else:
        width = 0
    is_last = width > 0 and len(table.shape) - 1 not in program.axes[path]
    uses = _first_uses(
        jaxpr,
        jaxpr.invars[place],
        _RowPart(0, width, is_last),
        lambda number, part: {_all(table.dtype, part)},
    )
    dtypes = {dtype for dtype, _, _ in uses}
    if len(dtypes) == 1:
        only = dtypes.pop()
    else:
        only = np.dtype(table.dtype)
    narrower = only in DTYPES and only.itemsize < np.dtype(table.dtype).itemsize
    if uses:
        columns = (
            min(first for _, first, _ in uses),
            max(end for _, _, end in uses),
        )
    else:
        columns = (0, width)
    return Reading(
        only if narrower else None,
        columns if columns != (0, width) else None,
    )


def _all(dtype: Any, part: _RowPart) -> Use:
    return np.dtype(dtype), part.first, part.end


def _first_uses(
    jaxpr: Any,
    var: Any,
    part: _RowPart,
    outside: Outside,
) -> set[Use]:
    """Finds the first uses of a value. `outside` gives the uses of a jaxpr's outputs."""
    uses: set[Use] = set()
    for number, out in enumerate(jaxpr.outvars):
        uses |= outside(number, part) if out is var else set()
    for eqn in jaxpr.eqns:
        for place, operand in enumerate(eqn.invars):
            uses |= _uses_by(eqn, place, jaxpr, part, outside) if operand is var else set()
    return uses


def _uses_by(
    eqn: Any,
    place: int,
    jaxpr: Any,
    part: _RowPart,
    outside: Outside,
) -> set[Use]:
    """Finds the uses of one operand by one equation."""
    if eqn.primitive.name in (*CALLS, *REMATERIALIZED):
        inner, _ = opened(called(eqn))

        def handed_out(number: int, part: _RowPart) -> set[Use]:
            return _first_uses(jaxpr, eqn.outvars[number], part, outside)

        return _first_uses(inner, inner.invars[place], part, handed_out)
    moved = _moved_part(eqn, part) if place == 0 else None
    if moved is None:
        return {_all(eqn.invars[place].aval.dtype, part)}
    return _first_uses(jaxpr, eqn.outvars[0], moved, outside)


def _moved_part(eqn: Any, part: _RowPart) -> _RowPart | None:
    """The part that the result of an equation holds, if the equation only casts or moves numbers; None for any other."""
    name = eqn.primitive.name
    params = eqn.params
    old = eqn.invars[0].aval.shape
    new = eqn.outvars[0].aval.shape
    match name:
        case "copy":
            stays = True
        case "convert_element_type":
            if part.is_cast:
                return None
            return dataclasses.replace(part, is_cast=True)
        case "slice":
            return _sliced_part(
                part,
                params["start_indices"][-1:],
                params["limit_indices"][-1:],
                params["strides"],
            )
        case "reshape":
            stays = old[-1:] == new[-1:] and params["dimensions"] is None
        case "squeeze":
            stays = len(old) - 1 not in params["dimensions"]
        case "broadcast_in_dim":
            stays = old[-1:] == new[-1:] and params["broadcast_dimensions"][-1:] == (len(new) - 1,)
        case "transpose":
            stays = params["permutation"][-1:] == (len(old) - 1,)
        case "dynamic_slice":
            stays = params["slice_sizes"][-1:] == old[-1:]
        case "gather":
            stays = _gathers_whole(params, old, new)
        case _:
            return None
    return dataclasses.replace(part, is_last=part.is_last and stays)


def _gathers_whole(
    params: Any,
    old: tuple[int, ...],
    new: tuple[int, ...],
) -> bool:
    """Tells whether a gather keeps the last axis of its operand whole."""
    numbers = params["dimension_numbers"]
    last = len(old) - 1
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    return (
        tuple(params["slice_sizes"][-1:]) == old[-1:]
        and last not in gone
        and len(new) - 1 in numbers.offset_dims
    )


def _sliced_part(
    part: _RowPart,
    start: tuple[int, ...],
    limit: tuple[int, ...],
    strides: tuple[int, ...] | None,
) -> _RowPart:
    """The part that a slice of a value holds."""
    if not part.is_last:
        return part
    whole = strides is None or strides[-1] == 1
    return dataclasses.replace(
        part,
        first=part.first + start[0],
        end=part.first + limit[0],
        is_last=whole,
    )
