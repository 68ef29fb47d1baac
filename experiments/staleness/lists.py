"""List reduction in AMP: every node's own optimizer gets its gradients late."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
from ampjax.ir.instances import Instances
from ampjax.optim import RandomDelay, trained_params
from ampjax.train.history import Epoch
from experiments.data.list_reduction import Buckets, splits
from experiments.models.rnn import init, list_reduction_rnn
from experiments.staleness.remedies import REMEDIES

HIDDEN = 32
BATCH = 50
N_TRAIN = 5000
N_VALID = 500
LAST_EPOCHS = 3


def grid(
    remedy: str,
    delay: int | RandomDelay,
    *,
    rates: Any,
    seeds: Any,
    steps: int,
) -> np.ndarray:
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
      The mean validation loss after the last three epochs, of the parameters that are trained, `[rates, seeds]`; inf where it diverged.
    """
    made = REMEDIES[remedy]
    tx = optax.inject_hyperparams(lambda rate: made.delayed(rate * made.scale, delay, steps))(
        rate=0.0
    )
    return np.array([[_run(tx, rate, seed, steps) for seed in seeds] for rate in rates])


def _run(
    tx: Any,
    rate: float,
    seed: int,
    steps: int,
) -> float:
    """What a run comes to."""
    train, valid = _data(seed)
    params = init(jax.random.key(seed), HIDDEN)
    trainer = amp.Trainer(
        _model().graph,
        tx,
        params=params,
        mode="sync",
        seed=seed,
    )
    states = trainer.session.executor.store.opt_state
    for state in states.values():
        state.hyperparams["rate"] = jnp.float32(rate)
    epochs = -(-steps // len(train))
    losses = []

    def judge(trainer: amp.Trainer, epoch: Epoch) -> None:
        if epoch.epoch > epochs - LAST_EPOCHS:
            losses.append(_loss(trainer, valid))

    with warnings.catch_warnings(
        category=RuntimeWarning, action="ignore"
    ):  # of losses that are not finite
        trainer.fit(train, epochs=epochs, callbacks=[judge], progress=False)
    return float(np.mean(losses))


def _loss(trainer: amp.Trainer, valid: Instances) -> float:
    """The validation loss of the parameters that are trained."""
    states = trainer.session.executor.store.opt_state
    trained = {}
    for node, own in trainer.params.items():
        trained[node] = trained_params(states[node], own)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained)):
        return np.inf
    loss = trainer.evaluate(valid, params=trained)["loss"]
    return loss if np.isfinite(loss) else np.inf


@functools.cache
def _model() -> amp.Compiled:
    return list_reduction_rnn(HIDDEN, BATCH)


@functools.cache
def _data(seed: int) -> list[Instances]:
    """Training and validation buckets."""
    result = []
    for part in splits(N_TRAIN, N_VALID, seed):
        result.append(_model().data(Buckets(part, BATCH)))
    return result
