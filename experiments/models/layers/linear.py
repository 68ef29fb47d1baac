"""A linear layer as a function of its parameters, for models that are functions of one instance."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def linear(p: Any, *inputs: jax.Array) -> jax.Array:
    """`x @ w + b`.

    Args:
      p: `w [n_in, n_out]` and `b [n_out]`, as `ampjax.nn.Linear.init` makes them.
      *inputs: `x [..., n_in]`; or its parts, which are put one after the other.

    Returns:
      `[..., n_out]`.
    """
    if len(inputs) == 1:
        x = inputs[0]
    else:
        x = jnp.concatenate(inputs, axis=-1)
    return x @ p["w"] + p["b"]
