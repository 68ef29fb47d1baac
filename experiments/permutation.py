"""Operations in an order of each instance's own (AMPNet, ICLR version, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import optax

import ampjax as amp
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.data.permutation import Shuffles, generate, plain
from experiments.intervals import update_together
from experiments.models.permutation import SPEC, init, permutation


@dataclass(frozen=True, kw_only=True)
class PermutationOptions(Options):
    """Shuffles of digits, each done once in an order of the instance's own: which digit stands first in the end? Generated data.

    A gradient row is a message; each node waits for as many as `batch` instances bring on average, so all update equally often.
    Each operation more makes the task much harder, however it is trained: no operation's effect shows before the others are known in part.

    Args:
      n_train: Training instances.
      n_valid: Validation instances.
      operations: Operations, each done once.
      hidden: Features of the state.
      batch: Instances whose gradient rows make an update.
      learning_rate: Adam's.
      max_active_keys: The most instances in flight.
      replicas: Copies of each operation.
    """

    n_train: int = 100_000
    n_valid: int = 1000
    operations: int = 4
    hidden: int = 128
    batch: int = 100
    learning_rate: float = 1e-3
    max_active_keys: int = 512
    policy: str = "largest"
    max_dispatch_size: int = 512


def main(options: PermutationOptions) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    return run("permutation", options, tasks(options))


def tasks(options: PermutationOptions) -> Callable[[int], Task]:
    """A function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    require_positive(
        "The defaults are 1e-3 and 100.", learning_rate=options.learning_rate, batch=options.batch
    )
    sizes = options.operations, options.hidden

    def task(seed: int) -> Task:
        model = partial(permutation, replicas=options.replicas)
        params = init(jax.random.key(seed), *sizes)
        compiled = amp.compile(model, params, SPEC, copies=options.copies)
        train, valid = (compiled.data(plain(part)) for part in splits(options, seed))
        settings = update_together(
            compiled.graph,
            train,
            options.settings(seed, 1),
            options,
            options.batch,
            "output",
        )
        return Task(
            compiled.graph,
            train,
            valid,
            settings,
            optax.adam(options.learning_rate),
        )

    return task


def splits(options: PermutationOptions, seed: int) -> list[Shuffles]:
    """Training and validation instances, drawn from streams of their own.

    Args:
      options: The options.
      seed: Of the run.
    """
    streams = np.random.SeedSequence(seed).spawn(2)
    result = []
    for n, s in zip((options.n_train, options.n_valid), streams, strict=True):
        result.append(generate(n, options.operations, s))
    return result
