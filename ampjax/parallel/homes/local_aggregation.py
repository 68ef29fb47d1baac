"""The rows that the replicas of a machine touch together (local aggregation, Parallax §4.1). Pure NumPy.

A row that several of them read is pulled once, and its gradients are summed before they travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.sparse.rewrite.unique_ids import UniqueRows


def share_ids(workers: Sequence[UniqueRows]) -> list[UniqueRows]:
    """What some workers touch together: the same ids for each, with its own positions in them.

    Args:
      workers: What each touches of one table.

    >>> first, second = UniqueRows(np.array([3, 7]), np.array([1, 0, 2])), UniqueRows(np.array([5]), np.array([0]))
    >>> both = together([first, second])
    >>> both[1].ids.tolist(), [worker.inverse.tolist() for worker in both]
    ([3, 5, 7], [[2, 0, 3], [1]])
    """
    if len(workers) == 1:
        return list(workers)
    ids = np.unique(np.concatenate([worker.ids for worker in workers]))
    return [UniqueRows(ids, _moved(worker, ids)) for worker in workers]


def _moved(worker: UniqueRows, ids: np.ndarray) -> np.ndarray:
    # The last entry is for reads of no row.
    places = np.append(np.searchsorted(ids, worker.ids), len(ids)).astype(np.int32)
    return places[worker.inverse]
