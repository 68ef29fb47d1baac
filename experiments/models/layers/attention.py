"""Normed additive attention (Bahdanau et al. 2015; its norm is Salimans and Kingma's)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from experiments.models.layers.lstm import Initializer

_MASKED = -1e9  # finite, so that a row without any words gives equal weights and no NaN


class Memory(NamedTuple):
    """What is attended to: the encoder's outputs.

    Args:
      keys: `[n, words, units]`.
      values: `[n, words, features]`.
      present: `[n, words]`, False behind a sentence's end.
    """

    keys: Float[Array, "n words units"]
    values: Float[Array, "n words features"]
    present: Bool[Array, "n words"]


class Attention(nnx.Module):
    """Weights `softmax(g v/|v| · tanh(key + W query + b))` of the values.

    Args:
      features: Of a value.
      units: Of a query and of a key.
      initializer: Of the matrices and `v`.
      rngs: Where keys come from.
    """

    def __init__(
        self,
        features: int,
        units: int,
        *,
        initializer: Initializer,
        rngs: nnx.Rngs,
    ):
        self.memory = nnx.Param(initializer(rngs.params(), (features, units), jnp.float32))
        self.query = nnx.Param(initializer(rngs.params(), (units, units), jnp.float32))
        self.v = nnx.Param(initializer(rngs.params(), (units,), jnp.float32))
        self.g = nnx.Param(jnp.array(units**-0.5, jnp.float32))
        self.b = nnx.Param(jnp.zeros(units))

    def remember(self, values: jax.Array, present: jax.Array) -> Memory:
        """Makes the memory of some values, once for all steps.

        Args:
          values: `[n, words, features]`.
          present: `[n, words]`, False behind a sentence's end.
        """
        return Memory(self.keys(values), values, present)

    def keys(
        self,
        values: Float[Array, "*n features"],
    ) -> Float[Array, "*n units"]:
        """Computes the values' keys.

        Args:
          values: `[..., features]`.

        Returns:
          `[..., units]`.
        """
        return values @ self.memory[...]

    def ask(
        self,
        query: Float[Array, "*n units"],
    ) -> Float[Array, "*n units"]:
        """Computes what a query adds to each key.

        Args:
          query: `[..., units]`.

        Returns:
          `[..., units]`.
        """
        return query @ self.query[...]

    def energies(
        self, keys: Float[Array, "*n units"], asked: Float[Array, "*n units"]
    ) -> Float[Array, "*n"]:
        """Computes how well keys fit what is asked: the logits of the weights.

        Args:
          keys: `[..., units]`.
          asked: What `ask` gave, `[..., units]`.

        Returns:
          `[...]`.
        """
        v = self.g[...] * self.v[...] * jax.lax.rsqrt(jnp.square(self.v[...]).sum())
        return jnp.tanh(keys + asked + self.b[...]) @ v

    def __call__(
        self, query: Float[Array, "n units"], memory: Memory
    ) -> Float[Array, "n features"]:
        """Computes the context: the weighted sum of the values.

        Args:
          query: `[n, units]`.
          memory: What is attended to.

        Returns:
          `[n, features]`.
        """
        energies = self.energies(
            memory.keys,
            self.ask(query)[:, None],
        )
        weights = jax.nn.softmax(
            jnp.where(memory.present, energies, _MASKED),
            axis=-1,
        )
        return jnp.einsum("nw,nwf->nf", weights, memory.values)
