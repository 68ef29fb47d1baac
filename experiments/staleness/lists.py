"""List reduction in AMP: every node's own optimizer gets its gradients late."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
from ampjax.data.list_reduction import Buckets, splits
from ampjax.ir.instances import Instances
from ampjax.models.rnn import init, list_reduction_rnn
from ampjax.optim import RandomDelay, trained_params
from experiments.staleness.remedies import REMEDIES

HIDDEN, BATCH, N_TRAIN, N_VALID = 32, 50, 5000, 500


def grid(remedy: str, delay: int | RandomDelay, *, rates: Any, seeds: Any, steps: int) -> np.ndarray:
    """What runs come to, for all learning rates and seeds, one after the other.

    One bucket of sequences is in flight and every node updates after it, so nothing is stale but what `delayed` makes so. The learning rate
    is a number in the optimizer's state, so all runs share their kernels.

    Args:
      remedy: By its name.
      delay: In a node's updates.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters, sequences and their order.
      steps: Updates of a node at least; epochs are whole.

    Returns:
      The validation loss at the end, of the parameters that are trained, `[rates, seeds]`; inf where it diverged.
    """
    made = REMEDIES[remedy]
    tx = optax.inject_hyperparams(lambda rate: made.delayed(rate * made.scale, delay, steps))(rate=0.0)
    return np.array([[_run(tx, rate, seed, steps) for seed in seeds] for rate in rates])


def _run(tx: Any, rate: float, seed: int, steps: int) -> float:
    """The validation loss that a run comes to."""
    train, valid = _data(seed)
    params = init(jax.random.key(seed), HIDDEN)
    trainer = amp.Trainer(_model().graph, tx, params=params, mode="sync", seed=seed)
    states = trainer.session.executor.store.opt_state
    for state in states.values():
        state.hyperparams["rate"] = jnp.float32(rate)
    trainer.fit(train, epochs=-(-steps // len(train)), progress=False)
    params = {node: trained_params(states[node], own) for node, own in trainer.params.items()}
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        return np.inf
    trainer.set_params(params)
    return trainer.evaluate(valid)["loss"]


@functools.cache
def _model() -> amp.Compiled:
    return list_reduction_rnn(HIDDEN, BATCH)


@functools.cache
def _data(seed: int) -> list[Instances]:
    """Training and validation buckets."""
    return [_model().data(Buckets(part, BATCH)) for part in splits(N_TRAIN, N_VALID, seed)]
