"""The outer rules in comparison: the server's optimizers, with and without a remedy for staleness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import optax

from ampjax.optim import (
    anneal_by_staleness,
    bounded_staleness,
    compensate_delay,
    compensate_spikes,
    damp_by_staleness,
    predict_weights,
    scale_by_staleness,
)

MEAN_STALENESS = 3
"""Of four workers: while one trains, the others bring about one pseudo-gradient each."""


def _nesterov(rate: float) -> Any:
    return optax.sgd(rate, momentum=0.9, nesterov=True)


RULES: Mapping[str, Callable[[float], Any]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "momentum-0.5": lambda rate: optax.sgd(rate, momentum=0.5),
    "nesterov": _nesterov,
    "adam": lambda rate: optax.adam(rate),
    "nesterov+scale": lambda rate: optax.chain(scale_by_staleness(), _nesterov(rate)),
    "nesterov+anneal": lambda rate: optax.chain(anneal_by_staleness(100), _nesterov(rate)),
    "nesterov+damping": lambda rate: optax.chain(damp_by_staleness(), _nesterov(rate)),
    "nesterov+compensation": lambda rate: optax.chain(
        compensate_delay(1.0, 4 * MEAN_STALENESS),
        _nesterov(rate),
    ),
    "nesterov+adaptive": lambda rate: optax.chain(
        compensate_delay(1.0, 4 * MEAN_STALENESS, adaptive=True),
        _nesterov(rate),
    ),
    "nesterov+prediction": lambda rate: predict_weights(_nesterov(rate)),
    "nesterov+bound": lambda rate: bounded_staleness(_nesterov(rate), MEAN_STALENESS),
    "momentum+spikes": lambda rate: optax.chain(compensate_spikes(0.9), optax.scale(-rate)),
}
"""From a learning rate to a transform, by the name on the command line."""
