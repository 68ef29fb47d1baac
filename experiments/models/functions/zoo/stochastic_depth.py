"""A residual network with stochastic depth (Huang et al. 2016): in training a layer that is skipped does not run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.models.functions.zoo.small_cells import init_linears, scored
from experiments.models.layers.linear import linear

SPEC = {"x": "float32[2]", "label": "int32[]"}
"""What an instance looks like."""


def init(
    key: jax.Array,
    hidden: int = 32,
    layers: int = 4,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features.
      layers: Residual layers.
    """
    names = [f"layer{number}" for number in range(1, layers + 1)]
    return init_linears(
        key,
        enter=(2, hidden),
        **dict.fromkeys(names, (hidden, hidden)),
        classify=(hidden, 2),
    )


def stochastic_depth(
    p: Any,
    s: Any,
    last: float = 0.7,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Layers are kept with a probability that falls linearly to `last`; outside of training all run, scaled by it (equations 4 and 5).

    Args:
      p: The parameters.
      s: `x` `[2]` and `label` `[]`.
      last: The last layer's probability.

    Returns:
      The cross entropy; and the accuracy.
    """
    n_layers = sum(
        name.startswith("layer") for name in p
    )  # JAX sorts names, and so puts `layer10` before `layer2`
    h = jnp.tanh(4 * linear(p["enter"], s["x"]))
    for number in range(1, n_layers + 1):
        rate = 1 - number / n_layers * (1 - last)

        def draw(key, _, rate=rate):
            return (jax.random.bernoulli(key, rate), jnp.float32(1))

        runs, scale = amp.stochastic(
            draw,
            lambda _, rate=rate: (jnp.array(True), jnp.float32(rate)),
            h,
        )

        def layer(h, scale, name=f"layer{number}"):
            return h + scale * jnp.tanh(linear(p[name], h))

        h = amp.cond(
            amp.read(runs, assume=1),
            layer,
            lambda h, _: h,
            h,
            scale,
        )
    return scored(linear(p["classify"], h), s["label"])
