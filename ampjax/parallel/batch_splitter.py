"""Batches of a run, cut for replicas: structure, shapes and dtypes are checked once for each kind of batch.

Knows pytrees of arrays; nothing of devices or steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from ampjax.devices.host_arrays import hold_in_32_bits
from ampjax.parallel.bag import BagWidths, has_bags
from ampjax.parallel.shard import are_shared, cut_leaves, split_batch

Tree = Any

MAX_KINDS = 64
"""Kinds of batches that are remembered."""


class BatchSplitter:
    """Cuts the batches of one run.

    Args:
      n: Number of replicas.
      shared: Patterns of leaves that all replicas get whole.
    """

    def __init__(self, n: int, shared: Sequence[str]):
        self._n = n
        self._shared = shared
        self._widths = BagWidths()
        self._known: dict[Hashable, list[bool]] = {}  # by kind, which leaves are cut

    def __call__(self, batch: Tree) -> tuple[Tree, ...]:
        """Each replica's part of a batch, as from `split_batch`.

        Args:
          batch: A batch, or `Parts`.

        Returns:
          n pytrees.

        Raises:
          SettingsError: As `split_batch`.
          DataError: As `split_batch`.
        """
        leaves, structure = jax.tree.flatten(batch)
        kind = _kind(leaves, structure)
        are_cut = None if kind is None else self._known.get(kind)
        if are_cut is not None and hold_in_32_bits(leaves):
            return cut_leaves(leaves, are_cut, structure, self._n)
        parts = split_batch(batch, self._n, self._shared, self._widths)
        if kind is not None and not has_bags(batch):  # bags are arranged by their lengths
            if len(self._known) >= MAX_KINDS:
                self._known.clear()
            are_whole = are_shared(batch, self._shared)
            self._known[kind] = [not is_whole for is_whole in are_whole]
        return parts


def _kind(leaves: Sequence[Any], structure: Any) -> Hashable:
    """A key of everything that is checked without a look at numbers; None if some leaf is no array."""
    traits: list[Hashable] = [structure, jax.dtypes.canonicalize_dtype(np.int64)]
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray | jax.Array):
            return None
        traits.append(leaf.shape)
        traits.append(leaf.dtype)
    return tuple(traits)
