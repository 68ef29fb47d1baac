"""A linear layer as a function of its parameters, for models that are functions of one instance."""

from __future__ import annotations

from typing import Any

import jax


def linear(p: Any, x: jax.Array) -> jax.Array:
    """`x @ w + b`.

    Args:
      p: `w [n_in, n_out]` and `b [n_out]`, as `ampjax.nn.Linear.init` makes them.
      x: `[..., n_in]`.

    Returns:
      `[..., n_out]`.
    """
    return x @ p["w"] + p["b"]
