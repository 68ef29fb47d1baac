"""MNIST with a perceptron of four layers, each on a worker of its own (AMPNet, B.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import optax

from ampjax.errors import SettingsError
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.data.mnist import Batches, load, synthetic
from experiments.models.mlp import mlp


@dataclass(frozen=True, kw_only=True)
class MnistOptions(Options):
    """MNIST: batches of 100 images, SGD 0.1, an update for each batch, one message in a dispatch as in the paper.

    The rate rises to its value over the first updates: with four batches in flight and the newest weights in the adjoint, a full step
    from He's start makes the loss grow without bound on standardised images (stashed weights, or a rising rate, do not).

    Args:
      batch_size: Images in a message.
      hidden: Features of the hidden layers.
      learning_rate: SGD's.
      warm_up: Updates over which the rate rises to it.
    """

    batch_size: int = 100
    hidden: int = 784
    learning_rate: float = 0.1
    warm_up: int = 100
    max_active_keys: int = 4
    workers: int = 4
    max_dispatch_size: int = 1
    policy: str = "backward_first"


def main(options: MnistOptions) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    return run("mnist", options, tasks(options))


def tasks(options: MnistOptions) -> Callable[[int], Task]:
    """Reads the data; gives a function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    require_positive("B.1's is 0.1.", learning_rate=options.learning_rate)
    if options.warm_up < 0:
        raise SettingsError(
            "--warm-up", "at least 0", f"{options.warm_up}", "0 starts with the full rate."
        )
    train, valid = (
        Batches(part, options.batch_size)
        for part in (synthetic() if options.synthetic else load(options.data_dir))
    )

    def task(seed: int) -> Task:
        sizes = (784, options.hidden, options.hidden, options.hidden, 10)
        graph = mlp(sizes, options.batch_size, options.replicas, options.copies)
        return Task(
            graph,
            train,
            valid,
            options.settings(seed, 1),
            optax.sgd(rate(options)),
        )

    return task


def rate(options: MnistOptions) -> float | optax.Schedule:
    """The learning rate, by the number of updates where it rises."""
    peak = options.learning_rate
    n = options.warm_up
    if n:
        return optax.linear_schedule(peak / n, peak, n)
    return peak
