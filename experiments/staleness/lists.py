"""List reduction in AMP: every node's own optimizer gets its gradients late."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np

import ampjax as amp
from ampjax.data.list_reduction import Buckets, splits
from ampjax.models.rnn import list_reduction_rnn
from ampjax.optim import RandomDelay, trained_params
from experiments.staleness.remedies import REMEDIES

HIDDEN, BATCH, N_TRAIN, N_VALID = 32, 50, 1000, 500


def runs(remedy: str, delay: int | RandomDelay, steps: int) -> Callable[[float, int], float]:
    """A function from a learning rate and a seed to what a run comes to.

    One bucket of sequences is in flight and every node updates after it, so nothing is stale but what `delayed` makes so.

    Args:
      remedy: By its name.
      delay: In a node's updates.
      steps: Updates of a node at least; epochs are whole.

    Returns:
      The function: the validation loss at the end, of the parameters that are trained; infinity where they are not finite.
    """
    made = REMEDIES[remedy]

    def run(rate: float, seed: int) -> float:
        model = list_reduction_rnn(HIDDEN, BATCH, seed=seed)
        train, valid = (model.data(Buckets(data, BATCH)) for data in splits(N_TRAIN, N_VALID, seed))
        epochs = -(-steps // len(train))
        tx = made.delayed(rate * made.scale, delay, epochs * len(train))
        trainer = amp.Trainer(model.graph, tx, mode="sync", seed=seed)
        trainer.fit(train, epochs=epochs, progress=False)
        states = trainer.session.executor.store.opt_state
        params = {node: trained_params(states[node], own) for node, own in trainer.params.items()}
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
            return math.inf
        trainer.set_params(params)
        return trainer.evaluate(valid)["loss"]

    return run
