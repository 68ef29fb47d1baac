"""Finds ids outside of their tables, by a program that walks a loss function and gives the ids, read by read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.interpreters import partial_eval

from ampjax.jaxprs import primitives
from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection.detect import follow
from ampjax.sparse.detection.findings import Read
from ampjax.sparse.detection.row_reads import index_of
from ampjax.sparse.detection.table_views import whole_table
from ampjax.sparse.rewrite.evaluate import FoundIds, Positions, RowInterpreter
from ampjax.sparse.rewrite.split_loss import SplitLoss

INSIDE = -(2**31)
"""Stands for an id that is inside. No id is as small: JAX counts ids from the end before it reads."""


class OutsideId(NamedTuple):
    """An id that is outside of its table.

    Args:
      path: The table.
      number: The id.
      n_rows: How many ids there are along the axis that it counts.
      read: The read.
      leaves: Leaves of the batch from which the id follows, by number.
    """

    path: str
    number: int
    n_rows: int
    read: Read
    leaves: Sequence[int]


class OutsideIds:
    """The program for batches of one shape.

    Args:
      split: The loss function for such batches.
    """

    def __init__(self, split: SplitLoss):
        traced = split.traced
        self._reads = follow(traced, split.axes).reads
        self._paths = {
            read: traced.leaves[leaf_read.leaf].path for read, leaf_read in self._reads.items()
        }
        sites = {
            (*read, axis): found.leaf
            for read, found in self._reads.items()
            for axis in found.view.row_axes
        }
        walk = _OutsideWalk(
            dict.fromkeys(split.axes, INSIDE),
            sites,
            collecting=True,
        )
        views = {}
        for i, axes in split.axes.items():
            views[i] = whole_table(i, traced.leaves[i].shape, axes)

        def collect(*inputs: Any) -> FoundIds:
            args = [views.get(i, value) for i, value in enumerate(inputs)]
            return walk.run((traced.jaxpr, traced.consts), args, {})[1]

        # Tables are no inputs of this program: a number stands in the place of each.
        number = jax.ShapeDtypeStruct((), jnp.int32)
        avals = []
        for i, v in enumerate(traced.jaxpr.invars):
            avals.append(number if i in views else v.aval)
        closed, found = jax.make_jaxpr(collect, axis_env=list(traced.mapped), return_shape=True)(
            *avals
        )
        jaxpr, constants = primitives.opened(closed)
        slim, used = partial_eval.dce_jaxpr(
            jaxpr,
            [True] * len(jaxpr.outvars),
        )
        self._sites = list(dict(sorted(found.items())))
        self._inputs = [i for i, is_needed in enumerate(used) if is_needed]
        self._compiled = jax.jit(lambda inputs: eval_jaxpr(slim, constants, *inputs))
        self._jaxpr = slim
        self._n_params = len(traced.leaves)
        self._sizes = walk.sizes

    def __call__(self, inputs: Sequence[Any]) -> list[OutsideId]:
        """An id for each read for which some are outside.

        Args:
          inputs: The leaves of parameters and batch; anything at sparse leaves and float parameters.
        """
        hits = []
        for place, numbers in enumerate(self._compiled([inputs[i] for i in self._inputs])):
            array = np.asarray(numbers)
            if (outside := array[array != INSIDE]).size:
                site = self._sites[place]
                read = site[:-1]
                of_read = self._paths[read], int(outside[0]), self._sizes[site], self._reads[read]
                hits.append(OutsideId(*of_read, self._leaves_of(place)))
        return hits

    def _leaves_of(self, place: int) -> list[int]:
        """The leaves of the batch from which the ids of a read follow."""
        _, used = partial_eval.dce_jaxpr(
            self._jaxpr,
            [i == place for i in range(len(self._jaxpr.outvars))],
        )
        needed = []
        for i, is_needed in zip(self._inputs, used, strict=True):
            if is_needed:
                needed.append(i)
        return [i - self._n_params for i in needed if i >= self._n_params]


@dataclasses.dataclass(frozen=True)
class _OutsideWalk(RowInterpreter):
    """A walk in which reads give the ids that are outside, and `INSIDE` for others.

    Args:
      sizes: By read and axis how many ids there are.
    """

    sizes: dict[Path, int] = dataclasses.field(default_factory=dict)

    def _read(
        self, eqn: Any, ins: list[Any], known: Positions, path: Path
    ) -> tuple[list[Any], FoundIds]:
        del known
        view = ins[0]
        found = {}
        for axis, (index, last) in index_of(eqn, ins).items():
            is_outside = (index < 0) | (index > last)
            numbers = jnp.where(is_outside, index, INSIDE).astype(jnp.int32)
            for k, segment in enumerate(view.segments):
                if segment.leaf is not None and view.strides[axis] is not None:
                    found[*path, k, axis] = numbers
                    self.sizes[*path, k, axis] = last + 1
        return [primitives.blank(eqn.outvars[0].aval)], found
