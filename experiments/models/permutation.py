"""Operations in an order that differs from instance to instance (AMPNet, ICLR version, section 7: a random permutation of operations).

At a given depth instances are at different operations, so batching by depth finds little to batch; but messages for one operation may come
from any depth, and go through it together.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.nn import Linear
from experiments.data.permutation import N_DIGITS, N_PLACES
from experiments.models.layers.linear import linear
from experiments.models.layers.losses import labelled_cross_entropy

SPEC = {"digits": f"int32[{N_PLACES}]", "order": "int32[t]", "label": "int32[]"}
"""What an instance looks like; `experiments.data.permutation.plain` gives such instances."""


def init(
    key: jax.Array,
    n_operations: int = 8,
    hidden: int = 128,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      n_operations: Operations, K.
      hidden: Features of the state.

    Returns:
      `embed` `[6, 10, H]`: a table for each place of a digit, normal, so that their sum has variance 1; `operation0`, `operation1`, ...
      and `output`: linear layers.

    Raises:
      SettingsError: If a size is below 1.
    """
    if min(n_operations, hidden) < 1:
        raise SettingsError(
            "permutation, sizes",
            "at least 1 operation and 1 feature",
            f"{n_operations} and {hidden}",
            "Change them.",
        )
    keys = jax.random.split(key, n_operations + 2)
    operation = Linear(hidden, hidden, init_scale="he")
    return {
        "embed": jax.random.normal(
            keys[0],
            (N_PLACES, N_DIGITS, hidden),
            jnp.float32,
        )
        * N_PLACES**-0.5,
        "output": Linear(hidden, N_DIGITS).init(keys[1]),
        **{f"operation{k}": operation.init(keys[2 + k]) for k in range(n_operations)},
    }


def permutation(
    p: Any,
    s: Any,
    replicas: int = 1,
) -> jax.Array:
    """A state goes through each operation `h <- relu(h W_k + b_k)` once, in its own order, and is classified.

    Args:
      p: The parameters.
      s: `digits` `[6]`, `order` `[t]`: the operations' numbers, and `label` `[]`.
      replicas: The number of copies of each operation, each for some instances.

    Returns:
      The cross entropy, in nats.
    """

    def operation(name: str) -> Any:
        return amp.node(name, replicas=replicas)(lambda h: jax.nn.relu(linear(p[name], h)))

    n_operations = sum(
        name.startswith("operation") for name in p
    )  # JAX sorts names: `operation10` before `operation2`
    choices = [operation(f"operation{k}") for k in range(n_operations)]
    h, _ = amp.scan(
        lambda h, k: (amp.switch(k, choices, h), None),
        embed(p["embed"], s["digits"]),
        s["order"],
    )
    loss, metrics = labelled_cross_entropy(
        linear(p["output"], h),
        s["label"],
    )
    amp.metric("accuracy", *metrics["accuracy"])
    return loss


def embed(tables: jax.Array, digits: jax.Array) -> jax.Array:
    """Adds up the vectors of digits.

    Args:
      tables: `[6, 10, H]`: a table for each place of a digit.
      digits: `[..., 6]` integers.

    Returns:
      `[..., H]`.
    """
    return tables[jnp.arange(N_PLACES), digits].sum(axis=-2)
