"""Momentum that makes up for delays: spike compensation, and Nesterov's look-ahead with a discount."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.remedies.extra_arguments import staleness_of

Tree = Any


def compensate_spikes(momentum: float = 0.9) -> optax.GradientTransformationExtraArgs:
    """Momentum in which a late gradient adds at once all that an earlier arrival would have added so far.

    Spike compensation (Kosson et al. 2020, "Pipelined Backpropagation at Scale", arXiv 2003.11666): with `v = m·v + g` and a staleness
    of D, the step is `a·v + b·g`, where `a = m^D` and `b = (1 - m^D) / (1 - m) = 1 + m + ... + m^(D-1)`, what the gradient would have added
    meanwhile. So what it adds in all is what it would have in time. Without staleness it is `optax.trace(m)`. Put
    `optax.scale(-learning_rate)` behind it. Memory: that of momentum.

    Args:
      momentum: m, in [0, 1).

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument.

    Raises:
      SettingsError: If it is outside.

    >>> tx = compensate_spikes(0.5)
    >>> float(tx.update(jnp.array(1.0), tx.init(jnp.array(0.0)), staleness=1.0)[0])  # 0.5 · 1 + 1 · 1
    1.5
    """
    if not 0 <= momentum < 1:
        raise SettingsError(
            "compensate_spikes, `momentum`",
            "in [0, 1)",
            f"{momentum}",
            "Pass the momentum of your optimizer, such as 0.9.",
        )

    def init(params: Tree) -> optax.TraceState:
        return optax.TraceState(jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Tree,
        state: Any,
        params: Tree = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> tuple[Tree, Any]:
        del params, extra
        a = momentum ** staleness_of("compensate_spikes", staleness)
        b = (1 - a) / (1 - momentum)
        trace = jax.tree.map(
            lambda g, v: momentum * v + g,
            grads,
            state.trace,
        )
        corrected = jax.tree.map(
            lambda g, v: (a * v + b * g).astype(g.dtype),
            grads,
            trace,
        )
        return corrected, optax.TraceState(trace)

    return transform(init, update)


class DiscountedNadamState(NamedTuple):
    """The state of `scale_by_discounted_nadam`.

    Attributes:
      count: Updates so far.
      product: The product of all momentum coefficients so far.
      mu: The moving mean of gradients.
      nu: That of their squares.
    """

    count: jax.Array
    product: jax.Array
    mu: Tree
    nu: Tree


def scale_by_discounted_nadam(
    b1: float = 0.99,
    b2: float = 0.999,
    eps: float = 1e-8,
    discount: float = 0.004,
) -> optax.GradientTransformationExtraArgs:
    """NAdam whose momentum coefficient grows: `µ_t = b1 · (1 - ½ · 0.96^(t · discount))` (Dozat 2016; the rule of PyTorch's `NAdam`).

    With `b1` near 1 its look-ahead compensates for the delays of a pipeline (Ajanthan et al., "Nesterov Method for Asynchronous Pipeline Parallel
    Optimization", ICML 2025, who use `b1` = 0.99 with stashed weights). The step is
    `µ_{t+1} · m / (1 - Π_{i≤t+1} µ_i) + (1 - µ_t) · g / (1 - Π_{i≤t} µ_i)`, over `√v̂ + eps`. It needs no staleness. Put
    `optax.scale(-learning_rate)` behind it, and before that `optax.add_decayed_weights`. Memory: that of Adam.

    Args:
      b1: The momentum coefficient to which µ grows.
      b2: The decay of the mean of squares.
      eps: Added to the root.
      discount: ψ, how fast µ grows; 0 keeps it at half of `b1`.

    Returns:
      An optax transform.

    Raises:
      SettingsError: If a coefficient is outside [0, 1), or the discount negative.
    """
    if not (0 <= b1 < 1 and 0 <= b2 < 1 and discount >= 0):
        got = f"{b1}, {b2}, {discount}"
        raise SettingsError(
            "scale_by_discounted_nadam",
            "`b1`, `b2` in [0, 1), `discount` >= 0",
            got,
            "Pass values in these ranges, or leave them out.",
        )

    def coefficient(step: jax.Array) -> jax.Array:
        return b1 * (1 - 0.5 * 0.96 ** (step * discount))

    def init(params: Tree) -> DiscountedNadamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return DiscountedNadamState(
            jnp.zeros((), jnp.int32),
            jnp.ones(()),
            zeros,
            jax.tree.map(jnp.zeros_like, params),
        )

    def update(
        grads: Tree, state: DiscountedNadamState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, DiscountedNadamState]:
        del params, extra
        count = jnp.asarray(optax.safe_increment(state.count))
        now = coefficient(count)
        following = coefficient(count + 1)
        product = state.product * now
        mu = jax.tree.map(
            lambda m, g: b1 * m + (1 - b1) * g,
            state.mu,
            grads,
        )
        nu = jax.tree.map(
            lambda v, g: b2 * v + (1 - b2) * g * g,
            state.nu,
            grads,
        )

        def step(
            g: jax.Array,
            m: jax.Array,
            v: jax.Array,
        ) -> jax.Array:
            ahead = following * m / (1 - product * following) + (1 - now) * g / (1 - product)
            return (ahead / (jnp.sqrt(v / (1 - b2**count)) + eps)).astype(g.dtype)

        return jax.tree.map(step, grads, mu, nu), DiscountedNadamState(
            count,
            product,
            mu,
            nu,
        )

    return transform(init, update)
