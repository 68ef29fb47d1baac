"""A few layers as pure pairs: `init(key) -> params` and `layer(params, x) -> y`, on one message's payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import SettingsError


@dataclass(frozen=True)
class Linear:
    """`y = x @ w + b` on the last axis: `[..., n_in] -> [..., n_out]`.

    Args:
      n_in: Features in.
      n_out: Features out.
      bias: False leaves `b` out.
      init_scale: `he` (normal, variance 2/n_in), `lecun` (normal, variance 1/n_in), `glorot` (uniform), or `torch`
        (uniform within 1/sqrt(n_in), the bias too). Biases start at zero otherwise.
    """

    n_in: int
    n_out: int
    bias: bool = True
    init_scale: str = "lecun"

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """Makes initial parameters.

        Args:
          key: A PRNG key.

        Returns:
          `w [n_in, n_out]` and `b [n_out]`, float32.

        Raises:
          SettingsError: If `init_scale` is none of the four.
        """
        shape, bound = (self.n_in, self.n_out), self.n_in**-0.5
        key_w, key_b = jax.random.split(key)
        b = jnp.zeros(self.n_out, jnp.float32)
        if self.init_scale == "torch":
            w = jax.random.uniform(key_w, shape, jnp.float32, -bound, bound)
            b = jax.random.uniform(key_b, (self.n_out,), jnp.float32, -bound, bound)
        else:
            inits = jax.nn.initializers
            choices = {"he": inits.he_normal, "lecun": inits.lecun_normal, "glorot": inits.glorot_uniform}
            if self.init_scale not in choices:
                names = f"one of {[*choices, 'torch']}"
                raise SettingsError("Linear, `init_scale`", names, f"{self.init_scale!r}", "Choose one of these.")
            w = choices[self.init_scale]()(key_w, shape, jnp.float32)
        return {"w": w, "b": b} if self.bias else {"w": w}

    def __call__(self, params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        """Applies the layer.

        Args:
          params: As `init` gives them.
          x: `[..., n_in]`.

        Returns:
          `[..., n_out]`.
        """
        y = x @ params["w"]
        return y + params["b"] if self.bias else y


@dataclass(frozen=True)
class Embed:
    """A table of vectors: integer ids `[...] -> [..., features]`. Ids outside the table are clamped, as JAX's gathers do.

    Args:
      n_rows: Rows of the table.
      features: Length of a vector.
      scale: Standard deviation of the initial normal values.
    """

    n_rows: int
    features: int
    scale: float = 1.0

    def init(self, key: jax.Array) -> jax.Array:
        """Makes the initial table.

        Args:
          key: A PRNG key.

        Returns:
          `[n_rows, features]`, float32.
        """
        return self.scale * jax.random.normal(key, (self.n_rows, self.features), jnp.float32)

    def __call__(self, params: jax.Array, ids: Any) -> jax.Array:
        """Looks vectors up.

        Args:
          params: The table.
          ids: Integers `[...]`.

        Returns:
          `[..., features]`.
        """
        return params.at[ids].get(mode="clip")
