"""A play-off: the two best trials run again, each time with another order of instances, as one run tells little of choices that are near each other.

On the treebank the same choice needs between 5,600 and 8,800 trees to a target. Runs are compared by their whole curves (`contest.slowness`), which
vary less, and end as soon as one choice is so far ahead that the other one is hardly better: ahead by a quarter in one run, or by a tenth in two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.contest import slowness
from ampjax.tuning.trial import Trial

FINALISTS = 2
RUNS = 3
"""Runs of each finalist, at most, with that of the contest."""

CLEAR = 1.5
"""A finalist that needs so many times the other one's seconds has lost, and is stopped there."""

LONGEST = 4.0
"""Times the seconds of the slower one in the first run, after which a later run has shown nothing and ends."""

NOISE = 0.2
"""How much two choices' quotient of seconds varies from run to run, before runs have told: the standard deviation of its logarithm. On the treebank it
was 0.04 to 0.3."""

LITTLE = 0.01
"""The share of the seconds to the target that may be lost on average by choosing the wrong one; another run could not gain more than that."""

RESERVE = 1.5
"""Times what the last run took, on the clock, that must be left of the budget for another one."""

Again = Callable[[Sequence[Trial], int], Sequence[Trial]]
"""From the finalists and the number of a run to trials of the same choices, ready to train."""


def play_off(
    trials: Sequence[Trial],
    again: Again,
    budget: Budget,
    progress: Callable[[], object] = lambda: None,
) -> list[Trial]:
    """Trains the two best to the target, then again as long as the wrong choice would cost much and the budget lasts.

    Args:
      trials: The trials of a contest, the best first.
      again: Makes trials for another run.
      budget: What may be spent. A run that it ends does not count.
      progress: Called after each piece.

    Returns:
      The same trials, the best first: the finalists by how slowly they learned, on average over the runs. Their results have the geometric means of
      their seconds to the target.
    """
    finalists = list(trials[:FINALISTS])
    others = list(trials[FINALISTS:])
    if len(finalists) < FINALISTS or not any(
        trial.pieces and trial.to_target for trial in finalists
    ):
        return list(trials)
    runs: list[list[float]] = []
    ratios: list[float] = []
    try:
        run: Sequence[Trial] = finalists
        while True:
            began = budget.spent_s
            if runs:
                most_s = LONGEST * max(runs[0])
            else:
                most_s = math.inf
            runs.append(_to_target(run, budget, progress, most_s))
            ratios.append(_ratio(run))
            means = np.exp(np.mean(np.log(runs), axis=0))
            took_s = max(budget.spent_s - began, min(means) * len(finalists))
            if (
                len(runs) == RUNS
                or expected_loss(ratios) <= LITTLE
                or budget.left_s < RESERVE * took_s
            ):
                break
            run = again(finalists, len(runs))
    except OutOfTime:
        pass
    if not runs:
        return list(trials)
    for trial, seconds in zip(finalists, zip(*runs, strict=True), strict=True):
        trial.runs = seconds
    return (finalists[::-1] if sum(ratios) > 0 else finalists) + others


def expected_loss(ratios: Sequence[float]) -> float:
    """Computes the average loss from choosing the one of two that was better so far: the logarithm of its excess time over the better one.

    The logarithms of the runs' quotients of seconds vary normally around the true one. After n runs whose mean is m, the variance is taken to be
    (NOISE² + Σ (ratio - m)²) / n, as if one run more had been off by `NOISE`; that of the mean is an n-th of it.

    Args:
      ratios: The logarithm of their quotient of seconds in each run.
    """
    n = len(ratios)
    mean = sum(ratios) / len(ratios)
    variance = (NOISE**2 + sum((ratio - mean) ** 2 for ratio in ratios)) / n
    ahead = abs(mean)
    error = math.sqrt(variance / n)
    normal = NormalDist()
    return error * normal.pdf(ahead / error) - ahead * normal.cdf(-ahead / error)


def _ratio(run: Sequence[Trial]) -> float:
    """Computes the logarithm of the quotient of two trials' seconds; a trial stopped before the target counts as `CLEAR` times as many, the limit for all."""
    first, second = slowness(run)
    most = math.log(CLEAR)
    stopped = [trial.to_target is None for trial in run]
    if any(stopped):
        return most * (stopped[0] - stopped[1])
    return min(max(first - second, -most), most)


def _to_target(
    trials: Sequence[Trial],
    budget: Budget,
    progress: Callable[[], object],
    most_s: float,
) -> list[float]:
    """Trains trials in turn to the target, each for some seconds at most; returns the seconds of each, stopped trials included.

    Raises:
      OutOfTime: If the budget ends before, or none comes to the target.
    """

    def needed_s(trial: Trial) -> float:
        return math.inf if (reached := trial.to_target) is None else reached[0]

    def goes_on(trial: Trial) -> bool:
        hopeless = trial.has_diverged or trial.seconds[-1] >= min(
            most_s, CLEAR * min(map(needed_s, trials))
        )
        return trial.to_target is None and not (trial.pieces and hopeless)

    while able := [trial for trial in trials if goes_on(trial)]:
        budget.check()
        min(able, key=lambda trial: trial.seconds[-1]).advance(budget)
        progress()
    best_s = min(map(needed_s, trials))
    if not math.isfinite(best_s):  # all have diverged, or train for too long
        raise OutOfTime
    result = []
    for trial in trials:
        result.append(max(min(needed_s(trial), CLEAR * best_s), 1e-9))
    return result
