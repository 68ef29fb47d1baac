"""Remedies for stale gradients, as optax transforms. They know nothing of nodes: staleness comes in as an argument."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def scale_by_staleness() -> optax.GradientTransformationExtraArgs:
    """Divides updates by `1 + staleness`: old gradients take shorter steps.

    The idea of staleness-aware asynchronous SGD (Zhang et al. 2016, arXiv 1511.05950), whose learning rate is divided by the
    staleness; the one added keeps fresh gradients whole. Staleness is as in `ampjax`: updates that the node has made between
    a message's forward pass and its adjoint, averaged over the accumulated rows. Put it last in an `optax.chain`: transforms
    that normalise, Adam for one, undo a scaling that comes before them.

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument; a `TypeError` without it.

    >>> tx = optax.chain(optax.sgd(1.0), scale_by_staleness())
    >>> updates, _ = tx.update({"w": jnp.array(6.0)}, tx.init({"w": jnp.array(0.0)}), staleness=2.0)
    >>> float(updates["w"])
    -2.0
    """

    def update(updates: Any, state: Any, params: Any = None, *, staleness: Any, **extra: Any) -> tuple[Any, Any]:
        del params, extra
        return jax.tree.map(lambda u: (u / (1 + staleness)).astype(jnp.result_type(u)), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)  # type: ignore[arg-type] # optax types the plain update
