"""Arrays with a leading axis of replicas, each entry on its replica's device: the inputs and outputs of mapped programs.

Knows devices and pytrees; nothing of steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ampjax.devices.loss_collectives import AXIS
from ampjax.devices.random_keys import copy_leaf, data_of, on_host, wrapped_like

Tree = Any
Device = Any  # jax.Device, which type checkers do not take for a type


def spread(trees: Sequence[Tree], devices: Sequence[Device]) -> Tree:
    """One tree per replica as one tree of `[n, *shape]` arrays, each entry on its device.

    Args:
      trees: n pytrees of equal structure and shapes. The same one may stand there several times.
      devices: n distinct devices.

    Returns:
      A pytree of arrays `[n, *shape]`.
    """
    n = len(devices)
    sharding = _sharding(tuple(devices))
    flat = [jax.tree.leaves(tree) for tree in trees]
    parts = []
    for leaves in zip(*flat, strict=True):
        for leaf in leaves:
            parts.append(_one(leaf))
    # One call for everything: it costs little more than a call for one leaf.
    put = jax.device_put(
        parts,
        list(devices) * (len(parts) // n),
    )
    joined = []
    for i in range(0, len(put), n):
        joined.append(
            jax.make_array_from_single_device_arrays(
                (n, *put[i].shape[1:]),
                sharding,
                put[i : i + n],
            )
        )
    return jax.tree.unflatten(
        jax.tree.structure(trees[0]),
        joined,
    )


def spread_inputs(trees: Sequence[Tree], devices: Sequence[Device]) -> Tree:
    """Spreads trees like `spread`, for a mapped program that takes the result at once and donates none of its buffers.

    A program on one device takes host arrays as they are, in less time than it takes to make device arrays of them; each leaf comes to the host
    first, so arrays of a device had better not come here.

    Args:
      trees: n pytrees of equal structure and shapes.
      devices: n distinct devices.

    Returns:
      A pytree of arrays `[n, *shape]`.
    """
    if len(devices) > 1:
        return spread(trees, devices)
    return jax.tree.map(_one, trees[0])


@functools.lru_cache(maxsize=64)
def _sharding(devices: tuple[Device, ...]) -> NamedSharding:
    return NamedSharding(
        Mesh(np.array(devices), (AXIS,)),
        PartitionSpec(AXIS),
    )


def replicate(tree: Tree, devices: Sequence[Device]) -> Tree:
    """Copies a tree for each replica. Buffers are new: donation of a copy leaves the tree valid.

    Args:
      tree: A pytree of arrays.
      devices: The replicas' devices, n of them.

    Returns:
      A pytree of arrays `[n, *shape]`.
    """
    # A copy for each: on a CPU, JAX may take a NumPy buffer as it is, and donation must not reach another replica's.
    return spread(
        [jax.tree.map(copy_leaf, tree) for _ in devices],
        devices,
    )


def replica_entry(tree: Tree, replica: int = 0) -> Tree:
    """One replica's entry of each array.

    Args:
      tree: A pytree of arrays `[n, *shape]`.
      replica: The replica's number.

    Returns:
      A pytree of NumPy arrays of their own, and of keys.
    """
    return jax.tree.map(
        lambda leaf: wrapped_like(leaf, np.array(shard_of(leaf, replica))),
        tree,
    )


def shard_of(leaf: jax.Array, replica: int) -> np.ndarray:
    """Reads one replica's entry of one array from its device; without a copy on the host.

    Args:
      leaf: `[n, *shape]`.
      replica: The replica's number.

    Returns:
      A NumPy array; of keys, their integers.
    """
    return data_of(leaf.addressable_data(replica))[0]


def shapes_of(tree: Tree) -> Tree:
    """Collects shapes, dtypes in JAX's form, and shardings of a tree of arrays: enough to lower a program."""

    def shape_of(leaf: Any) -> Any:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(
            leaf.shape,
            dtype,
            sharding=getattr(leaf, "sharding", None),
        )

    return jax.tree.map(shape_of, tree)


def _one(leaf: Any) -> Any:
    """A leaf with a leading axis of one replica, as an array of the host."""
    return on_host(leaf)[None]
