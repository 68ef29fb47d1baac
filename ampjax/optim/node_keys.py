"""Keys of optimizers that draw random numbers: each node's own, so that nodes of one shape do not draw the same."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp


def with_own_keys(state: Any, name: str) -> Any:
    """A node's first optimizer state, with keys that no other node has.

    Args:
      state: What a transform's `init` gave, such as that of `optax.add_noise`.
      name: The node's name.
    """
    number = zlib.crc32(name.encode())

    def own(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(
            leaf.dtype,
            jax.dtypes.prng_key,
        )
        if is_key and not leaf.shape:
            return jax.random.fold_in(leaf, number)
        return leaf

    return jax.tree.map(own, state)
