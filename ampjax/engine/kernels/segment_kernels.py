"""Kernels of `reduce` and `collect` stages: rows of several messages at once, summed into segments, and the adjoint.

Both have one function of the rows, `SegmentReduction` or `SegmentCollection`, and so share all else. They have no parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.scatter import add_rows, set_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.wiring import Wiring, mask_rows
from ampjax.sched.layout.columns import TRASH


@dataclass(frozen=True)
class SegmentReduction:
    """The computation of a `reduce` stage.

    Args:
      function: `function(rows, segment_ids, n_segments) -> [n_segments, ...]`; ids out of range are dropped.
    """

    function: Callable[..., Array]

    def __call__(
        self,
        rows: tuple[Array, ...],
        ids: tuple[Array, ...],
        n: int,
    ) -> Array:
        """Rows `[r, *shape]` per port, to `[n, ...]`."""
        return self.function(rows[0], ids[0], n)


@dataclass(frozen=True)
class SegmentCollection:
    """The computation of a `collect` stage: rows added at their places."""

    def __call__(
        self,
        rows: tuple[Array, ...],
        ids: tuple[Array, ...],
        n: int,
    ) -> Array:
        """Rows `[r, *shape]` per port, to `[n, ...]`."""
        total = jnp.zeros(
            (n, *rows[0].shape[1:]),
            rows[0].dtype,
        )
        for r, i in zip(rows, ids, strict=True):
            total = total.at[i].add(r, mode="drop")
        return total


class SegmentRows(NamedTuple):
    """The arrays of one dispatch; in a call this is a plain tuple (`kernels.kernel`).

    Args:
      host: The rows of each port whose payloads lie in host memory, `[r, *shape]`.
      slots: The slots of each port's rows, int32 `[r]`.
      ids: The segment of each of these, int32 `[r]`; padding has one out of range.
      out: The slots of the segments, int32 `[m]`.
    """

    host: Any
    slots: Any
    ids: Any
    out: Any


@shared
def forward(function: SegmentReduction | SegmentCollection, wiring: Wiring) -> Kernel:
    """`kernel(values, grads, read, per_dispatch) -> (values, grads)`: the rows of several messages at once, into segments."""

    @jitted("values", "grads")
    def segments_forward(
        values: Any,
        grads: Any,
        read: Any,
        per_dispatch: Any,
    ) -> Any:
        dispatch = SegmentRows(*per_dispatch)
        y = function(
            _rows(wiring, (*values, *read), dispatch),
            dispatch.ids,
            dispatch.out.shape[0],
        )
        # A sole consumer writes the gradients, so they need not start from zero.
        if grads[0] is None or wiring.written[0]:
            grad = grads[0]
        else:
            grad = set_rows(grads[0], dispatch.out, 0)
        return (set_rows(values[0], dispatch.out, y),), (grad,)

    return segments_forward


@shared
def backward(function: SegmentReduction | SegmentCollection, wiring: Wiring) -> Kernel:
    """`kernel(grads, arenas, per_dispatch, n) -> grads`: the adjoint; `n` is the number of real segments."""

    @jitted("grads")
    def segments_backward(
        grads: Any,
        arenas: Any,
        per_dispatch: Any,
        n: Any,
    ) -> Any:
        dispatch = SegmentRows(*per_dispatch)
        m = dispatch.out.shape[0]
        _, pull = jax.vjp(
            lambda *rows: function(rows, dispatch.ids, m),
            *_rows(wiring, arenas, dispatch),
        )
        # Padding segments read the trash slot, whose adjoint may hold anything.
        cotangent = mask_rows(
            jnp.arange(m) < n,
            grads[wiring.outputs[0]][dispatch.out],
        )
        new = list(grads)
        # Each port's gradients are added at its slots. Padding rows have ids out of range and go to
        # the trash slot.
        for place, slots, ids, gradient in zip(
            wiring.ports, dispatch.slots, dispatch.ids, pull(cotangent), strict=True
        ):
            if place is not None and new[place] is not None:
                real = ids < m
                new[place] = add_rows(
                    new[place],
                    jnp.where(real, slots, TRASH),
                    mask_rows(real, gradient),
                )
        return tuple(new)

    return segments_backward


def _rows(
    wiring: Wiring,
    arenas: tuple[Array, ...],
    dispatch: SegmentRows,
) -> tuple[Array, ...]:
    """The input rows of each port, `[r, *shape]`."""
    from_host = iter(dispatch.host)
    result = []
    for place, slots in zip(wiring.ports, dispatch.slots, strict=True):
        result.append(next(from_host) if place is None else arenas[place][slots])
    return tuple(result)
