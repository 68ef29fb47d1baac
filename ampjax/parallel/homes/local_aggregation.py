"""The rows that the replicas of a machine touch together (local aggregation, Parallax §4.1). Pure NumPy.

A row that several of them read is pulled once, and its gradients are summed before they travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.sparse.rewrite.unique_ids import UniqueRows


def share_ids(workers: Sequence[UniqueRows]) -> list[UniqueRows]:
    """Unites the rows of some workers: the same ids for each worker, with its own positions in the ids.

    Args:
      workers: The rows of one table that each worker reads.

    Returns:
      One entry for each worker.

    >>> first, second = UniqueRows(np.array([3, 7]), np.array([1, 0, 2])), UniqueRows(np.array([5]), np.array([0]))
    >>> both = share_ids([first, second])
    >>> both[1].ids.tolist(), [worker.inverse.tolist() for worker in both]
    ([3, 5, 7], [[2, 0, 3], [1]])
    """
    if len(workers) == 1:
        return list(workers)
    # Without `return_inverse` NumPy finds them by hashing, which is several times slower for thousands of ids.
    ids, places = np.unique(
        np.concatenate([worker.ids for worker in workers]),
        return_inverse=True,
    )
    ends = np.cumsum([len(worker.ids) for worker in workers])
    # The last entry is for reads of no row.
    tables = []
    for positions in np.split(places, ends[:-1]):
        tables.append(np.append(positions, len(ids)).astype(np.int32))
    result = []
    for positions, worker in zip(tables, workers, strict=True):
        result.append(UniqueRows(ids, positions[worker.inverse]))
    return result
