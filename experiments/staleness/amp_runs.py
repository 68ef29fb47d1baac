"""Runs in AMP: every node's own optimizer gets its gradients late, by `delayed` alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import Instances
from ampjax.optim import RandomDelay, trained_params
from ampjax.train.history import Epoch
from experiments.staleness.remedies import REMEDIES

LAST_EPOCHS = 3


@dataclass(frozen=True)
class AmpWork:
    """A model with its data.

    Args:
      graph: The model.
      params: From a seed to parameters by node.
      splits: From a seed to training and validation data.
      in_update: Instances of an update.
      settings: Others of a trainer, in which an update follows each round of instances.
    """

    graph: ag.Graph
    params: Callable[[int], Mapping[str, Any]]
    splits: Callable[[int], tuple[Instances, Instances]]
    in_update: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


def grid(
    work: AmpWork,
    remedy: str,
    delay: int | RandomDelay,
    *,
    rates: Any,
    seeds: Any,
    steps: int,
) -> np.ndarray:
    """The losses at the ends of runs, for all learning rates and seeds, one after the other.

    The learning rate is a number in the optimizer's state, so all runs share their kernels.

    Args:
      work: What is trained.
      remedy: By its name.
      delay: In a node's updates.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters, data and their order.
      steps: Updates of a node at least; epochs are whole.

    Returns:
      The mean validation loss after the last three epochs, of the parameters that are trained, `[rates, seeds]`; inf where it diverged.
    """
    made = REMEDIES[remedy]
    tx = optax.inject_hyperparams(lambda rate: made.delayed(rate * made.scale, delay, steps))(
        rate=0.0
    )
    return np.array([[_run(work, tx, rate, seed, steps) for seed in seeds] for rate in rates])


def _run(
    work: AmpWork,
    tx: Any,
    rate: float,
    seed: int,
    steps: int,
) -> float:
    """The loss at the end of a run."""
    train, valid = work.splits(seed)
    trainer = amp.Trainer(
        work.graph,
        tx,
        params=work.params(seed),
        seed=seed,
        **work.settings,
    )
    states = trainer.session.executor.store.opt_state
    for state in states.values():
        if hasattr(state, "hyperparams"):  # nodes that are updated together have one state
            state.hyperparams["rate"] = jnp.float32(rate)
    updates = -(-len(train) // work.in_update)
    epochs = -(-steps // updates)
    losses = []

    def judge(trainer: amp.Trainer, epoch: Epoch) -> None:
        if epoch.epoch > epochs - LAST_EPOCHS:
            losses.append(_loss(trainer, valid))

    with warnings.catch_warnings(
        category=RuntimeWarning, action="ignore"
    ):  # of losses that are not finite
        trainer.fit(
            train,
            epochs=epochs,
            callbacks=[judge],
            progress=False,
        )
    if not losses:  # training ended early, with parameters that are not finite
        return np.inf
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
