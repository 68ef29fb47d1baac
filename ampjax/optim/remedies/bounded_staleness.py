"""Gradients that are too stale are left out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments
from ampjax.optim.remedies.extra_arguments import staleness_of


def bounded_staleness(
    tx: optax.GradientTransformation, most: float
) -> optax.GradientTransformationExtraArgs:
    """Ignores gradients whose staleness is above a bound: neither parameters nor the transform's state change.

    An update of a node has one staleness, the mean over its gradient rows, so it is made as a whole or not at all.
    Stale synchronous parallel training (Ho et al. 2013) makes fast workers wait instead; `Trainer(max_staleness=...)` bounds staleness without
    ignoring gradients, and `Trainer(drop_staler_than=...)` drops each gradient row that is too stale before it is accumulated. Memory: none.

    Args:
      tx: The transform for gradients that are fresh enough.
      most: The largest staleness that is used.

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument.

    Raises:
      SettingsError: If the bound is negative.
    """
    if not most >= 0:
        raise SettingsError(
            "bounded_staleness, `most`", "at least 0", f"{most}", "0 uses fresh gradients only."
        )
    inner_tx = with_extra_arguments(tx)

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        is_fresh = staleness_of("bounded_staleness", staleness) <= most
        steps, new = inner_tx.update(
            updates,
            state,
            params,
            staleness=staleness,
            **extra,
        )
        steps = jax.tree.map(
            lambda u: jnp.where(is_fresh, u, jnp.zeros_like(u)),
            steps,
        )
        return steps, jax.tree.map(
            lambda a, b: jnp.where(is_fresh, a, b),
            new,
            state,
        )

    return transform(inner_tx.init, update)
