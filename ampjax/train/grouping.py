"""The order in which instances are taken: at random, or so that instances of about the same size follow one another.

Instances that have been let in together fill a dispatch only while all of them are under way; where some are much longer, the last dispatches of a
wave hold few rows. Minibatches by length avoid that by the same means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.drivers.controller import LoopInstances, batches_of
from ampjax.ir.instances import Instances, declared_sizes

AT_ONCE = 1024
"""Instances that are looked at together to find out their sizes."""

POOL = 50
"""Groups that are drawn at random together and put in order of size, then cut."""


class Orders:
    """Orders of the instances of data sets.

    Args:
      group: Instances of about the same size that follow one another; 1 takes all in random order.
    """

    def __init__(self, group: int):
        self._group = group
        self._known: list[tuple[Any, np.ndarray]] = []

    def draw(self, data: Instances | LoopInstances, rng: np.random.Generator) -> np.ndarray:
        """An order `[n]` for an epoch of training."""
        if self._group == 1:
            return rng.permutation(len(data))
        return in_groups(self._sizes(data), self._group, rng)

    def settled(self, data: Instances | LoopInstances) -> np.ndarray:
        """The order `[n]` in which instances are evaluated."""
        return np.arange(len(data)) if self._group == 1 else np.argsort(self._sizes(data), kind="stable")

    def largest(self, data: Instances | LoopInstances, n: int, train: bool, rng: np.random.Generator) -> np.ndarray:
        """The `n` instances that are largest of all that follow one another, so that they are likely to be under way together; none where the order is random."""
        if self._group == 1:
            return np.arange(0)
        order = self.draw(data, rng) if train else self.settled(data)
        return largest_run(order, self._sizes(data), n)

    def _sizes(self, data: Instances | LoopInstances) -> np.ndarray:
        """A data set's sizes; those of the last two are remembered, as long as no instance is added or taken away."""
        known = (pair for pair in self._known if pair[0] is data and len(pair[1]) == len(data))
        found = next(known, None) or (data, sizes_of(data))
        self._known = [*[pair for pair in self._known if pair is not found][-1:], found]
        return found[1]


def sizes_of(data: Instances | LoopInstances) -> np.ndarray:
    """How large each instance is, `[n]`: what the data set's own `sizes` say, if it has them; else messages, and of ragged ones rows, that it pumps.

    Raises:
      DataError: If `sizes` is not one number for each instance.
    """
    told = declared_sizes(data)
    if told is not None:
        return told
    sizes = np.zeros(len(data), np.int64)
    for start in range(0, len(data), AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, len(data)))
        for batch in batches_of(data, ids):
            for messages in batch.values():
                counts = np.bincount(messages.instance, messages.sizes, minlength=len(ids))
                sizes[ids] += counts.astype(np.int64)
    return sizes


def largest_run(order: np.ndarray, sizes: np.ndarray, n: int) -> np.ndarray:
    """The `n` elements of `order` that follow one another and have the largest sum of sizes; all, where there are no more.

    >>> largest_run(np.array([3, 0, 2, 1]), np.array([1, 5, 9, 2]), 2).tolist()
    [2, 1]
    """
    n = min(n, len(order))
    up_to = np.concatenate([[0], np.cumsum(sizes[order])])
    start = int(np.argmax(up_to[n:] - up_to[: len(up_to) - n]))
    return order[start : start + n]


def in_groups(sizes: np.ndarray, group: int, rng: np.random.Generator) -> np.ndarray:
    """A random order in which groups of `group` have about the same size.

    Pools of 50 groups are drawn at random, put in order of size and cut into groups; then all groups are shuffled. One with fewer instances comes
    last, so that those let in together are always of one group.

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
    shuffled = sorted((groups[i] for i in rng.permutation(len(groups))), key=lambda own: len(own) < group)
    return np.concatenate(shuffled) if shuffled else drawn
