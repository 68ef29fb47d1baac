"""How many examples a choice of settings needs to a target: a guess from staleness and updates, corrected by what trials have shown.

The simulator tells how fast a choice is, but not how well it learns. That depends above all on how stale gradients are and on how often
nodes update, which the simulator does tell. So what a trial shows of one choice says something of others that are alike in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ampjax.tuning.candidate import Figures
from ampjax.tuning.trial import Trial

LEAST_TRIALS = 3
"""With fewer trials that have come far enough, the guess counts alone."""


def place(figures: Figures) -> tuple[float, float]:
    """The coordinates of a choice: staleness and updates per instance, as powers of two.

    Args:
      figures: What the simulator says of it.
    """
    return math.log2(1 + figures.staleness), math.log2(max(figures.updates, 1e-6))


def guess(figures: Figures) -> float:
    """A first guess at the examples to a target, as a power of two and up to a constant.

    A staleness of 4 updates doubles them, and so do four times fewer updates, as the optimal step of stochastic gradients grows with the square root of
    the batch.

    Args:
      figures: What the simulator says of the choice.
    """
    return math.log2(1 + figures.staleness / 4) - 0.5 * math.log2(max(figures.updates, 1e-6))


def predicted_seconds(choices: Sequence[Figures], trials: Sequence[Trial]) -> list[float]:
    """Predicts seconds to a target, up to a common factor.

    Args:
      choices: What the simulator says of each choice.
      trials: What has been tried; each has a simulated choice.

    Returns:
      For each choice, in order.
    """
    known = _corrections(trials)
    seconds = []
    for figures in choices:
        here, examples = np.array(place(figures)), guess(figures)
        if known:
            places, corrections = np.array([p for p, _ in known]), np.array([c for _, c in known])
            weights = 1 / (((places - here) ** 2).sum(1) + 0.1)
            examples += float((weights * corrections).sum() / weights.sum())
        seconds.append(2.0 ** min(examples, 500.0) / max(figures.per_s, 1e-9))
    return seconds


def _corrections(trials: Sequence[Trial]) -> list[tuple[tuple[float, float], float]]:
    """Of each trial its place, and by how much the guess at its examples was too small, as a power of two.

    Trials are compared at a value that most of them have reached: the median of the best values.
    """
    able = [trial for trial in trials if trial.pieces and trial.choice.simulated is not None]
    ranked = sorted((trial.goal.badness(trial.result().best), trial.result().best) for trial in able)
    ranked = [(badness, value) for badness, value in ranked if math.isfinite(badness)]
    if len(ranked) < LEAST_TRIALS:
        return []
    level = ranked[len(ranked) // 2][1]
    found = []
    for trial in able:
        figures, reached = trial.choice.simulated, trial.to_value(level)
        assert figures is not None
        # Who has not reached it needs more than it has had: twice as much is assumed.
        examples = reached[1] if reached is not None else 2 * trial.examples[-1]
        found.append((place(figures), math.log2(max(examples, 1.0)) - guess(figures)))
    return found
