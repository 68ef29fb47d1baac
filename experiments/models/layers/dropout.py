"""Dropout of a row's features, and of a batch's.

A batch's masks belong to its rows, not to their places, so parts of a batch drop what the whole batch drops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.models.layers.bernoulli import bernoulli


def dropout(
    key: Any,
    x: jax.Array,
    keep: float,
) -> jax.Array:
    """Inverted dropout (Srivastava et al. 2014, section 10).

    Args:
      key: A PRNG key; without one, as in inference, nothing happens.
      x: Features, float, of any shape.
      keep: How likely a feature is kept, above 0; it is then divided by this. With 1 nothing happens.

    Returns:
      The features, some of them zero; of the same shape and dtype.
    """
    if key is None or keep == 1:
        return x
    return jnp.where(
        bernoulli(key, keep, x.shape),
        x / keep,
        0.0,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dropout:
    """Drops features of rows; nothing without keys, as in evaluation.

    Args:
      keys: `[n]`, a PRNG key for each row of the batch, or None.
      rate: How likely a feature is dropped; the others are divided by `1 - rate`.
    """

    keys: jax.Array | None
    rate: float = field(metadata={"static": True})

    def __call__(self, x: jax.Array, site: Any) -> jax.Array:
        """`x` with features dropped.

        Args:
          x: `[n, ...]`, float.
          site: An integer that no other use in the same step has.
        """
        if self.keys is None:
            return x
        return jax.vmap(
            lambda key, row: dropout(
                jax.random.fold_in(key, site),
                row,
                1 - self.rate,
            )
        )(self.keys, x)

    def at(self, step: Any) -> Dropout:
        """Gives the dropout of another step of a loop, which draws numbers of its own.

        Args:
          step: The step's number.

        Returns:
          The dropout of that step.
        """
        if self.keys is None:
            return self
        return replace(
            self,
            keys=jax.vmap(lambda key: jax.random.fold_in(key, step))(self.keys),
        )


def from_batch(batch: Any, rate: float) -> Dropout:
    """Makes the dropout that a batch asks for: none, unless it has a leaf `dropout_seed`.

    Args:
      batch: The batch; its leaf `dropout_seed` `[n]` holds integers that differ from row to row.
      rate: How likely a feature is dropped.

    Returns:
      The dropout, with a key for each row.
    """
    if rate == 0 or "dropout_seed" not in batch:
        return Dropout(None, 0.0)
    return Dropout(
        jax.vmap(jax.random.key)(batch["dropout_seed"]),
        rate,
    )
