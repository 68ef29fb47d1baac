"""Weight prediction: messages see the parameters that they are expected to be updated at."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.remedies.what_is_told import require_params, staleness_of
from ampjax.optim.transform import transform

Tree = Any


class PredictionState(NamedTuple):
    """What `predict_weights` keeps.

    Attributes:
      params: The parameters that are trained.
      inner: The state of the transform.
    """

    params: Tree
    inner: Any


def predict_weights(tx: optax.GradientTransformation, scale: float = 1.0) -> optax.GradientTransformationExtraArgs:
    """Lets models run at `w + scale · staleness · Δw`, with the last update `Δw`; the gradients are applied to `w`.

    So a gradient that comes `staleness` updates late was computed about where the parameters are by then. With momentum SGD as the transform
    it is SpecTrain, `w - s·lr·v` (Chen et al. 2018, arXiv 1809.02839), and linear weight prediction (Kosson et al. 2020, arXiv 2003.11666); with
    Adam PipeOptim, `w - s·lr·m̂ / (√v̂ + eps)` (Guan et al. 2023, arXiv 2312.00839), whose moments are corrected for their bias as the last update's are. XPipe (Guan
    et al. 2019, arXiv 1911.04610), as fairscale has it, predicts in the same direction, but corrects by `1 - β` in place of `1 - βᵗ`: with `β`
    of 0.9 and 0.999 that is 0.32 times as far, once the moments have filled.

    The parameters that models and the caller see are the predicted ones; those that are trained lie in the state: `trained_params` gives
    them, for evaluation. Until staleness is known, before the first update, both are the same.

    Memory: a copy of the parameters.

    Args:
      tx: The transform, learning rate included.
      scale: How far ahead, as a part of the staleness; 0 is `tx` itself.

    Raises:
      SettingsError: If the scale is negative.
    """
    if not scale >= 0:
        raise SettingsError(
            "predict_weights, `scale`", "at least 0", f"{scale}", "1 predicts as far as gradients are late."
        )
    own = optax.with_extra_args_support(tx)

    def init(params: Tree) -> PredictionState:
        return PredictionState(jax.tree.map(jnp.array, params), own.init(params))

    def update(grads: Tree, state: PredictionState, params: Tree = None, *, staleness: Any = None, **extra: Any) -> Any:
        require_params("predict_weights", params)
        ahead = scale * staleness_of("predict_weights", staleness)
        step, inner = own.update(grads, state.inner, state.params, staleness=staleness, **extra)
        trained = optax.apply_updates(state.params, step)
        made = jax.tree.map(lambda w, d, seen: (w - seen + ahead * d).astype(seen.dtype), trained, step, params)
        return made, PredictionState(trained, inner)

    return transform(init, update)


def trained_params(state: Any, params: Tree) -> Tree:
    """The parameters that `predict_weights` trains, for evaluation.

    Args:
      state: An optimizer state that holds that of `predict_weights`.
      params: The parameters that models run at, which are given back if it holds none.
    """
    is_own = lambda part: isinstance(part, PredictionState)
    own = [part for part in jax.tree.leaves(state, is_leaf=is_own) if is_own(part)]
    return own[0].params if own else params
