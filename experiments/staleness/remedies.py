"""The remedies that the leaderboard compares, each a function from a learning rate to an optax transform that wants to be delayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optax

from ampjax.optim import (
    RandomDelay,
    anneal_by_staleness,
    bounded_staleness,
    compensate_delay,
    compensate_spikes,
    damp_by_staleness,
    delayed,
    predict_weights,
    scale_by_discounted_nadam,
    scale_by_rotated_adam,
    scale_by_staleness,
)

Make = Callable[[Any, int, int], Any]
"""From a learning rate, the mean delay (delays are at most twice as long) and the number of steps to a transform."""


@dataclass(frozen=True)
class Remedy:
    """How a remedy is made.

    Args:
      make: The transform inside of `delayed`.
      scale: What the learning rates of a grid are multiplied by: Adam's steps are about as long as the learning rate, SGD's are not.
      sync: The part of the steps at the beginning that has no delay.
    """

    make: Make
    scale: float = 1.0
    sync: float = 0.0

    def delayed(
        self, rate: Any, delay: int | RandomDelay, steps: int
    ) -> optax.GradientTransformationExtraArgs:
        """The remedy with its gradients late.

        Args:
          rate: The learning rate; may be traced.
          delay: In updates; one that is drawn is uniform.
          steps: Of the whole run.
        """
        mean = delay.most // 2 if isinstance(delay, RandomDelay) else delay
        return delayed(
            self.make(rate, mean, steps),
            delay,
            sync_updates=int(self.sync * steps),
        )


def _adam(rate: Any, b1: float = 0.9) -> Any:
    return optax.adam(rate, b1=b1)


def _rotated(rate: Any, b2: float = 0.99) -> Any:
    return optax.chain(
        scale_by_rotated_adam(b1=0.9, b2=b2),
        optax.scale(-rate),
    )


def _compensated(rate: Any, delay: int, adaptive: bool = False) -> Any:
    return optax.chain(
        compensate_delay(1.0, max(1, 2 * delay), adaptive),
        _adam(rate),
    )


REMEDIES: Mapping[str, Remedy] = {
    "momentum": Remedy(lambda rate, d, n: optax.sgd(rate, 0.9), 10),
    "momentum+spikes": Remedy(
        lambda rate, d, n: optax.chain(compensate_spikes(0.9), optax.scale(-rate)), 10
    ),
    "momentum+prediction": Remedy(lambda rate, d, n: predict_weights(optax.sgd(rate, 0.9)), 10),
    "adam": Remedy(lambda rate, d, n: _adam(rate)),
    "adam-0.99": Remedy(lambda rate, d, n: _adam(rate, 0.99)),
    "adam+scale": Remedy(lambda rate, d, n: optax.chain(_adam(rate), scale_by_staleness())),
    "adam+anneal": Remedy(
        lambda rate, d, n: optax.chain(_adam(rate), anneal_by_staleness(max(1, n // 4)))
    ),
    "adam+warm-up": Remedy(lambda rate, d, n: _adam(rate), sync=0.25),
    "adam+compensation": Remedy(lambda rate, d, n: _compensated(rate, d)),
    "adam+adaptive": Remedy(lambda rate, d, n: _compensated(rate, d, adaptive=True)),
    "adam+prediction": Remedy(lambda rate, d, n: predict_weights(_adam(rate))),
    "adam+damping": Remedy(lambda rate, d, n: optax.chain(damp_by_staleness(), _adam(rate))),
    "adam+bound": Remedy(lambda rate, d, n: bounded_staleness(_adam(rate), d)),
    "nadam-0.99": Remedy(
        lambda rate, d, n: optax.chain(scale_by_discounted_nadam(), optax.scale(-rate))
    ),
    "muon": Remedy(lambda rate, d, n: optax.contrib.muon(rate)),
    "rotation": Remedy(lambda rate, d, n: _rotated(rate)),
    "rotation-0.999": Remedy(lambda rate, d, n: _rotated(rate, b2=0.999)),  # as Adam has it
}
"""By name, as it is written on the command line. `adam+bound` leaves out what is staler than the mean: with constant delays it is `adam`."""
