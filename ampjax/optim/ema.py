"""An exponential moving average of the parameters, as an optax transform."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from ampjax.errors import SettingsError

Tree = Any


class ParamsEmaState(NamedTuple):
    """The state of `params_ema`.

    Args:
      average: The averaged parameters, a tree like the parameters.
    """

    average: Tree


def params_ema(decay: float) -> optax.GradientTransformation:
    """Keeps `average <- decay * average + (1 - decay) * new parameters`, and leaves the updates as they are.

    Put it last in an `optax.chain`: it adds the updates that it sees to the parameters, as `optax.apply_updates` will. The
    average starts at the parameters. Some variables only: `optax.masked(params_ema(0.999), mask)`.

    Args:
      decay: In [0, 1).

    Raises:
      SettingsError: If the decay is outside.

    >>> tx = optax.chain(optax.sgd(1.0), params_ema(0.75))
    >>> _, state = tx.update({"w": jax.numpy.array(4.0)}, tx.init({"w": jax.numpy.array(0.0)}), {"w": jax.numpy.array(0.0)})
    >>> float(state[1].average["w"])
    -1.0
    """
    if not 0 <= decay < 1:
        raise SettingsError("decay", "a number in [0, 1)", f"{decay}", "0.999 is usual.")

    def update(updates: Tree, state: Any, params: Tree = None, **extra: Any) -> tuple[Tree, ParamsEmaState]:
        del extra
        if params is None:
            raise SettingsError(
                "params_ema", "the parameters as the third argument of `update`", "None", "Pass `params`."
            )
        new = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda a, p: (decay * a + (1 - decay) * p).astype(a.dtype), state.average, new)
        return updates, ParamsEmaState(average)

    return optax.GradientTransformation(lambda params: ParamsEmaState(params), update)  # type: ignore[arg-type] # optax types the plain update
