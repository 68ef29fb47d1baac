"""The joined batch: the replicas' parts as one device would get them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.random_keys import is_key
from ampjax.parallel.shard import are_shared, has_rows
from ampjax.sparse.detection.loss_jaxpr import abstract

Tree = Any


class Skipped(Exception):
    """A comparison that has no subject, for the reason given."""


class JoinedBatch:
    """The parts of a batch, and the batch that they form.

    Args:
      parts: By replica its part.
      shared: Patterns of leaves that all replicas get whole.
    """

    def __init__(self, parts: Sequence[Tree], shared: Sequence[str]):
        self.parts = parts
        self.leaves = [jax.tree.leaves(part) for part in parts]
        self._structure = jax.tree.structure(parts[0])
        is_cut = [not is_shared for is_shared in are_shared(parts[0], shared)]
        #: By leaf, whether each replica has its own rows of it; if not, all have the same.
        are_rows = []
        for is_own, leaf in zip(is_cut, self.leaves[0], strict=True):
            are_rows.append(is_own and bool(np.ndim(leaf)))
        self.are_rows = are_rows

    def leaf(self, number: int) -> Any:
        """One leaf of the joined batch."""
        each = [leaves[number] for leaves in self.leaves]
        if not self.are_rows[number]:
            return each[0]
        if is_key(each[0]):
            return jnp.concatenate(each)
        return np.concatenate([np.asarray(leaf) for leaf in each])

    @cached_property
    def whole(self) -> Tree:
        """The joined batch."""
        return jax.tree.unflatten(
            self._structure,
            [self.leaf(i) for i in range(len(self.are_rows))],
        )

    @property
    def shapes(self) -> Tree:
        """Its shapes and dtypes."""
        n = len(self.parts)
        leaves = jax.tree.leaves(abstract(self.parts[0]))
        joined = []
        for leaf, is_rows in zip(leaves, self.are_rows, strict=True):
            joined.append(
                jax.ShapeDtypeStruct(
                    (n * leaf.shape[0], *leaf.shape[1:]),
                    leaf.dtype,
                )
                if is_rows
                else leaf
            )
        return jax.tree.unflatten(self._structure, joined)

    @property
    def is_one_batch(self) -> bool:
        """Tells whether all cut leaves have one leading size; else parts are batches of their own, with offsets for example."""
        sizes = set()
        for leaf, is_rows in zip(self.leaves[0], self.are_rows, strict=True):
            if is_rows and not is_key(leaf):
                sizes.add(len(leaf))
        return len(sizes) <= 1

    def require_joinable(self) -> None:
        """Checks that rows can be put together, and that all replicas have the same scalars and single keys.

        Raises:
          Skipped: If not.
        """
        if not has_rows(self.parts[0]):
            raise Skipped(
                "rows of a packed batch refer to each other, so each part is a batch of its own"
            )
        if any(
            varies and not is_row for varies, is_row in zip(self.varies, self.are_rows, strict=True)
        ):
            raise Skipped(
                "the parts differ in a scalar or in a single random key, so there is no joined batch"
            )

    @property
    def varies(self) -> list[bool]:
        """Tells for each leaf whether replicas have their own: rows of the leaf, or another scalar."""
        result = []
        for i, is_rows in enumerate(self.are_rows):
            result.append(is_rows or self._differs(i))
        return result

    def _differs(self, number: int) -> bool:
        first, *others = (leaves[number] for leaves in self.leaves)
        if all(leaf is first for leaf in others):
            return False
        if is_key(first):
            data = lambda leaf: np.asarray(jax.random.key_data(leaf))
        else:
            data = np.asarray
        return any(not np.array_equal(data(leaf), data(first)) for leaf in others)
