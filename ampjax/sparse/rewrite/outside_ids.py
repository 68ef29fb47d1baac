"""Finds ids that read NaN since they are outside of their table, by walking a loss function for one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection.detect import follow
from ampjax.sparse.detection.row_reads import read_mode
from ampjax.sparse.detection.table_views import whole_table
from ampjax.sparse.rewrite import input_checks
from ampjax.sparse.rewrite.evaluate import FoundIds, Positions, RowInterpreter
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any


class OutsideId(NamedTuple):
    """An id that is outside of its table.

    Args:
      path: The table.
      number: The id.
      n_rows: How many ids the table has along the axis that it counts.
      line: The user's source line, or empty.
    """

    path: str
    number: int
    n_rows: int
    line: str


def outside_ids(program: SparseProgram, dense_params: Tree, batch: Tree) -> Iterator[OutsideId]:
    """Yields an id for each read that gives NaN for some, as far as reads are not in loops.

    Args:
      program: The loss on pulled rows.
      dense_params: The parameters, None at sparse leaves.
      batch: The batch.
    """
    split = program.split_loss(batch)
    leaves = input_checks.dense_leaves(program.params, program.tables, dense_params)
    walk = _Reads({i: table.shape[0] for i, table in split.tables.items()}, split.sites, collecting=True)
    views = {i: whole_table(i, split.traced.leaves[i].shape, axes) for i, axes in split.axes.items()}
    args = [views.get(i, leaf) for i, leaf in enumerate([*leaves, *jax.tree.leaves(batch)])]
    walk.run((split.traced.jaxpr, split.traced.consts), args, {})
    lines = {read[:-1]: found.line for read, found in follow(split.traced, split.axes).reads.items()}
    for place, eqn, (view, *indices) in walk.noted:
        if read_mode(eqn) == "fill" and view.leaves and not isinstance(indices[0], Tracer):
            for number, n_rows in outside_of(eqn, np.asarray(indices[0])):
                yield OutsideId(split.traced.leaves[view.leaves[0]].path, number, n_rows, lines.get(place, ""))


def outside_of(eqn: Any, indices: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields, by axis that a gather reads along, an index outside, and the axis's length.

    Args:
      eqn: The gather.
      indices: Its indices.
    """
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    for column, axis in enumerate(eqn.params["dimension_numbers"].start_index_map):
        of_axis = indices[..., column]
        outside = of_axis[(of_axis < 0) | (of_axis > shape[axis] - sizes[axis])]
        if outside.size:
            yield int(outside.flat[0]), shape[axis]


@dataclasses.dataclass(frozen=True)
class _Reads(RowInterpreter):
    """A walk that notes reads of tables.

    Args:
      noted: Their places, the equations, and what stands for their operands.
    """

    noted: list[tuple[Path, Any, Sequence[Any]]] = dataclasses.field(default_factory=list)

    def _read(self, eqn: Any, ins: list[Any], known: Positions, path: Path) -> tuple[list[Any], FoundIds]:
        self.noted.append((path, eqn, ins))
        return super()._read(eqn, ins, known, path)
