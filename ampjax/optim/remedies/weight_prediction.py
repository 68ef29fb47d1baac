"""Weight prediction: messages see a forecast of the parameters at the time of their update."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments
from ampjax.optim.remedies.extra_arguments import require_params, staleness_of

Tree = Any


class PredictionState(NamedTuple):
    """The state of `predict_weights`.

    Attributes:
      params: The parameters that are trained.
      inner: The state of the transform.
    """

    params: Tree
    inner: Any


def predict_weights(
    tx: optax.GradientTransformation, scale: float = 1.0
) -> optax.GradientTransformationExtraArgs:
    """Predicts weights: models run at `w + scale · staleness · Δw`, where `Δw` is the last update, and gradients are applied to `w`.

    So a gradient that comes `staleness` updates late was computed near the place where the parameters are by then. With momentum SGD as the
    transform, this is SpecTrain, `w - s·lr·v` (Chen et al. 2018, arXiv 1809.02839), and linear weight prediction (Kosson et al. 2020, arXiv
    2003.11666). With Adam, it is PipeOptim, `w - s·lr·m̂ / (√v̂ + eps)` (Guan et al. 2023, arXiv 2312.00839). XPipe (Guan et al. 2019, arXiv
    1911.04610), as fairscale implements it, predicts in the same direction, but divides the moments by `1 - β` instead of `1 - βᵗ`: with `β` of 0.9
    and 0.999 that is 0.32 times as far, after the first steps.

    Models and the caller see the predicted parameters. The trained ones are in the state; `trained_params` gives them, for evaluation. Before
    the first update, when staleness is not known, both are the same.

    Memory: a copy of the parameters.

    Args:
      tx: The transform, learning rate included.
      scale: How far ahead to predict, as a multiple of the staleness; 0 is `tx` itself.

    Returns:
      A transform whose `update` takes `staleness`, a float scalar, as an extra argument.

    Raises:
      SettingsError: If the scale is negative.
    """
    if not scale >= 0:
        raise SettingsError(
            "predict_weights, `scale`",
            "at least 0",
            f"{scale}",
            "1 predicts as far as gradients are late.",
        )
    inner_tx = with_extra_arguments(tx)

    def init(params: Tree) -> PredictionState:
        return PredictionState(
            jax.tree.map(jnp.array, params),
            inner_tx.init(params),
        )

    def update(
        grads: Tree,
        state: PredictionState,
        params: Tree = None,
        *,
        staleness: Any = None,
        **extra: Any,
    ) -> Any:
        require_params("predict_weights", params)
        ahead = scale * staleness_of("predict_weights", staleness)
        step, inner = inner_tx.update(
            grads,
            state.inner,
            state.params,
            staleness=staleness,
            **extra,
        )
        trained = optax.apply_updates(state.params, step)
        predicted_params = jax.tree.map(
            lambda w, d, seen: (w - seen + ahead * d).astype(seen.dtype),
            trained,
            step,
            params,
        )
        return predicted_params, PredictionState(trained, inner)

    return transform(init, update)


def trained_params(state: Any, params: Tree) -> Tree:
    """The parameters that `predict_weights` trains, for evaluation.

    Args:
      state: An optimizer state that holds that of `predict_weights`.
      params: The parameters that models run at; they are returned if the state has none.

    Returns:
      A tree like `params`.
    """
    result = params
    for part in jax.tree.leaves(state, is_leaf=_is_prediction):
        if _is_prediction(part):
            result = jax.tree.map(
                lambda trained, own: own if _is_masked(trained) else trained,
                part.params,
                result,
                is_leaf=_is_masked,
            )
    return result


def _is_prediction(part: Any) -> bool:
    return isinstance(part, PredictionState)


def _is_masked(part: Any) -> bool:
    """Whether parameters belong to another transform: of `optax.partition` or `optax.masked`."""
    return isinstance(part, optax.MaskedNode)
