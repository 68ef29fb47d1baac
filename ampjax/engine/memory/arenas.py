"""Arenas: arrays of payload rows, one per memory space, row shape and dtype, with an array of adjoint rows beside each.

Slot 0 is the trash slot: padding writes there. Arenas in host memory are NumPy arrays without adjoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.plan.stages import HOST, ArenaKey


class Arenas:
    """All arenas of an engine; kernels are given the values as donated arrays, and return new ones.

    Args:
      devices: The device of each memory space that is kept here.

    Attributes:
      devices: These.
      host: The arenas in host memory.
      values: The payload rows of the others.
      grads: The adjoint rows beside them; None beside integers.
      capacity: How many rows each arena has.
      grown: How often an arena that was there has been made longer.
    """

    def __init__(self, devices: Mapping[int, Device]):
        self.devices = devices
        self.host: dict[ArenaKey, np.ndarray] = {}
        self.values: dict[ArenaKey, jax.Array] = {}
        self.grads: dict[ArenaKey, jax.Array | None] = {}
        self.capacity: dict[ArenaKey, int] = {}
        self.grown = 0

    def ensure(self, key: ArenaKey, capacity: int) -> None:
        """Makes an arena at least as long as asked, and keeps its rows."""
        if self.capacity.get(key, 0) >= capacity:
            return
        space, shape, dtype = key
        # Host memory: NumPy arrays, without adjoint rows.
        if space == HOST:
            new = np.zeros((capacity, *shape), dtype)
            old = self.host.get(key, new[:0])
            new[: len(old)] = old
            self.host[key] = new
            self.capacity[key] = capacity
            return
        # Device memory: a longer copy; the old array is freed when no kernel uses it any more.
        device = self.devices[space]
        nothing = zeros((0, *shape), dtype, device)
        self.values[key] = grow(
            self.values.get(key, nothing),
            capacity,
        )
        old_grads = self.grads.get(key)
        # Integers take no gradient.
        floats = jnp.issubdtype(dtype, jnp.inexact)
        if floats:
            self.grads[key] = grow(nothing if old_grads is None else old_grads, capacity)
        else:
            self.grads[key] = None
        self.grown += key in self.capacity
        self.capacity[key] = capacity

    @property
    def device_bytes(self) -> int:
        """Bytes of all arenas on devices, adjoints included."""
        arrays = [
            *self.values.values(),
            *(g for g in self.grads.values() if g is not None),
        ]
        return sum(a.nbytes for a in arrays)

    def __repr__(self) -> str:
        lines = []
        for key, a in [*self.host.items(), *self.values.items()]:
            lines.append(f"  {key[1]} {key[2]} on space {key[0]}: {len(a)} rows")
        return "\n".join([f"Arenas: {self.device_bytes / 1e6:.1f} MB on devices", *lines])


def zeros(
    shape: tuple[int, ...],
    dtype: Any,
    device: Any,
) -> jax.Array:
    """Makes zeros on the host and puts the array on a device: `jnp.zeros` would be compiled for each shape, and JAX keeps all compiled functions."""
    return jax.device_put(np.zeros(shape, dtype), device)


def grow(array: jax.Array, capacity: int) -> jax.Array:
    """An array `[n, *row]` with rows of zeros behind, `[capacity, *row]`."""
    if not len(array):
        return zeros(
            (capacity, *array.shape[1:]),
            array.dtype,
            array.device,
        )
    return jnp.pad(
        array,
        [(0, capacity - len(array))] + [(0, 0)] * (array.ndim - 1),
    )


def copy_array(array: Any, device: Any) -> jax.Array:
    """Copies an array to a device, without compiling anything; the copy may be donated."""
    return jax.device_put(
        array if isinstance(array, jax.Array) else np.array(array),
        device,
        may_alias=False,
    )
