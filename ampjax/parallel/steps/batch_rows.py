"""From a step's batch to the rows that it needs: ids on the devices, unique rows on the host, padded rows back to the devices.

Knows the rewritten loss and the homes of rows; nothing of gradients or updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ampjax.parallel.homes.row_homes import PulledRows, Reading, RowHome
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.rewrite.unique_ids import UniqueRows, pad_rows, padded_size, unique_rows

ReplicaRows = dict[str, list[UniqueRows]]
"""By table, what each replica touches."""


class Inputs(NamedTuple):
    """One replica's share of what a program of pulled rows takes.

    Args:
      rows: By table, `[m, *row]`, padded.
      inverse: By table, `[n]`, int32.
      ids: By table, `[m]`, int32; the number of rows where there is padding.
    """

    rows: dict[str, np.ndarray]
    inverse: dict[str, np.ndarray]
    ids: dict[str, np.ndarray]


class PaddedSizes:
    """Padded numbers of rows. They only grow, so that few programs are compiled."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def at_least(self, path: str, n: int) -> int:
        """The size for n rows of a table: that of the largest step so far, or a larger one."""
        self._sizes[path] = max(self._sizes.get(path, 0), padded_size(n))
        return self._sizes[path]


def rows_of_replicas(program: SparseProgram, ids: Sequence[Mapping[str, Any]]) -> ReplicaRows:
    """Each replica's unique rows.

    Args:
      program: The rewritten loss.
      ids: By replica, what `program.ids` gave.
    """
    tables = {path: leaf.shape[0] for path, leaf in program.tables.items()}
    return {path: [unique_rows(np.asarray(own[path]), n) for own in ids] for path, n in tables.items()}


def alphas(program: SparseProgram, workers: ReplicaRows) -> dict[str, float]:
    """The share of rows that a replica touches, by table, the mean over replicas."""
    return {
        path: float(np.mean([len(own.ids) for own in each])) / program.tables[path].shape[0]
        for path, each in workers.items()
    }


def pull(
    rows: Mapping[str, RowHome], workers: ReplicaRows, readings: Mapping[str, Reading]
) -> dict[str, list[PulledRows]]:
    """All replicas' rows of all tables, as far as they are read."""
    return {path: home.pull(workers[path], readings[path]) for path, home in rows.items()}


def inputs(
    n: int, program: SparseProgram, pulled: Mapping[str, Sequence[PulledRows]], sizes: PaddedSizes
) -> list[Inputs]:
    """The inputs of n replicas, of equal shapes."""
    result = [Inputs({}, {}, {}) for _ in range(n)]
    for path, each in pulled.items():
        size = sizes.at_least(path, max(len(own.unique.ids) for own in each))
        # Replicas of a machine share rows: they are padded once.
        padded = {id(own.rows): pad_rows(own.rows, size) for own in each}
        for own, given in zip(each, result, strict=True):
            given.rows[path], given.inverse[path] = padded[id(own.rows)], own.unique.inverse
            given.ids[path] = _padded_ids(own.unique.ids, size, program.tables[path].shape[0])
    return result


def _padded_ids(ids: np.ndarray, size: int, n_rows: int) -> np.ndarray:
    result = np.full(size, n_rows, np.int32)
    result[: len(ids)] = ids
    return result
