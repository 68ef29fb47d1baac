"""Operations in an order that differs from instance to instance, by hand: the state holds the order as one number; with its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Messages
from ampjax.ir.wires import Wire
from experiments.data.permutation import N_DIGITS, N_PLACES, Shuffles
from experiments.models.layers.losses import labelled_cross_entropy
from experiments.models.permutation import embed, init

MOST = 12
"""The largest number of operations K: `way` is a number of K digits in base K, and must fit in 64 bits."""


def permutation(
    n_operations: int = 8,
    hidden: int = 128,
    replicas: int = 1,
    copies: int = 1,
) -> Graph:
    """Makes a network in which a state passes each operation `h <- relu(h W_k + b_k)` once, in its own order, and is classified.

    The state field `way` holds the order as a number in base K, and `t` the step: the Cond before the operations reads the digit number `t`
    of `way`, an Isu counts `t` up. The pumps are those of `ShuffledRows`.

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
        h = ag.phi("h")
        results = []
        for k, wire in enumerate(ag.cond(h, next_operation, n_operations)):
            operation = ag.ppt(
                f"operation{k}",
                amp.nn.Linear(hidden, hidden, init_scale="he"),
            )
            results.append(ag.npt(f"relu{k}", jax.nn.relu)(ag.replicate(operation, replicas)(wire)))
        done = ag.isu(
            ag.phi("done", *results),
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, last = ag.cond(done, lambda s: s.t < n_operations)
        h.connect(
            ag.ppt("embed", embed, params=lambda key: init(key, 1, hidden)["embed"])(digits),
            more,
        )
        logits = ag.ppt("output", amp.nn.Linear(hidden, N_DIGITS))(last)
        ag.loss("xent", labelled_cross_entropy, join=("instance",))(logits, label)

    with ag.Graph() as graph:
        digits = ag.pump(
            "digits",
            (N_PLACES,),
            "int32",
            ("t", "way"),
        )
        label = ag.pump("label", (), "int32")
        ag.replicate(network, copies)(digits, label)
    return graph


@dataclass(frozen=True)
class ShuffledRows:
    """Instances of one row of digits each (`ampjax.ir.instances.Instances`).

    Pumps: `digits`, shape `(6,)` int32, with the state fields `t` = 0 and `way`: the order as a number in base K, its first operation the
    lowest digit; `label`, shape `()` int32, no fields.

    Args:
      data: Digits, orders and labels.
    """

    data: Shuffles

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the instances `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        ids = np.asarray(ids, np.int64)
        route = self.data.orders[ids] @ powers(self.data.n_operations)
        each = np.arange(len(ids))
        return {
            "digits": Messages(
                self.data.digits[ids],
                each,
                {"t": 0, "way": route},
            ),
            "label": Messages(self.data.labels[ids], each),
        }


def powers(n_operations: int) -> np.ndarray:
    """Computes the weights of the digits of a number in base K.

    Args:
      n_operations: K.

    Returns:
      `[K]`: 1, K, K², ...
    """
    return n_operations ** np.arange(n_operations, dtype=np.int64)
