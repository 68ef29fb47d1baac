"""Discrepancy correction: an estimate of the parameters that a forward pass saw, from their movement since."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments
from ampjax.optim.remedies.extra_arguments import staleness_of

Tree = Any


class VelocityState(NamedTuple):
    """The state of `track_velocity`.

    Attributes:
      velocity: The running mean of updates, like the parameters: δ of PipeMare.
      inner: The state of the transform.
    """

    velocity: Tree
    inner: Any


def track_velocity(
    tx: optax.GradientTransformation, decay: float
) -> optax.GradientTransformationExtraArgs:
    """A transform that also keeps a running mean of its updates; the updates have the same bits as without the mean.

    PipeMare's T2 (Yang et al. 2021, arXiv 1910.05124): `δ ← γ·δ + (1 - γ)·(w[t+1] - w[t])` with `γ = D ** (1 / staleness)`. There the
    staleness is that of a pipeline's stage, `τ_fwd - τ_bkwd`, and always the same; here it is the mean one of the gradients in an update. If
    it is 0, γ is 0, too: the limit. The updates that other transforms have scaled already count as they are, so wrap it around all of them.

    Memory: a copy of the parameters.

    Args:
      tx: The transform, learning rate included.
      decay: D, in [0, 1): what is left of a change's weight in the mean after as many updates as gradients are late.

    Returns:
      A transform whose `update` takes `staleness`.
    """
    inner_tx = with_extra_arguments(tx)

    def init(params: Tree) -> VelocityState:
        return VelocityState(
            jax.tree.map(jnp.zeros_like, params),
            inner_tx.init(params),
        )

    def update(
        grads: Tree,
        state: VelocityState,
        params: Tree = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> tuple[Tree, VelocityState]:
        late = staleness_of("track_velocity", staleness)
        updates, inner = inner_tx.update(
            grads,
            state.inner,
            params,
            staleness=staleness,
            **extra,
        )
        kept = jnp.where(
            late > 0,
            decay ** (1 / jnp.where(late > 0, late, 1)),
            0,
        )

        def mean(v, u):
            return (kept * v + (1 - kept) * u).astype(v.dtype)

        return updates, VelocityState(jax.tree.map(mean, state.velocity, updates), inner)

    return transform(init, update)


def params_before(params: Tree, velocity: Tree, versions: Any) -> Tree:
    """Estimates the parameters of some versions ago: `w - versions · δ` (PipeMare's T2).

    Args:
      params: The parameters. Leaves without a velocity stay as they are.
      velocity: What `track_velocity` keeps.
      versions: How many updates ago, a float scalar.
    """

    def before(p, v):
        if v is None:
            return p
        return (p - versions * v).astype(p.dtype)

    return jax.tree.map(
        before,
        params,
        velocity,
        is_leaf=lambda leaf: leaf is None,
    )
