"""Random keys among a tree's leaves: NumPy does not take them, so they travel and are written as the integers that they hold.

Knows single leaves; nothing of trees, devices or files.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of `jax.random.key`s."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def data_of(leaf: Any) -> np.ndarray:
    """What a leaf holds, as a NumPy array: of a key its integers, with an axis more."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def on_host(leaf: Any) -> Any:
    """A leaf as a NumPy array; keys as they are."""
    return leaf if is_key(leaf) else np.asarray(leaf)


def wrapped_like(leaf: Any, data: np.ndarray) -> Any:
    """What `data_of` gave of a leaf of the same kind, as that kind."""
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(leaf)) if is_key(leaf) else data


def copy_leaf(leaf: Any) -> Any:
    """A copy of a leaf that shares no memory with it: a NumPy array, or a key."""
    return wrapped_like(leaf, np.array(data_of(leaf)))
