"""The way from a step's batch to its rows: ids on the devices, unique rows on the host, padded rows back to the devices.

Knows the rewritten loss and the homes of rows; nothing of gradients or updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ampjax.parallel.homes.row_homes import PulledRows, Reading, RowHome, row_bytes
from ampjax.parallel.steps.packed_leaves import pack_integers, unpack_integers
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.rewrite.unique_ids import UniqueRows, pad_rows, pulled_size, unique_rows
from ampjax.sparse.rows.aligned_arrays import aligned_empty
from ampjax.sparse.rows.parallel_calls import all_of

Tree = Any
ReplicaRows = dict[str, list[UniqueRows]]
"""By table, the distinct rows that each replica reads."""


class ReplicaInputs(NamedTuple):
    """One replica's share of the inputs of a program on pulled rows.

    Args:
      rows: By table, `[m, *row]`, padded.
      inverse: By table, `[n]`, int32.
      ids: By table, `[m]`, int32; the number of rows where there is padding.
    """

    rows: dict[str, np.ndarray]
    inverse: dict[str, np.ndarray]
    ids: dict[str, np.ndarray]


def copy_part(part: Tree) -> Tree:
    """A part of a batch that is read after the user has got control back, and may write new numbers into the arrays that were given.

    What is copied here lies so that XLA can take it as it is: there is one copy, as there is of most NumPy arrays anyway.

    Args:
      part: The part, as the user gave it.

    Returns:
      Copies of NumPy arrays, and of whatever else NumPy takes for arrays; JAX's own, which nobody can write to.
    """

    def copy_rows(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return leaf
        result = aligned_empty(np.shape(leaf), leaf.dtype)
        result[...] = leaf
        return result

    return jax.tree.map(copy_rows, part)


class PaddedSizes:
    """Padded numbers of rows, which only grow, so that few programs are compiled."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def at_least(self, path: str, n: int) -> int:
        """The padded size for n rows of a table: that of the largest step so far, or a larger one."""
        self._sizes[path] = max(
            self._sizes.get(path, 0),
            pulled_size(n),
        )
        return self._sizes[path]


class RowFinder:
    """Finds the rows that replicas read.

    Args:
      program: The rewritten loss.
      device: Where a small program finds the ids of all replicas, so that batches travel once, with their rows; None for JAX's default.
    """

    def __init__(self, program: SparseProgram, device: Any = None):
        self._program = program
        self._device = device
        shapes = program.split(program.params)[0]
        self._ids = jax.jit(
            lambda form, leaves: program.ids(shapes, unpack_integers(form, leaves)),
            static_argnums=0,
        )

    def __call__(self, parts: Sequence[Any]) -> ReplicaRows:
        """The rows that each replica reads.

        Args:
          parts: By replica its batch.
        """
        if not self._program.tables:
            return {}
        with jax.default_device(self._device):
            ids = [self._ids(*pack_integers(part)) for part in parts]
            return rows_of_replicas(self._program, ids)


def rows_of_replicas(
    program: SparseProgram,
    ids: Sequence[Mapping[str, Any]],
) -> ReplicaRows:
    """Finds the distinct rows that each replica reads.

    Args:
      program: The rewritten loss.
      ids: By replica, what `program.ids` gave.

    Returns:
      By table, one entry for each replica.
    """
    each = {}
    for path in program.tables:
        each[path] = [np.asarray(ids_of[path]) for ids_of in ids]

    def distinct(path: str) -> list[UniqueRows]:
        result = []
        for ids in each[path]:
            result.append(unique_rows(ids, program.tables[path].shape[0]))
        return result

    # Several threads pay where there are many ids; how many is counted as if their rows were read.
    nbytes = sum(
        len(own) * row_bytes(program.tables[path])
        for path, of_table in each.items()
        for own in of_table
    )
    return dict(
        zip(
            each,
            all_of(
                [partial(distinct, path) for path in each],
                nbytes,
            ),
            strict=True,
        )
    )


def alphas(program: SparseProgram, workers: ReplicaRows) -> dict[str, float]:
    """The share of its rows that a replica touches, by variable: the mean over replicas.

    Args:
      program: The rewritten loss.
      workers: By table, the rows that each replica reads.
    """
    result: dict[str, float] = {}
    for table, each in workers.items():
        stack = program.stacks[table]
        counts = sum(stack.counts(unique.ids) for unique in each)
        shares = counts / len(each) / stack.sizes
        result |= zip(stack.paths, shares.tolist(), strict=True)
    return result


def pull(
    rows: Mapping[str, RowHome],
    workers: ReplicaRows,
    readings: Mapping[str, Reading],
) -> dict[str, list[PulledRows]]:
    """Pulls the rows of all tables for all replicas, limited to the columns read.

    Args:
      rows: By table its home.
      workers: By table, the rows that each replica reads.
      readings: By table, what of its rows has to travel.

    Returns:
      By table, one entry for each replica.
    """
    nbytes = sum(
        len(unique.ids) * row_bytes(home.table)
        for path, home in rows.items()
        for unique in workers[path]
    )
    pulls = []
    for path, home in rows.items():
        pulls.append(partial(home.pull, workers[path], readings[path]))
    return dict(zip(rows, all_of(pulls, nbytes), strict=True))


def inputs(
    n: int,
    program: SparseProgram,
    pulled: Mapping[str, Sequence[PulledRows]],
    sizes: PaddedSizes,
) -> list[ReplicaInputs]:
    """The inputs of all replicas' programs, of equal shapes.

    Args:
      n: The number of replicas.
      program: The rewritten loss.
      pulled: By table, what each replica has pulled.
      sizes: The padded sizes so far.

    Returns:
      One entry for each replica.
    """
    result = [ReplicaInputs({}, {}, {}) for _ in range(n)]

    def pad(path: str) -> None:
        each = pulled[path]
        # Known only after all pulls, as replicas need equal shapes.
        size = sizes.at_least(
            path,
            max(len(replica_rows.unique.ids) for replica_rows in each),
        )
        # Replicas of a machine share rows: they are padded once.
        padded = {}
        for replica_rows in each:
            padded[id(replica_rows.rows)] = pad_rows(replica_rows.rows, size)
        for replica_rows, given in zip(each, result, strict=True):
            given.rows[path] = padded[id(replica_rows.rows)]
            given.inverse[path] = replica_rows.unique.inverse
            given.ids[path] = _pad_ids(replica_rows.unique.ids, size, program.tables[path].shape[0])

    nbytes = sum(replica_rows.rows.nbytes for each in pulled.values() for replica_rows in each)
    all_of([partial(pad, path) for path in pulled], nbytes)
    return result


def _pad_ids(
    ids: np.ndarray,
    size: int,
    n_rows: int,
) -> np.ndarray:
    result = np.full(size, n_rows, np.int32)
    result[: len(ids)] = ids
    return result
