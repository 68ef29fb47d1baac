"""Random keys among a tree's leaves. NumPy does not hold keys, so they travel, and are saved, as integers.

Knows single leaves; nothing of trees, devices or files.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(leaf: Any) -> bool:
    """Tells whether a leaf is an array of `jax.random.key`s, or the shape of one."""
    if isinstance(leaf, np.ndarray):  # most leaves, and the quickest to tell
        return False
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def data_of(leaf: Any) -> np.ndarray:
    """A leaf's data as a NumPy array. A key's data are integers, with one axis more.

    Args:
      leaf: An array, or keys.
    """
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def on_host(leaf: Any) -> Any:
    """Converts a leaf to a NumPy array. Keys stay unchanged.

    Args:
      leaf: An array, or keys.
    """
    return leaf if is_key(leaf) else np.asarray(leaf)


def wrapped_like(leaf: Any, data: np.ndarray) -> Any:
    """Data as keys, if a leaf holds keys; the inverse of `data_of`.

    Args:
      leaf: A leaf of the kind that is wanted, or its shape.
      data: What `data_of` gave of a leaf of that kind.
    """
    if not is_key(leaf):
        return data
    if isinstance(leaf, jax.Array):
        some = leaf
    else:
        some = jnp.empty(0, leaf.dtype)
    return jax.random.wrap_key_data(
        jnp.asarray(data),
        impl=jax.random.key_impl(some),
    )


def copy_leaf(leaf: Any) -> Any:
    """Copies a leaf into new memory.

    Args:
      leaf: An array, or keys.

    Returns:
      A NumPy array, or keys.
    """
    return wrapped_like(leaf, np.array(data_of(leaf)))
