"""Trials in turn: the trial with the least training goes next, and after each round the trials in the worse half end (successive halving).

Their pieces alternate, so what else the machine does meets all alike. Trials are compared by their whole learning curves, since single values are
noisy, and differ little where the target is.
Li et al., "Hyperband" (JMLR 2018), section 2, with seconds of training as the resource.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.trial import Trial

Admit = Callable[[Sequence[Trial]], Sequence[Trial]]
"""From all trials so far to those that enter the next round."""

ROUNDS = 4
"""Rounds that share the budget equally; more follow where all ends sooner."""

LEAST = 2
"""Trials that go on after each round, at least: a last one alone would spend what is left without being compared."""

MOST = 4.0
"""The factor that a single validation can count for: where a curve has not yet risen, or hardly, it says little of how much slower a trial is."""


def contest(
    trials: list[Trial],
    admit: Admit,
    budget: Budget,
    progress: Callable[[], object] = lambda: None,
) -> list[Trial]:
    """Runs trials until one has won or the budget is spent.

    Args:
      trials: The trials of the first round; those that are admitted later are added.
      admit: Chooses who enters later rounds.
      budget: What may be spent. It is kept by ending the last piece early.
      progress: Called after each piece.

    Returns:
      All trials, the best first: those that were left at the end, then those that ended, the last ones first.
    """
    began = budget.spent_s
    left = budget.left_s
    alive = list(trials)
    n = 0
    ended: list[Trial] = []
    try:
        while budget.left_s > 0:
            n += 1
            _round(
                alive,
                trials,
                budget,
                began + left * min(1.0, n / ROUNDS),
                progress,
            )
            alive, lost = _halves(standings(alive))
            ended = lost + ended
            entrants = list(admit(trials))
            trials += entrants
            alive += entrants
            if not any(_may_win(trial, trials) for trial in alive):
                break
    except OutOfTime:
        pass
    return standings(alive) + ended


def _halves(ranked: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """Splits ranked trials into those that continue and those that end."""
    n = max(LEAST, (len(ranked) + 1) // 2)
    return list(ranked[:n]), list(ranked[n:])


def standings(trials: Sequence[Trial]) -> list[Trial]:
    """Ranks trials: trials that have reached the target before the others, and each of the two groups by `slowness`.

    One that has become worse again after it reached the target is not among the first group. Last come those that have not trained yet, and
    those that have diverged.
    """
    slow = dict(zip(trials, slowness(trials), strict=True))
    return sorted(
        trials,
        key=lambda t: (
            t.to_target is None or t.falls_back,
            slow[t],
            t.pieces > 0 and t.has_diverged,
        ),
    )


def slowness(trials: Sequence[Trial]) -> list[float]:
    """Measures how slowly trials learn: the logarithm of the ratio of a trial's seconds to the furthest trial's for the same values.

    It is the mean over a trial's validations, in which the second counts twice as much as the first, and so on: where curves cross, what comes later
    tells more. With curves that differ by a factor of their seconds, each validation says the same but for noise. On the treebank, five of them say
    better which of nine choices is the best than seconds to the target do.

    Returns:
      A number for each, 0 for the furthest; infinite where a trial has not trained yet, or has diverged.
    """
    able = [trial for trial in trials if trial.pieces and not trial.has_diverged]
    if not able:
        return [math.inf] * len(trials)
    furthest = min(
        able,
        key=lambda trial: (
            trial.goal.badness(trial.best_values[-1]),
            trial.seconds[-1],
        ),
    )
    return [_factor(trial, furthest) if trial in able else math.inf for trial in trials]


def _factor(trial: Trial, furthest: Trial) -> float:
    """The logarithm of a trial's slowness."""
    least_s = (
        max(furthest.seconds[-1], 1e-9) / furthest.examples[-1]
    )  # those of one example: a logarithm needs some
    course = list(zip(furthest.seconds, furthest.best_values, strict=True))
    factors = []
    for seconds, value in zip(trial.seconds[1:], trial.best_values[1:], strict=True):
        first_s, _ = furthest.to_value(value) or (0.0, 0.0)
        last_s = max(
            [first_s, *(s for s, there in course if there == value)]
        )  # it may have stayed there for a while
        there_s = max(min(max(seconds, first_s), last_s), least_s)
        factors.append(min(max(max(seconds, least_s) / there_s, 1 / MOST), MOST))
    return float(
        np.average(
            np.log(factors),
            weights=np.arange(1, len(factors) + 1),
        )
    )


def _round(
    alive: Sequence[Trial],
    trials: Sequence[Trial],
    budget: Budget,
    until_s: float,
    progress: Callable[[], object],
) -> None:
    """Lets trials continue in turn, a piece at least, until a time, or until none of them can win any more."""
    while True:
        able = [trial for trial in alive if _may_win(trial, trials)]
        if not able or (budget.spent_s >= until_s and all(trial.pieces for trial in able)):
            return
        budget.check()
        min(able, key=lambda trial: trial.seconds[-1]).advance(budget)
        progress()


def _may_win(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Tells whether a trial can still reach the target before all that have; or has reached it, but without confirmation yet."""
    if trial.pieces and trial.has_diverged:
        return False
    if trial.to_target is not None:
        return not trial.is_confirmed
    reached = [other.to_target for other in trials if not other.falls_back]
    return trial.seconds[-1] < min(
        (seconds for seconds, _ in filter(None, reached)), default=math.inf
    )
