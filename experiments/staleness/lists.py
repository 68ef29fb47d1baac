"""List reduction: one bucket of sequences is in flight, and every node updates after it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from ampjax.ir.instances import Instances
from ampjax.optim import RandomDelay
from experiments.data.list_reduction import Buckets, splits
from experiments.models.rnn import init, list_reduction_rnn
from experiments.staleness import amp_runs
from experiments.staleness.amp_runs import AmpWork

HIDDEN = 32
BATCH = 50
N_TRAIN = 5000
N_VALID = 500


def grid(
    remedy: str,
    delay: int | RandomDelay,
    **runs: Any,
) -> np.ndarray:
    """The losses at the ends of runs.

    Args:
      remedy: By its name.
      delay: In a node's updates.
      **runs: As `amp_runs.grid` takes them.

    Returns:
      The mean validation loss after the last three epochs, `[rates, seeds]`.
    """
    return amp_runs.grid(_work(), remedy, delay, **runs)


@functools.cache
def _work() -> AmpWork:
    compiled = list_reduction_rnn(HIDDEN, BATCH)

    @functools.cache
    def data(seed: int) -> tuple[Instances, Instances]:
        train, valid = splits(N_TRAIN, N_VALID, seed)
        return compiled.data(Buckets(train, BATCH)), compiled.data(Buckets(valid, BATCH))

    return AmpWork(
        compiled.graph,
        lambda seed: init(jax.random.key(seed), HIDDEN),
        data,
        settings={"mode": "sync"},
    )
