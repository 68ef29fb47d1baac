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
      scale: What the learning rates of a grid are multiplied by: Adam's steps are about as long as the learning rate, those of SGD are not.
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


def _momentum(rate: Any) -> Any:
    return optax.sgd(rate, 0.9)


def _adam(rate: Any, b1: float = 0.9) -> Any:
    return optax.adam(rate, b1=b1)


def _rotated(rate: Any, b2: float = 0.99) -> Any:
    return optax.chain(
        scale_by_rotated_adam(b1=0.9, b2=b2),
        optax.scale(-rate),
    )


def _spikes(rate: Any) -> Any:
    return optax.chain(
        compensate_spikes(0.9),
        optax.scale(-rate),
    )


def _nadam(rate: Any) -> Any:
    return optax.chain(
        scale_by_discounted_nadam(),
        optax.scale(-rate),
    )


def _plain(
    optimizer: Callable[[Any], Any],
    scale: float = 1.0,
) -> Remedy:
    """An optimizer alone."""
    return Remedy(lambda rate, d, n: optimizer(rate), scale)


def _with_each(
    name: str,
    optimizer: Callable[[Any], Any],
    scale: float = 1.0,
) -> dict[str, Remedy]:
    """An optimizer alone, and with each remedy for any optimizer."""

    def scaled(rate: Any, delay: int, steps: int) -> Any:
        return optax.chain(
            optimizer(rate),
            scale_by_staleness(),
        )

    def annealed(rate: Any, delay: int, steps: int) -> Any:
        return optax.chain(
            optimizer(rate),
            anneal_by_staleness(max(1, steps // 4)),
        )

    def compensated(
        rate: Any,
        delay: int,
        steps: int,
        adaptive: bool = False,
    ) -> Any:
        return optax.chain(
            compensate_delay(1.0, max(1, 2 * delay), adaptive),
            optimizer(rate),
        )

    def adaptive(rate: Any, delay: int, steps: int) -> Any:
        return compensated(rate, delay, steps, adaptive=True)

    def predicted(rate: Any, delay: int, steps: int) -> Any:
        return predict_weights(optimizer(rate))

    def damped(rate: Any, delay: int, steps: int) -> Any:
        return optax.chain(
            damp_by_staleness(),
            optimizer(rate),
        )

    def bound(rate: Any, delay: int, steps: int) -> Any:
        return bounded_staleness(optimizer(rate), delay)

    plain = _plain(optimizer, scale)
    return {
        name: plain,
        f"{name}+scale": Remedy(scaled, scale),
        f"{name}+anneal": Remedy(annealed, scale),
        f"{name}+warm-up": Remedy(plain.make, scale, sync=0.25),
        f"{name}+compensation": Remedy(compensated, scale),
        f"{name}+adaptive": Remedy(adaptive, scale),
        f"{name}+prediction": Remedy(predicted, scale),
        f"{name}+damping": Remedy(damped, scale),
        f"{name}+bound": Remedy(bound, scale),
    }


REMEDIES: Mapping[str, Remedy] = {
    "sgd": _plain(optax.sgd, 100),
    **_with_each("momentum", _momentum, 10),
    "momentum+spikes": _plain(_spikes, 10),
    **_with_each("adam", _adam),
    "adam-0.99": _plain(lambda rate: _adam(rate, 0.99)),
    "nadam-0.99": _plain(_nadam),
    "muon": _plain(optax.contrib.muon),
    "rotation": _plain(_rotated),
    "rotation-0.999": _plain(lambda rate: _rotated(rate, b2=0.999)),  # as Adam has it
}
"""By name, as it is written on the command line. With constant delays `bound` does nothing: it leaves out what is staler than the mean."""
