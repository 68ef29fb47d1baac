"""A traced loss function split in two: a small program that computes row ids, and the loss as a function of pulled rows.

Works on flat lists of leaves. Knows nothing of the user's trees, of names, or of where rows come from.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.interpreters import partial_eval

from ampjax.errors import InvariantError, ParameterError
from ampjax.jaxprs import primitives
from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection.detect import Variable, analyse, follow, look_again
from ampjax.sparse.detection.loss_jaxpr import TracedLoss
from ampjax.sparse.detection.table_views import TableView, whole_table
from ampjax.sparse.rewrite.evaluate import FoundIds, RowInterpreter
from ampjax.sparse.rewrite.lane_walk import Lanes, find_lanes
from ampjax.sparse.rewrite.stacks import Stack


@dataclasses.dataclass(frozen=True)
class SplitLoss:
    """The two programs for batches of one shape.

    Args:
      traced: The loss function.
      axes: By sparse leaf, the axes along which its rows are counted.
      stacks: By table the leaves whose rows it holds.
      lanes: What is done at once, with several tables' rows in one.
      sites: The reads in the order of their places and segments, which is the order of the ids, with their leaves. Reads that are done at once
        are one, at the first.
      shapes: By read, the shape of its ids.
      ids_jaxpr: The ids of all reads, from those inputs that they need.
      ids_consts: The values of its constants.
      ids_inputs: Which of the traced function's inputs these are.
    """

    traced: TracedLoss
    axes: Mapping[int, tuple[int, ...]]
    stacks: Mapping[str, Stack]
    lanes: Lanes
    sites: Mapping[Path, int]
    shapes: Mapping[Path, tuple[int, ...]]
    ids_jaxpr: Any
    ids_consts: Sequence[Any]
    ids_inputs: tuple[int, ...]

    def n_ids(self, table: str) -> int:
        """The number of ids that a step reads of a table, duplicates counted."""
        return sum(math.prod(self.shapes[site]) for site in self._reads_of[table])

    def ids(
        self,
        inputs: Sequence[Any],
    ) -> dict[str, jax.Array]:
        """The ids that a step reads of each table.

        Args:
          inputs: The leaves of parameters and batch; anything at sparse leaves and float parameters.

        Returns:
          By table of which rows are read int32 `[n]`, its number of rows where no row is read.
        """
        flat = eval_jaxpr(
            self.ids_jaxpr,
            self.ids_consts,
            *(inputs[i] for i in self.ids_inputs),
        )
        ids_of = dict(zip(self.sites, flat, strict=True))
        none = jnp.zeros(0, jnp.int32)  # a batch may have no ids for a table
        return {
            table: jnp.concatenate([none, *(ids_of[site].ravel() for site in sites)])
            for table, sites in self._reads_of.items()
        }

    def loss(
        self,
        inputs: Sequence[Any],
        rows: Mapping[str, Any],
        inverse: Mapping[str, Any],
    ) -> Any:
        """The loss function's result, computed from pulled rows.

        Args:
          inputs: The leaves of parameters and batch; anything at sparse leaves.
          rows: By table, `[m, ...]` of its rows.
          inverse: By table, int `[n]`: where in `rows` each of `ids` lies.

        Returns:
          The loss, or `(loss, aux)`.
        """
        places = _places(self.traced, self.stacks)
        args = []
        for i, value in enumerate(inputs):
            args.append(
                places[i].whole(
                    self.traced,
                    i,
                    self.axes,
                    rows[places[i].table],
                )
                if i in self.axes
                else value
            )
        interpreter = RowInterpreter(
            _n_rows(places), self.sites, collecting=False, lanes=self.lanes
        )
        known = {}
        for table in self._reads_of:
            for site, part in self._parts(table, inverse[table]):
                known[site] = part
        outs, _ = interpreter.run(
            (self.traced.jaxpr, self.traced.consts),
            args,
            known,
        )
        return jax.tree.unflatten(self.traced.out_tree, outs)

    @functools.cached_property
    def _reads_of(self) -> dict[str, list[Path]]:
        """By table with sparse leaves its reads; a batch may have none."""
        places = _places(self.traced, self.stacks)
        result: dict[str, list[Path]] = {places[leaf].table: [] for leaf in self.axes}
        for site, leaf in self.sites.items():
            result[places[leaf].table].append(site)
        return result

    def _parts(
        self,
        table: str,
        inverse: Any,
    ) -> list[tuple[Path, Any]]:
        """The positions of each read of a table."""
        parts = []
        start = 0
        for site in self._reads_of[table]:
            shape = self.shapes[site]
            stop = start + math.prod(shape)
            parts.append(
                (
                    site,
                    jnp.asarray(
                        inverse[start:stop],
                        jnp.int32,
                    ).reshape(shape),
                )
            )
            start = stop
        return parts


def make_split_loss(
    traced: TracedLoss,
    sparse: Iterable[str] | Mapping[str, tuple[int, ...]] | None = None,
    stacks: Mapping[str, Sequence[str] | Stack] | None = None,
) -> SplitLoss:
    """Splits a traced loss function.

    Args:
      traced: The loss function.
      sparse: The leaves to be pulled, by path, or their axes, too; all sparse ones where it is None.
      stacks: By table the leaves whose rows it holds, those among them that are not pulled; None for a table of each leaf.

    Returns:
      The two programs for batches of the traced shapes.

    Raises:
      ParameterError: If a path is unknown, or of a dense leaf.
    """
    if isinstance(sparse, Mapping):
        flow, variables = look_again(traced, sparse)
    else:
        flow = None
        variables = analyse(traced, 2)
    if sparse is None:
        wanted = {v.path for v in variables if v.sparse}
    else:
        wanted = {*sparse}
    _check_sparse(variables, wanted)
    axes = {}
    for i, v in enumerate(variables):
        if v.path in wanted:
            axes[i] = v.axes
    n_rows = {variables[i].path: variables[i].n_rows for i in axes}
    held = _stacks_of(stacks, n_rows)
    places = _places(traced, held)
    stacked = {}
    for i in axes:
        if len(held[places[i].table].paths) > 1:
            stacked[i] = places[i].table
    lanes = find_lanes(traced, stacked, axes)
    flow = flow or follow(traced, axes)
    sites = {}
    for site, read in sorted(flow.reads.items()):
        if site[0] not in lanes.repeated:
            sites[site] = read.leaf
    interpreter = RowInterpreter(_n_rows(places), sites, collecting=True, lanes=lanes)
    jaxpr, consts, shapes = _ids_program(traced, axes, places, interpreter)
    slim, used = partial_eval.dce_jaxpr(
        jaxpr,
        [True] * len(jaxpr.outvars),
    )
    inputs = tuple(i for i, needed in enumerate(used) if needed)
    _check_known(traced, inputs)
    return SplitLoss(
        traced,
        axes,
        held,
        lanes,
        sites,
        shapes,
        slim,
        consts,
        inputs,
    )


def _stacks_of(
    stacks: Mapping[str, Sequence[str] | Stack] | None,
    n_rows: Mapping[str, int],
) -> dict[str, Stack]:
    """The leaves whose rows each table holds; by default a table for each leaf that is pulled."""
    if stacks is None:
        stacks = {path: [path] for path in n_rows}
    held = {}
    for name, each in stacks.items():
        held[name] = each if isinstance(each, Stack) else Stack.of(each, n_rows)
    return held


class _LeafPlace(NamedTuple):
    """The place of a leaf's rows.

    Args:
      table: The table.
      first: The leaf's first row in it.
      n_rows: The table's rows.
    """

    table: str
    first: int
    n_rows: int

    def whole(
        self,
        traced: TracedLoss,
        leaf: int,
        axes: Mapping[int, tuple[int, ...]],
        rows: Any = None,
    ) -> TableView:
        return whole_table(
            leaf,
            traced.leaves[leaf].shape,
            axes[leaf],
            rows,
            self.first,
        )


def _places(
    traced: TracedLoss,
    stacks: Mapping[str, Stack],
) -> dict[int, _LeafPlace]:
    """By sparse leaf where its rows are."""
    numbers = {leaf.path: i for i, leaf in enumerate(traced.leaves)}
    result = {}
    for table, stack in stacks.items():
        for path, first in zip(stack.paths, stack.starts, strict=True):
            result[numbers[path]] = _LeafPlace(table, first, stack.n_rows)
    return result


def _n_rows(places: Mapping[int, _LeafPlace]) -> dict[int, int]:
    return {leaf: place.n_rows for leaf, place in places.items()}


def _ids_program(
    traced: TracedLoss,
    axes: Mapping[int, tuple[int, ...]],
    places: Mapping[int, _LeafPlace],
    interpreter: RowInterpreter,
) -> tuple[Any, Sequence[Any], dict[Path, tuple[int, ...]]]:
    """The walk that collects ids, as a jaxpr of the leaves of parameters and batch; and the ids' shapes."""

    def collect(*inputs: Any) -> FoundIds:
        args = []
        for i, value in enumerate(inputs):
            args.append(places[i].whole(traced, i, axes) if i in axes else value)
        return interpreter.run((traced.jaxpr, traced.consts), args, {})[1]

    # Tables are no inputs of this program: a number stands in the place of each.
    number = jax.ShapeDtypeStruct((), jnp.int32)
    avals = []
    for i, v in enumerate(traced.jaxpr.invars):
        avals.append(number if i in axes else v.aval)
    closed, ids_of_reads = jax.make_jaxpr(collect, axis_env=list(traced.mapped), return_shape=True)(
        *avals
    )
    return *primitives.opened(closed), {site: ids.shape for site, ids in ids_of_reads.items()}


def _check_sparse(variables: Sequence[Variable], wanted: Iterable[str]) -> None:
    by_path = {v.path: v for v in variables}
    for path in wanted:
        if path not in by_path:
            raise ParameterError(
                "sparse",
                f"paths among {list(by_path)}",
                f"`{path}`",
                "Use a path of the parameters.",
            )
        if not by_path[path].sparse:
            raise ParameterError(
                f"sparse, `{path}`",
                "a sparse leaf",
                f"a dense one ({by_path[path].reason})",
                "Leave it dense.",
            )


def _check_known(traced: TracedLoss, inputs: Sequence[int]) -> None:
    for leaf in (traced.leaves[i] for i in inputs if i < len(traced.leaves)):
        if primitives.is_inexact(leaf.dtype):
            raise InvariantError(
                "row ids",
                "to depend on no float parameter",
                f"`{leaf.path}`",
                "Please report this program.",
            )
