"""Delay compensation: a first-order guess at a stale gradient's value at the present parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.remedies.extra_arguments import require_params, staleness_of

Tree = Any


class CompensationState(NamedTuple):
    """The state of `compensate_delay`.

    Attributes:
      step: Updates so far.
      history: The parameters before each of the last `most + 1` updates, along a leading axis.
      mean_square: The moving mean of squared gradients; None where the scale is constant.
    """

    step: jax.Array
    history: Tree
    mean_square: Tree


def compensate_delay(
    scale: float = 1.0,
    most: int = 16,
    adaptive: bool = False,
    decay: float = 0.95,
) -> optax.GradientTransformationExtraArgs:
    """Adds `scale · g² · (w - w_stale)` to each gradient `g`: DC-ASGD (Zheng et al. 2017, arXiv 1609.08326, equation 10).

    The square of the gradient approximates the diagonal of the Hessian. So the sum is a Taylor expansion of the gradient at the current
    parameters `w` around the parameters that it was computed with. Put it first in an `optax.chain`. The transform keeps the parameters of the
    last updates and takes those of `staleness` updates ago (rounded), so its caller need not pass them.

    Memory: `most + 1` copies of the parameters, and one more if it is adaptive.

    Args:
      scale: λ of the paper. The default of MXNet's `DCASGD`, which is not adaptive, is 0.04.
      most: The largest staleness; older gradients are compensated as if they had this one.
      adaptive: Divides the scale by `√(mean + 1e-7)`, where `mean` is a moving mean of squared gradients that holds this gradient's square
        already: DC-ASGD-a. The authors' code (Multiverso) has such a mean for each worker; here it is one for each parameter.
      decay: The decay of that mean.

    Returns:
      A transform whose `update` needs `staleness`, a float scalar, as an extra argument, and the parameters.

    Raises:
      SettingsError: If a setting is out of its range.

    >>> tx = compensate_delay(scale=1.0)
    >>> old, now = jnp.array(0.0), jnp.array(2.0)
    >>> _, state = tx.update(jnp.array(1.0), tx.init(old), old, staleness=0)
    >>> gradient, _ = tx.update(jnp.array(3.0), state, now, staleness=1)
    >>> float(gradient)  # 3 + 3² · (2 - 0)
    21.0
    """
    if scale < 0 or most < 0 or not 0 <= decay < 1:
        expected = "`scale` and `most` of at least 0, `decay` in [0, 1)"
        raise SettingsError(
            "compensate_delay",
            expected,
            f"{scale}, {most}, {decay}",
            "Pass values in these ranges, or leave them out.",
        )

    def init(params: Tree) -> CompensationState:
        history = jax.tree.map(
            lambda p: jnp.broadcast_to(p, (most + 1, *jnp.shape(p))) + jnp.zeros_like(p),
            params,
        )
        if adaptive:
            mean_square = jax.tree.map(jnp.zeros_like, params)
        else:
            mean_square = None
        return CompensationState(jnp.zeros((), jnp.int32), history, mean_square)

    def update(
        grads: Tree,
        state: CompensationState,
        params: Tree = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> Any:
        require_params("compensate_delay", params)
        put = state.step % (most + 1)
        history = jax.tree.map(
            lambda kept, p: kept.at[put].set(p),
            state.history,
            params,
        )
        age = jnp.round(
            jnp.clip(
                staleness_of("compensate_delay", staleness),
                0,
                most,
            )
        ).astype(jnp.int32)
        stale = jax.tree.map(
            lambda stored: stored[(state.step - age) % (most + 1)],
            history,
        )
        if adaptive:
            mean_square, by = _adaptive_scales(grads, state.mean_square, scale, decay)
        else:
            mean_square = None
            by = jax.tree.map(lambda g: scale, grads)
        corrected = jax.tree.map(
            lambda g, b, p, s: (g + b * g * g * (p - s)).astype(g.dtype),
            grads,
            by,
            params,
            stale,
        )
        return corrected, CompensationState(state.step + 1, history, mean_square)

    return transform(init, update)


def _adaptive_scales(
    grads: Tree,
    mean_square: Tree,
    scale: float,
    decay: float,
) -> tuple[Tree, Tree]:
    """Returns the moving mean of the gradients' squares, and the scales divided by its root."""
    mean_square = jax.tree.map(
        lambda m, g: decay * m + (1 - decay) * g * g,
        mean_square,
        grads,
    )
    by = jax.tree.map(
        lambda m: scale / jnp.sqrt(m + 1e-7),
        mean_square,
    )
    return mean_square, by
