"""Checks of the arguments of remedies besides gradients, staleness and parameters, with an error that names who passes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import SettingsError


def staleness_of(remedy: str, staleness: Any) -> jax.Array:
    """Gives the staleness of a gradient as a float32 scalar.

    Args:
      remedy: Who asks.
      staleness: The extra argument, or None if there was none.

    Raises:
      SettingsError: If there was none.
    """
    if staleness is None:
        fix = "Nodes of a graph pass it, `get_runner(sync=False)` and `ampjax.optim.delayed`. A `Table` of your own, and so `TableEmbed`, does not: leave the remedy out there. Else pass it to `tx.update`."
        raise SettingsError(f"`{remedy}`, update", "the extra argument `staleness`", "none", fix)
    return jnp.asarray(staleness, jnp.float32)


def require_params(remedy: str, params: Any) -> None:
    """Checks that a remedy is given the parameters.

    Args:
      remedy: Who asks.
      params: The parameters, or None if there were none.

    Raises:
      SettingsError: If there were none.
    """
    if params is None:
        raise SettingsError(
            f"`{remedy}`, update", "the parameters", "None", "Pass them to `tx.update`."
        )
