"""Watches over the ids of a run: one that is outside of its table reads another row than was meant, without an error.

Only batches are looked at whose integers could be such ids, and are larger, or smaller, than any before: that costs next to nothing. Ids that the
program computes from smaller numbers are not seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ampjax.devices.host_arrays import extremes
from ampjax.devices.random_keys import is_key
from ampjax.parallel.config.leaf_paths import by_path, names
from ampjax.sparse.detection.detect import Analysis
from ampjax.sparse.detection.loss_jaxpr import signature
from ampjax.sparse.rewrite.outside_ids import OutsideId, OutsideIds
from ampjax.sparse.rewrite.pulled_step import MAX_SHAPES, SparseProgram, rewrite

Tree = Any


class IdWatch:
    """Watches over the ids of batches.

    Args:
      program: The loss on pulled rows of some variables.
      analysis: What is known of all variables: others that are read row by row are watched, too.
    """

    def __init__(self, program: SparseProgram, analysis: Analysis):
        self._given = program
        self._is_told = False
        self._axes = {variable.path: variable.axes for variable in analysis if variable.sparse}
        self._find: dict[Hashable, OutsideIds] = {}
        self._seen: dict[
            int, tuple[int, int]
        ] = {}  # by leaf of the batch, the smallest and the largest integer
        sizes = []
        for variable in analysis:
            if variable.sparse:
                for axis in variable.axes:
                    sizes.append(variable.shape[axis])
        self._smallest = min(sizes, default=0)

    @cached_property
    def _program(self) -> SparseProgram:
        """The loss on pulled rows of all that is read row by row."""
        paths = self._given
        if paths.axes == self._axes:
            return paths
        return rewrite(
            paths.loss_fn,
            paths.params,
            paths.batch,
            self._axes,
            paths.mapped,
        )

    def look(self, parts: Sequence[Tree]) -> str:
        """Checks parts, and returns a warning for the user, each only once; empty if there is none.

        Args:
          parts: By replica its part of a batch.
        """
        if self._is_told or not self._smallest:
            return ""
        for part in parts:
            if not self._has_news(part):
                continue
            for outside in self._outside(part):
                if (
                    outside.read.mode != "fill"
                ):  # there NaN or a number that the program names is read
                    self._is_told = True
                    effect = (
                        "gets the gradient"
                        if outside.read.mode == "clip"
                        else "no row gets a gradient"
                    )
                    text = describe_outside(
                        outside,
                        names(self._program.params)[outside.path],
                        part,
                    )
                    return f"ampjax: {text}. As on one device the nearest row is read in its place, and {effect}."
        return ""

    def _has_news(self, part: Tree) -> bool:
        """Tells whether integers of a part exceed all earlier ones, and could be outside of a table."""
        by_dtype: dict[np.dtype, dict[int, np.ndarray]] = {}
        for number, leaf in enumerate(jax.tree.leaves(part)):
            if not is_key(leaf) and leaf.dtype.kind in "iu" and leaf.size:
                by_dtype.setdefault(leaf.dtype, {})[number] = np.asarray(leaf)
        has_news = False
        for arrays in by_dtype.values():
            ends = extremes(list(arrays.values()))
            for number, low, high in zip(arrays, *(end.tolist() for end in ends), strict=True):
                least, most = self._seen.get(
                    number,
                    (-self._smallest, self._smallest - 1),
                )
                if low < least or high > most:
                    self._seen[number] = min(low, least), max(high, most)
                    has_news = True
        return has_news

    def _outside(self, part: Tree) -> list[OutsideId]:
        split = self._program.split_loss(part)
        key = signature(part)
        if key not in self._find:
            if len(self._find) >= MAX_SHAPES:
                del self._find[next(iter(self._find))]
            self._find[key] = OutsideIds(split)
        return self._find[key]([None] * len(split.traced.leaves) + jax.tree.leaves(part))


def describe_outside(found: OutsideId, table: str, batch: Tree) -> str:
    """Describes an id outside in words: the number in the batch's leaf, or, if the program computes the id, the number read.

    Args:
      found: The id.
      table: How the table is written for users.
      batch: The batch.
    """
    leaves = list(by_path(batch).items())
    position = found.number
    of_leaf = ""
    for path, leaf in (leaves[i] for i in found.leaves):
        if is_key(leaf):
            held = []
        else:
            held = [number for number in _as_given(found) if np.isin(number, leaf)]
        if held:
            position = held[0]
            of_leaf = f" of leaf `{path}`"
            break
    line = f" ({found.read.line})" if found.read.line else ""
    return f"id {position}{of_leaf} is outside of `{table}`, which has {found.n_rows} rows{line}"


def _as_given(outside: OutsideId) -> list[int]:
    """Lists the values that an id may have had before the read: JAX counts negative ids from the end, and reads unsigned integers as signed ones."""
    number = outside.number
    if number >= 0:
        return [number]
    return [number - outside.n_rows, number, number + 2**32]
