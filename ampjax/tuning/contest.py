"""Trials in turn: the trial that has trained least goes next, and after each round those end that are in the worse half (successive halving).

There are two ways to say what the worse half is, by the values so far and by what is expected: who is in the better half by either goes on.

So all trials that are compared have trained for the same seconds, in pieces that alternate: what else the machine does meets all alike.
Li et al., "Hyperband" (JMLR 2018), section 2, with seconds of training as the resource.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.trial import Trial

Admit = Callable[[Sequence[Trial]], Sequence[Trial]]
"""From all trials so far to those that enter the next round."""

ROUNDS = 4
"""Rounds that share the budget equally; more follow where all ends sooner."""

AHEAD = 1.0
"""How far trials look ahead, as a multiple of the examples that the best one has had: a round of successive halving doubles them."""


def contest(
    trials: list[Trial], admit: Admit, budget: Budget, progress: Callable[[], object] = lambda: None
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
    began, left, alive, n = budget.spent_s, budget.left_s, list(trials), 0
    ended: list[Trial] = []
    try:
        while budget.left_s > 0:
            n += 1
            _round(alive, trials, budget, began + left * min(1.0, n / ROUNDS), progress)
            alive, lost = _halves(alive)
            ended = lost + ended
            entrants = list(admit(trials))
            trials += entrants
            alive += entrants
            if not any(_may_win(trial, trials) for trial in alive):
                break
    except OutOfTime:
        pass
    return standings(alive) + ended


def _halves(trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """Those in the better half by `standings` or by `prospects`, and the others; the best first.

    On a plateau, where values differ by chance, all seem to have learned the same: the one with the most examples a second has the best prospects,
    though it has learned the least from each. Where a choice begins slowly, and then learns as the others do, standings would end it.
    """
    n = (len(trials) + 1) // 2
    by_value, expected = standings([trial for trial in trials if trial.pieces])[:n], prospects(trials)
    better = [trial for trial in expected if trial in expected[:n] or trial in by_value]
    return better, [trial for trial in expected if trial not in better]


def standings(trials: Sequence[Trial]) -> list[Trial]:
    """Ranks trials: by seconds to the target who has reached it, then the others by the metric after as many seconds as all of them have trained.

    Args:
      trials: The trials.
    """
    common = _common_s(trials)

    def rank(trial: Trial) -> tuple[float, float, float]:
        reached = trial.to_target
        if reached is not None:
            return 0.0, reached[0], 0.0
        return 1.0 + trial.has_diverged, trial.goal.badness(trial.value_at(common)), -trial.seconds[-1]

    return sorted(trials, key=rank)


def prospects(trials: Sequence[Trial]) -> list[Trial]:
    """Ranks trials by what is to be expected of them: as `standings`, but those on their way by the seconds that they still need.

    They are to come to where the best one will be when it has had as many examples again (`AHEAD`). All are taken to learn as the best one
    did: who is where it was after some examples lacks all those that followed, and goes on at its own rate. So a slow beginning, for want of
    updates, counts once, and the rate counts to the end. By the values alone, the fastest choice would often end early.

    Args:
      trials: The trials.
    """
    ranked = standings(trials)
    behind = standings([trial for trial in trials if _is_on_its_way(trial) and trial.seconds[-1]])
    if not behind:
        return ranked
    common, best = _common_s(behind), behind[0]
    there = float(np.interp(common, best.seconds, best.examples))

    def remaining_s(trial: Trial) -> float:
        value = trial.value_at(common)
        reached = best.to_value(value)
        had = 0.0 if not np.isfinite(value) else there if reached is None else reached[1]
        return ((1 + AHEAD) * there - had) * trial.seconds[-1] / trial.examples[-1]

    n = min(map(ranked.index, behind))  # those without a piece come behind them
    return ranked[:n] + sorted(behind, key=remaining_s) + ranked[n + len(behind) :]


def _is_on_its_way(trial: Trial) -> bool:
    return trial.to_target is None and not trial.has_diverged


def _common_s(trials: Sequence[Trial]) -> float:
    """Seconds that all have trained that are on their way, and a piece of each at least.

    Curves rise steeply before the first validation, so what lies before it can't be interpolated: who is validated a little later would seem far behind.
    """
    able = [trial.seconds for trial in trials if _is_on_its_way(trial)]
    return max((*(seconds[1] for seconds in able if len(seconds) > 1), min((s[-1] for s in able), default=0.0)), default=0.0)


def _round(
    alive: Sequence[Trial], trials: Sequence[Trial], budget: Budget, until_s: float, progress: Callable[[], object]
) -> None:
    """Lets trials go on, in turn, until a time, and a piece at least; or until none of them can win any more."""
    while True:
        able = [trial for trial in alive if _may_win(trial, trials)]
        if not able or (budget.spent_s >= until_s and all(trial.pieces for trial in able)):
            return
        budget.check()
        min(able, key=lambda trial: trial.seconds[-1]).advance(budget)
        progress()


def _may_win(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Whether a trial can still reach the target sooner than all that have reached it."""
    if trial.to_target is not None or (trial.pieces and trial.has_diverged):
        return False
    best = min((reached[0] for other in trials if (reached := other.to_target) is not None), default=float("inf"))
    return trial.seconds[-1] < best
