"""The order in which instances are taken: at random, or so that instances of about the same size follow one another.

Instances that were admitted together fill a dispatch only while all of them are in flight. Where some are much longer than others, the last
dispatches hold few rows. Minibatches of sequences of one length avoid that by the same means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.drivers.controller import LoopInstances, batches_of
from ampjax.ir.instances import Instances, declared_sizes

MEASURED_TOGETHER = 1024
"""How many instances are gathered at a time to find out their sizes."""

POOL = 50
"""How many groups are drawn at random together, put in order of size and cut."""


class Orders:
    """Orders of the instances of data sets.

    Args:
      group: Instances of about the same size that follow one another; 1 takes all in random order.
    """

    def __init__(self, group: int):
        self._group = group
        self._known: list[tuple[Any, np.ndarray]] = []

    def training_order(
        self, data: Instances | LoopInstances, rng: np.random.Generator
    ) -> np.ndarray:
        """Draws an order for an epoch of training.

        Args:
          data: A data set.
          rng: Draws.

        Returns:
          The numbers of all instances, `[n]`.

        Raises:
          DataError: If the data set's `sizes` are not one number for each instance.
        """
        if self._group == 1:
            return rng.permutation(len(data))
        return in_groups(self._sizes(data), self._group, rng)

    def evaluation_order(self, data: Instances | LoopInstances) -> np.ndarray:
        """Computes the order in which instances are evaluated: the given one, or from small to large if grouped by size.

        Args:
          data: A data set.

        Returns:
          The numbers of all instances, `[n]`.

        Raises:
          DataError: If the data set's `sizes` are not one number for each instance.
        """
        if self._group == 1:
            return np.arange(len(data))
        return np.argsort(self._sizes(data), kind="stable")

    def largest(
        self,
        data: Instances | LoopInstances,
        n: int,
        train: bool,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Finds the largest of all runs of consecutive instances, which are likely to be in flight together.

        Args:
          data: A data set.
          n: How many.
          train: Whether they are ordered for training.
          rng: Draws.

        Returns:
          Their numbers, `[n]`; none where the order is random.
        """
        if self._group == 1:
            return np.arange(0)
        order = self.training_order(data, rng) if train else self.evaluation_order(data)
        return largest_run(order, self._sizes(data), n)

    def _sizes(self, data: Instances | LoopInstances) -> np.ndarray:
        """Looks up a data set's sizes. The last two data sets' sizes are remembered, until an instance is added or taken away."""
        known = (entry for entry in self._known if entry[0] is data and len(entry[1]) == len(data))
        entry = next(known, None) or (data, sizes_of(data))
        self._known = [
            *[other for other in self._known if other is not entry][-1:],
            entry,
        ]
        return entry[1]


def sizes_of(data: Instances | LoopInstances) -> np.ndarray:
    """Finds out how large each instance is.

    The data set's own `sizes` count, if it has them; else the messages that it pumps, and the rows of ragged ones.

    Args:
      data: A data set.

    Returns:
      The sizes, `[n]`.

    Raises:
      DataError: If `sizes` is not one number for each instance.
    """
    declared = declared_sizes(data)
    if declared is not None:
        return declared
    sizes = np.zeros(len(data), np.int64)
    for start in range(0, len(data), MEASURED_TOGETHER):
        ids = np.arange(start, min(start + MEASURED_TOGETHER, len(data)))
        for batch in batches_of(data, ids):
            for messages in batch.values():
                counts = np.bincount(
                    messages.instance,
                    messages.sizes,
                    minlength=len(ids),
                )
                sizes[ids] += counts.astype(np.int64)
    return sizes


def largest_run(
    order: np.ndarray,
    sizes: np.ndarray,
    n: int,
) -> np.ndarray:
    """Finds the elements that follow one another in an order and have the largest sum of sizes.

    Args:
      order: `[m]`: numbers of elements.
      sizes: The size of each element, by number.
      n: How many elements.

    Returns:
      Their numbers, `[n]`; all of `order` where it has no more.
    """
    n = min(n, len(order))
    up_to = np.concatenate([[0], np.cumsum(sizes[order])])
    start = int(np.argmax(up_to[n:] - up_to[: len(up_to) - n]))
    return order[start : start + n]


def in_groups(
    sizes: np.ndarray,
    group: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """A random order in which groups of `group` have about the same size.

    Pools of 50 groups are drawn at random, put in order of size and cut into groups; then all groups are shuffled. A group with fewer
    instances comes last, so that instances that are admitted together are always of one group.

    Args:
      sizes: `[n]`.
      group: Instances in a group; the last one may have fewer.
      rng: Draws.

    Returns:
      `[n]`: each of `0 ... n - 1` once.

    >>> in_groups(np.array([1, 9, 1, 9, 1, 9]), 3, np.random.default_rng(0)).tolist()
    [3, 5, 1, 2, 4, 0]
    """
    drawn = rng.permutation(len(sizes))
    groups = []
    for start in range(0, len(drawn), POOL * group):
        pool = drawn[start : start + POOL * group]
        pool = pool[np.argsort(sizes[pool], kind="stable")]
        groups += [pool[i : i + group] for i in range(0, len(pool), group)]
    shuffled = sorted(
        (groups[i] for i in rng.permutation(len(groups))),
        key=lambda members: len(members) < group,
    )
    return np.concatenate(shuffled) if shuffled else drawn


def in_batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    """An order cut into batches; the last one may be smaller.

    Args:
      order: `[n]`: the numbers of examples.
      size: Examples of a batch.
    """
    return [order[start : start + size] for start in range(0, len(order), size)]
