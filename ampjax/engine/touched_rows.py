"""The rows of a look-up table that have got gradients since its last update.

A node whose parameters are one table, of which each message reads the row that its pumped number names, gives gradients to these rows only.
The numbers are on the host, as they were pumped, so nothing has to be read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine.kernels.stage_program import StageProgram
from ampjax.ir.bodies import NodeBody
from ampjax.jaxprs.dependence import find_dependence
from ampjax.jaxprs.flat_program import Equation, FlatProgram, is_literal, trace
from ampjax.jaxprs.program_slices import shared_slice
from ampjax.optim.row_update import RowUpdate
from ampjax.plan.stages import HOST, Stage

LARGE = 4_096, 1 << 20
"""Rows and bytes that a table needs at least: below, its update by rows costs more than it saves."""

SHARE = 4
"""The whole table is updated where more than one row in so many may have a gradient."""


class TouchedRows:
    """The rows of a table that may have gradients.

    Args:
      n_rows: Rows of the table.
      update: Updates some of them.
    """

    def __init__(self, n_rows: int, update: RowUpdate):
        self.update = update
        self._all = False
        self._touched: np.ndarray = np.zeros(n_rows, bool)

    def add(self, rows: np.ndarray) -> None:
        """Adds rows that have been read.

        Args:
          rows: Their numbers `[m]`. If one lies outside the table, any row may have been read: what the body then reads is its own affair.
        """
        if rows.size and (rows.min() < 0 or rows.max() >= len(self._touched)):
            self._all = True
        else:
            self._touched[rows] = True

    def restart(self, accumulator: Any) -> None:
        """Starts with the rows of which an accumulator holds something.

        Args:
          accumulator: `[n_rows, ...]`.
        """
        self._touched[:] = (
            np.asarray(accumulator)
            .reshape(
                len(self._touched),
                -1,
            )
            .any(axis=1)
        )
        self._all = False

    @property
    def rows(self) -> np.ndarray | None:
        """The rows, ascending; None for so many rows that updating the whole table is as fast."""
        rows = None if self._all else np.flatnonzero(self._touched)
        if rows is not None and len(rows) * SHARE <= len(self._touched):
            return rows
        return None

    def clear(self) -> None:
        """Forgets all rows, which have been updated."""
        self._touched[:] = False
        self._all = False


def table_ports(
    stage: Stage,
    program: StageProgram,
    params: Sequence[Any],
) -> dict[str, int]:
    """Finds the nodes of a stage that read one row of a large table for each message, and the ports at which the rows' numbers are pumped.

    Args:
      stage: A stage of kind `rows` or `loss`.
      program: Its program.
      params: Those of its parameters (`Stage.params`).
    """
    ports = {}
    for node, call in zip(stage.nodes, program.calls, strict=True):
        table = () if call.params is None else params[call.params]
        if call.body.rng or not _is_large(table):
            continue
        wires = []
        for wire in node.inputs:
            if wire is not None and wire.type is not None:
                wires.append(wire.type)
        inputs = [jax.ShapeDtypeStruct(wire.shape, wire.dtype) for wire in wires]
        place = row_input(call.body, table, inputs)
        if place is None:
            continue
        kind, port, _ = call.inputs[place]
        if kind == "port" and stage.ports[port].space == HOST:
            ports[node.name] = port
    return ports


def row_input(
    body: NodeBody,
    table: Any,
    inputs: Sequence[jax.ShapeDtypeStruct],
) -> int | None:
    """Finds the input that is the number of the one row that a body reads of a table; None for a body that uses the table otherwise.

    Args:
      body: The body.
      table: Its parameters, an array `[n, *row]`.
      inputs: The inputs' shapes and dtypes.
    """
    try:
        flat = trace(body.apply, table, *inputs)
    except (
        Exception
    ):  # a number of eight bits, for one, can't be compared with the length of such a table
        return None
    table_variable, *variables = flat.inputs
    readers = [
        equation for equation in flat.equations if table_variable in _variables(equation.invars)
    ]
    if (
        len(readers) != 1
        or table_variable in _variables(flat.outputs)
        or not _reads_one_row(readers[0], table.shape)
    ):
        return None
    places = []
    for i, x in enumerate(inputs):
        if x.shape == () and jnp.issubdtype(x.dtype, jnp.integer):
            places.append(i)
    for place in places:
        if _is_same_number(
            flat, readers[0].invars[1], variables[place], inputs[place].dtype, len(table)
        ):
            return place
    return None


def _reads_one_row(equation: Equation, shape: tuple[int, ...]) -> bool:
    """Whether an equation takes one row, and nothing else, of its first operand; its second says which."""
    name = equation.primitive.name
    params = equation.params
    if tuple(params.get("slice_sizes", ())) != (1, *shape[1:]):
        return False
    if name == "gather":
        numbers = params["dimension_numbers"]
        index = equation.invars[1]
        return tuple(numbers.start_index_map) == (0,) and index.aval.shape == (1,)
    return name == "dynamic_slice"


def _is_same_number(
    flat: FlatProgram,
    index: Any,
    variable: Any,
    dtype: Any,
    n_rows: int,
) -> bool:
    """Whether an index follows from one input alone and equals that input, for all rows that there are."""
    index_of = shared_slice(
        flat,
        find_dependence(flat, [None] * len(flat.inputs)),
        [index],
    )
    read = _variables(
        [atom for equation in index_of.equations for atom in equation.invars] + [index]
    )
    if variable not in read or any(other in read for other in flat.inputs if other is not variable):
        return False
    numbers = np.arange(
        min(n_rows, np.iinfo(dtype).max + 1),
        dtype=dtype,
    )
    indices = jax.vmap(lambda number: index_of({variable: number})[0].reshape(()))(numbers)
    return bool((np.asarray(indices) == numbers).all())


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not is_literal(atom)]


def _is_large(table: Any) -> bool:
    return (
        isinstance(table, jax.Array)
        and table.ndim > 1
        and len(table) >= LARGE[0]
        and table.nbytes >= LARGE[1]
    )
