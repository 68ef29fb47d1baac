"""Programs that run on several devices at once, each on its entry of every array: the one place that calls `jax.pmap`.

JAX's own `pmap` is `jit(shard_map)` by now, and is kept for older programs. If it is removed, this file changes and no other. Knows
functions and devices; nothing of replicas' arrays, steps or collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

Device = Any  # jax.Device, which type checkers do not take for a type


def map_over_devices(
    function: Callable[..., Any],
    devices: Sequence[Device],
    axis_name: str | None,
    *,
    in_axes: Any = 0,
    donate_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Maps a function over the first axis of its arguments, entry i on device i, and compiles the result.

    Inside, collectives such as `jax.lax.psum` reach over the axis by its name. The result holds what was compiled: make it once.

    Args:
      function: A pure function of pytrees of arrays, without the axis.
      devices: The devices, n of them; in several processes those of all, where each process gives and gets the entries of its own.
      axis_name: The axis's name; None if no collective needs it.
      in_axes: For each argument 0, or None where every device gets the whole argument.
      donate_argnums: Arguments whose buffers results may take over. They can't be used afterwards.

    Returns:
      A function from pytrees of arrays `[n, *shape]` to such pytrees, with `lower(*args)` as `jax.jit` gives it.
    """
    return jax.pmap(
        function,
        axis_name=axis_name,
        devices=list(devices),
        in_axes=in_axes,
        donate_argnums=donate_argnums,
    )
