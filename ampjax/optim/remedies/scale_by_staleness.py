"""Shorter steps for stale gradients: the learning rate, or the gradient, is divided by something that grows with staleness."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.remedies.extra_arguments import staleness_of


def scale_by_staleness(exponent: float = 1.0) -> optax.GradientTransformationExtraArgs:
    """Divides updates by `(1 + staleness) ** exponent`: old gradients take shorter steps.

    The idea is that of staleness-aware asynchronous SGD (Zhang et al. 2016, arXiv 1511.05950), whose learning rate is divided by the
    staleness; the added 1 leaves fresh gradients unchanged. Staleness is defined as everywhere in `ampjax`: the updates that the node has
    made between a message's forward pass and its adjoint, averaged over the accumulated rows. Put it last in an `optax.chain`: transforms
    that normalise, such as Adam, undo a scaling that comes before them. Memory: none.

    Args:
      exponent: How fast steps become shorter; 0 does not change them.

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument; without it, `update` raises a `SettingsError`.

    Raises:
      SettingsError: If the exponent is negative.

    >>> tx = optax.chain(optax.sgd(1.0), scale_by_staleness())
    >>> updates, _ = tx.update({"w": jnp.array(6.0)}, tx.init({"w": jnp.array(0.0)}), staleness=2.0)
    >>> float(updates["w"])
    -2.0
    """
    _require("scale_by_staleness, `exponent`", "at least 0", exponent, exponent >= 0)
    return _scale_updates("scale_by_staleness", lambda staleness: (1 + staleness) ** -exponent)


def anneal_by_staleness(n_updates: int) -> optax.GradientTransformationExtraArgs:
    """Divides updates by the staleness at first, and by less and less later: PipeMare's T1.

    Yang et al. 2021, arXiv 1910.05124: the learning rate is divided by `staleness ** (1 - min(step / n_updates, 1))`, where steps count from 0. A
    staleness below 1 counts as 1. Put it last in an `optax.chain`. Memory: a counter.

    Args:
      n_updates: Updates until the learning rate is no longer divided. The authors recommend about a quarter of the first phase of its
        schedule.

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument.

    Raises:
      SettingsError: If it is below 1.
    """
    _require("anneal_by_staleness, `n_updates`", "at least 1", n_updates, n_updates >= 1)

    def init(params: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        del params, extra
        exponent = 1 - jnp.minimum(state.count / n_updates, 1.0)
        by = jnp.maximum(staleness_of("anneal_by_staleness", staleness), 1.0) ** -exponent
        return _times(updates, by), optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return transform(init, update)


def damp_by_staleness(
    rate: float = 0.1, cutoff: float = 32.0
) -> optax.GradientTransformationExtraArgs:
    """Multiplies gradients by `cos²(π/2 · min(staleness / cutoff, 1)) · exp(-rate · staleness)`, before an optimizer computes moments of them.

    It follows CGAD, whose authors multiply the pseudo-gradients of asynchronous DiLoCo by `γ(staleness) · exp(-rate · staleness)`, with a "cosine
    gate" γ that "smoothly zeroes contributions past a chosen cutoff" (arXiv 2605.09126, abstract). The abstract has no equation for γ: the squared
    cosine here is ours. With `cutoff=inf` γ is 1, and with Adam this is their Adam-Decay. Put it *before* Adam in an `optax.chain`, so that both
    of its moments see the damped gradient; with a staleness of 0 this is Adam. If staleness is always the same, it changes almost
    nothing, since Adam undoes a constant factor. Memory: none.

    Args:
      rate: The rate of the exponential, per update.
      cutoff: The staleness from which on gradients are ignored; infinity ignores none.

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument.

    Raises:
      SettingsError: If the rate is negative, or the cutoff not above 0.
    """
    _require("damp_by_staleness, `rate`", "at least 0", rate, rate >= 0)
    _require(
        "damp_by_staleness, `cutoff`", "above 0", min(cutoff, sys.float_info.max), cutoff > 0
    )  # infinity is allowed

    def scale(staleness: jax.Array) -> jax.Array:
        cosine = jnp.cos(jnp.pi / 2 * jnp.minimum(staleness / cutoff, 1.0))
        return jnp.where(staleness >= cutoff, 0.0, cosine**2) * jnp.exp(-rate * staleness)

    return _scale_updates("damp_by_staleness", scale)


def _scale_updates(
    name: str, scale: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformationExtraArgs:
    """Updates times a function of staleness."""

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        del params, extra
        return _times(updates, scale(staleness_of(name, staleness))), state

    return transform(optax.init_empty_state, update)


def _times(updates: Any, by: jax.Array) -> Any:
    return jax.tree.map(
        lambda u: (u * by).astype(jnp.result_type(u)),
        updates,
    )


def _require(
    where: str,
    wanted: str,
    value: float,
    holds: bool,
) -> None:
    if not holds or not math.isfinite(value):
        raise SettingsError(
            where, f"a number {wanted}", f"{value}", "The docstring says what it does."
        )
