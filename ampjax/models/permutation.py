"""Operations in an order that differs from instance to instance (AMPNet, ICLR version, section 7: a random permutation of operations).

At a given depth instances are at different operations, so batching by depth finds little to batch; but messages for one operation may come
from any depth, and go through it together.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from ampjax.data.permutation import MOST, N_DIGITS, N_PLACES, powers
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.wires import Wire
from ampjax.models.layers.losses import labelled_cross_entropy


def permutation(n_operations: int = 8, hidden: int = 128, replicas: int = 1, copies: int = 1) -> Graph:
    """Makes a network in which a state passes each operation `h <- relu(h W_k + b_k)` once, in its own order, and is classified.

    The state field `way` holds the order as a number in base K, and `t` the step: the Cond before the operations reads the digit number `t`
    of `way`, an Isu counts `t` up. The pumps are those of `ampjax.data.permutation.ShuffledRows`.

    Args:
      n_operations: Operations, K.
      hidden: Features of the state.
      replicas: The number of copies of each operation, each for some instances.
      copies: The number of copies of the whole network, each for some instances and on a worker of its own.

    Returns:
      The graph, with the parameterised nodes `embed`, `operation0`, `operation1`, ... (or `operation0/0` ...) and `output`, and the loss
      `xent` with the metric `accuracy`.

    Raises:
      SettingsError: If a size is below 1, or there are more than 12 operations.
    """
    if not 1 <= n_operations <= MOST or min(hidden, replicas, copies) < 1:
        raise SettingsError(
            "permutation, sizes",
            f"1 to {MOST} operations, at least 1 feature, 1 replica and 1 copy",
            f"{n_operations}, {hidden}, {replicas} and {copies}",
            "Change them.",
        )
    places = powers(n_operations)

    def next_operation(s: Any) -> Any:
        return s.way // places[np.clip(s.t, 0, n_operations - 1)] % n_operations

    def network(digits: Wire, label: Wire) -> None:
        h = amp.phi("h")
        results = []
        for k, wire in enumerate(amp.cond(h, next_operation, n_operations)):
            operation = amp.ppt(f"operation{k}", amp.nn.Linear(hidden, hidden, init_scale="he"))
            results.append(amp.npt(f"relu{k}", jax.nn.relu)(amp.replicate(operation, replicas)(wire)))
        done = amp.isu(amp.phi("done", *results), lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))
        more, last = amp.cond(done, lambda s: s.t < n_operations)
        h.connect(amp.ppt("embed", embed, params=digit_tables(hidden))(digits), more)
        logits = amp.ppt("output", amp.nn.Linear(hidden, N_DIGITS))(last)
        amp.loss("xent", labelled_cross_entropy, join=("instance",))(logits, label)

    with amp.Graph() as graph:
        digits = amp.pump("digits", (N_PLACES,), "int32", ("t", "way"))
        label = amp.pump("label", (), "int32")
        amp.replicate(network, copies)(digits, label)
    return graph


def embed(tables: jax.Array, digits: jax.Array) -> jax.Array:
    """Adds up the vectors of digits.

    Args:
      tables: `[6, 10, H]`: a table for each place of a digit.
      digits: `[..., 6]` integers.

    Returns:
      `[..., H]`.
    """
    return tables[jnp.arange(N_PLACES), digits].sum(axis=-2)


def digit_tables(hidden: int) -> Any:
    """Makes the initialiser of the tables of `embed`: normal, so that their sum has variance 1.

    Args:
      hidden: Features of a vector.

    Returns:
      From a PRNG key to `[6, 10, hidden]`.
    """
    shape = (N_PLACES, N_DIGITS, hidden)
    return lambda key: jax.random.normal(key, shape, jnp.float32) * N_PLACES**-0.5
