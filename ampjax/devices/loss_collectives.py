"""A loss function's collectives over all replicas: rows of the joined batch, means over the batch, and a loss with its weight.

Outside of a runner there is one replica: the same loss function is a single-device program. Knows arrays and the name of the replicas'
axis; nothing of devices, steps or tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import DataError, SettingsError

AXIS = "ampjax_replica"
"""The name of the replicas' axis in mapped functions."""

Tree = Any


def all_gather(x: Tree) -> Tree:
    """Gathers all replicas' rows, in the order of the joined batch.

    A loss uses it to read examples of the other replicas, for example as negatives. If labels are positions in the joined batch, put them
    into the batch, as `np.arange(n)`. Gradients flow back to all replicas; together they are the gradient of the joined batch. Row ids
    that depend on gathered arrays are not known before the step: gather rows, not ids, or the table is kept dense.

    Args:
      x: An array `[b, ...]`, or a pytree of such arrays, of equal shapes on all replicas.

    Returns:
      Arrays `[n·b, ...]` for n replicas; `x` itself outside a runner and in asynchronous training (`sync=False`).

    Raises:
      DataError: If an array has no leading axis.

    >>> all_gather(jnp.arange(3)).tolist()
    [0, 1, 2]
    """
    for leaf in jax.tree.leaves(x):
        if not jnp.ndim(leaf):
            fix = "Give it an axis of examples, or take `px.mean` of it."
            raise DataError(
                "px.all_gather", "arrays with a leading axis of examples", "a scalar", fix
            )
    if not _is_replica():
        return x
    return jax.tree.map(
        lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True),
        x,
    )


def mean(
    x: Any,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> jax.Array:
    """The mean over axes of an array and over all replicas, in float32 at least: for statistics of the joined batch.

    Gradients flow back to all replicas. Outside a runner and in asynchronous training (`sync=False`) it is `jnp.mean`.

    Args:
      x: An array, of equal shapes on all replicas.
      axis: The axes; the axis of the examples must be among them. None takes all.
      keepdims: Whether axes stay, with size 1.

    Returns:
      `[...]` without those axes, in the dtype of `x`; of integers, in JAX's float dtype.

    >>> mean(jnp.array([[1.0, 2.0], [3.0, 6.0]]), axis=0).tolist()
    [2.0, 4.0]
    """
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        dtype = x.dtype
    else:
        dtype = jnp.result_type(float)
    local = jnp.mean(
        x,
        axis,
        jnp.promote_types(dtype, jnp.float32),
        keepdims=keepdims,
    )
    return (jax.lax.pmean(local, AXIS) if _is_replica() else local).astype(dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weighted:
    """A loss `total / weight`, returned by a loss function in place of the quotient, with or without aux.

    If weights differ between replicas (batches with padding), the mean of their quotients would be wrong. The loss of all replicas is the
    sum of their totals over the sum of their weights, as on the joined batch. Its gradient is right, too, also if weights depend on
    parameters. In asynchronous training (`sync=False`) each replica has the quotient of its own batch.

    Args:
      total: A float scalar: the sum of the examples' losses.
      weight: A scalar: the number of examples or tokens that count. It may be 0 on some replicas, not on all.
    """

    total: Any
    weight: Any

    @property
    def value(self) -> jax.Array:
        """The loss as a scalar, over all replicas, in float32 at least.

        Use it to run the loss function on a single device: `jax.grad(lambda p, b: loss_fn(p, b).value)`.

        Raises:
          SettingsError: If the total is not a float scalar, or the weight no scalar.

        >>> float(Weighted(jnp.float32(6), jnp.int32(4)).value)
        1.5
        """
        total = jnp.asarray(self.total)
        weight = jnp.asarray(self.weight)
        if total.shape or weight.shape or not jnp.issubdtype(total.dtype, jnp.floating):
            got = " and ".join(f"{x.dtype}{list(x.shape)}" for x in (total, weight))
            raise SettingsError(
                "px.Weighted", "a float scalar and its weight, a scalar", got, "Take their sums."
            )
        wide = jnp.promote_types(total.dtype, jnp.float32)
        both = total.astype(wide), weight.astype(wide)
        if _is_replica():
            total, weight = jax.lax.psum(both, AXIS)
        else:
            total, weight = both
        return total / weight


def is_weighted(out: Any) -> bool:
    """Tells whether a loss function's result is `Weighted`, or a pair of `Weighted` and aux."""
    return isinstance(
        out[0] if isinstance(out, tuple) and len(out) == 2 else out,
        Weighted,
    )


def scalar(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A loss function that returns a scalar in the place of `Weighted`.

    Args:
      loss_fn: A loss function; it may return `Weighted`, a scalar, or a pair of one of them and aux.

    Returns:
      The loss function, which returns a scalar or `(scalar, aux)`.
    """

    def loss(*args: Any) -> Any:
        out = loss_fn(*args)
        if not is_weighted(out):
            return out
        if isinstance(out, tuple):
            return (out[0].value, out[1])
        return out.value

    return loss


def _is_replica() -> bool:
    """Tells whether the present trace is the program of one replica of several."""
    try:
        jax.lax.axis_size(AXIS)
    except NameError:
        return False
    return True
