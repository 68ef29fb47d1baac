"""The moving average of parameters as an optax transform (Polyak and Juditsky 1992, with exponential weights)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError


class AverageState(NamedTuple):
    """Args: average: The parameters' moving average, a tree like theirs."""

    average: Any


def parameter_average(decay: float) -> optax.GradientTransformation:
    """Keeps a moving average of the updated parameters, `average ← average + (1 - decay) · (params - average)`; changes no update.

    Put it last in an `optax.chain`, and inside of `optax.masked` if only some parameters are averaged. The average starts at the initial
    parameters.

    Args:
      decay: At least 0 and below 1.

    Returns:
      The transform, whose state holds the average.

    Raises:
      SettingsError: If `decay` is outside of that.

    >>> tx = optax.chain(optax.sgd(1.0), parameter_average(0.75))
    >>> params = {"w": jax.numpy.array(4.0)}
    >>> updates, state = tx.update({"w": jax.numpy.array(4.0)}, tx.init(params), params)
    >>> float(averaged(params, state)["w"])
    3.0
    """
    if not 0 <= decay < 1:
        raise SettingsError(
            "parameter_average, `decay`", "a number in [0, 1)", f"{decay}", "Give 0.999, for one."
        )

    def update(
        updates: Any,
        state: AverageState,
        params: Any = None,
    ) -> tuple[Any, AverageState]:
        if params is None:
            raise SettingsError(
                "parameter_average",
                "parameters beside the gradients",
                "none",
                "Call `tx.update(grads, state, params)`.",
            )
        new = optax.apply_updates(params, updates)
        return updates, AverageState(jax.tree.map(closer, state.average, new))

    def closer(average: Any, param: Any) -> Any:
        # What a parameter equals already stays as it is, to the bit.
        return jnp.where(
            average == param,
            average,
            average + (1 - decay) * (param - average),
        )

    return optax.GradientTransformation(lambda params: AverageState(params), update)  # type: ignore[arg-type]


def averaged(params: Any, opt_state: Any) -> Any:
    """Replaces parameters by their averages.

    Args:
      params: The parameters.
      opt_state: The state of a chain that holds one `parameter_average`.

    Returns:
      A tree like `params`.

    Raises:
      KeyError: If the state holds none, or several.
    """
    averages = optax.tree_utils.tree_get(opt_state, "average", _MISSING)
    if averages is _MISSING:
        raise KeyError("the optimizer's state holds no `parameter_average`")
    return jax.tree.map(
        lambda p, a: p if isinstance(a, optax.MaskedNode) else a,
        params,
        averages,
    )


_MISSING = object()
