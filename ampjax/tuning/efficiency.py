"""The number of examples that a choice of settings needs to a target: a guess from staleness and updates, corrected by trials.

The simulator tells how fast a choice is, but not how well it learns. That depends above all on how stale gradients are and on how often
nodes update, which the simulator does tell, so the examples are taken for a product of powers of both. Which powers is a matter of the
model: trials tell, and before there are any, each of several laws chooses some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ampjax.tuning.candidate import Figures
from ampjax.tuning.trial import Trial


@dataclass(frozen=True)
class Law:
    """Examples to a target, up to a factor: `(1 + staleness / 4) ** staleness_power / updates ** updates_power`.

    Args:
      staleness_power: With 1, a staleness of 4 updates doubles the examples.
      updates_power: With a half, so do four times fewer updates, as the optimal step of stochastic gradients grows with the square root of
        the batch; with 0, updates cost nothing but time; with 1, only their number counts.
    """

    staleness_power: float
    updates_power: float

    def examples(self, figures: Figures) -> float:
        """The examples that a choice needs, as a power of two and up to a constant.

        Args:
          figures: What the simulator says of the choice.
        """
        staleness, updates = _logarithms(figures)
        return self.staleness_power * staleness + self.updates_power * updates


LAWS = tuple(Law(*powers) for powers in product((1.0, 0.0, 2.0), (0.5, 0.0, 1.0)))
"""Laws that a model may follow; the first one is the likeliest."""

UNCERTAINTY = 1.0, 0.5
"""Standard deviations of the likeliest law's powers, before anything was tried."""

NOISE = 0.3
"""The standard deviation of the examples that trials of the same choice need, as a power of two."""


def promising(choices: Sequence[Figures], n: int) -> list[int]:
    """Selects the choices to begin with: the best under one law or another, then the second best, and so on.

    Args:
      choices: What the simulator says of each choice.
      n: How many, at most.

    Returns:
      Their numbers, in the order of choice.
    """
    ranked = []
    for law in LAWS:
        ranked.append(
            np.argsort(
                [_seconds(c, law.examples(c)) for c in choices],
                kind="stable",
            )
        )
    in_order = dict.fromkeys(int(i) for each in zip(*ranked, strict=True) for i in each)
    return list(in_order)[:n]


def predicted_seconds(
    choices: Sequence[Figures],
    trials: Sequence[Trial],
) -> list[float]:
    """Predicts seconds to a target, up to a common factor.

    Args:
      choices: What the simulator says of each choice.
      trials: What has been tried; each has a simulated choice.

    Returns:
      For each choice, in order.
    """
    law = _law_of(trials)
    return [_seconds(figures, law.examples(figures)) for figures in choices]


def _seconds(figures: Figures, examples: float) -> float:
    return 2.0 ** min(examples, 500.0) / max(figures.per_s, 1e-9)


def _logarithms(figures: Figures) -> tuple[float, float]:
    """Computes the bases of a law's powers, as powers of two: staleness, and few updates."""
    return math.log2(1 + figures.staleness / 4), -math.log2(max(figures.updates, 1e-6))


def _law_of(trials: Sequence[Trial]) -> Law:
    """The likeliest law after some trials: Bayesian linear regression of the logarithm of the examples, with a free factor.

    The powers' prior is normal, about the likeliest law of all (Bishop, "Pattern recognition and machine learning", 2006, section 3.3).
    """
    usual = LAWS[0]
    known = _examples(trials)
    if not known:
        return usual
    x = np.array([(1.0, *_logarithms(figures)) for figures, _ in known])
    unexplained = np.array([examples - usual.examples(figures) for figures, examples in known])
    precision = (
        np.diag([0.0, *(1 / deviation**2 for deviation in UNCERTAINTY)]) + x.T @ x / NOISE**2
    )
    _, staleness, updates = np.linalg.solve(
        precision,
        x.T @ unexplained / NOISE**2,
    )
    return Law(
        usual.staleness_power + float(staleness),
        usual.updates_power + float(updates),
    )


def _examples(trials: Sequence[Trial]) -> list[tuple[Figures, float]]:
    """Collects each trial's simulated figures, and the examples that the trial needed, as a power of two.

    Trials are compared at a value that most of them have reached: the median of the best values.
    """
    able = [trial for trial in trials if trial.pieces and trial.choice.simulated is not None]
    ranked = sorted(
        (trial.goal.badness(trial.result().best), trial.result().best) for trial in able
    )
    ranked = [(badness, value) for badness, value in ranked if math.isfinite(badness)]
    if not ranked:
        return []
    level = ranked[len(ranked) // 2][1]
    pairs = []
    for trial in able:
        figures = trial.choice.simulated
        reached = trial.to_value(level)
        assert figures is not None
        # Who has not reached it needs more than it has had: twice as much is assumed.
        if reached is not None:
            examples = reached[1]
        else:
            examples = 2 * trial.examples[-1]
        pairs.append((figures, math.log2(max(examples, 1.0))))
    return pairs
