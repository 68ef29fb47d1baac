"""Trials in turn: the trial that has trained least goes next, and after each round the worse half ends (successive halving).

So all trials that are compared have trained for the same seconds, in pieces that alternate: what else the machine does meets all alike.
Li et al., "Hyperband" (JMLR 2018), section 2, with seconds of training as the resource.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.trial import Trial

Admit = Callable[[Sequence[Trial]], Sequence[Trial]]
"""From all trials so far to those that enter the next round."""

ROUNDS = 4
"""Rounds that share the budget equally; more follow where all ends sooner."""


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
      All trials, the best first.
    """
    began, left, alive, n = budget.spent_s, budget.left_s, list(trials), 0
    try:
        while budget.left_s > 0:
            n += 1
            _round(alive, trials, budget, began + left * min(1.0, n / ROUNDS), progress)
            alive = standings(alive)[: max(1, (len(alive) + 1) // 2)]
            entrants = list(admit(trials))
            trials += entrants
            alive += entrants
            if not any(_may_win(trial, trials) for trial in alive):
                break
    except OutOfTime:
        pass
    last = standings(alive)
    return last + standings([trial for trial in trials if trial not in last])


def standings(trials: Sequence[Trial]) -> list[Trial]:
    """Ranks trials: by seconds to the target who has reached it, then the others by the metric after as many seconds as all of them have trained.

    Args:
      trials: The trials.
    """
    common = min((trial.seconds[-1] for trial in trials if trial.to_target is None), default=0.0)

    def rank(trial: Trial) -> tuple[float, float, float]:
        reached = trial.to_target
        if reached is not None:
            return 0.0, reached[0], 0.0
        return 1.0 + trial.has_diverged, trial.goal.badness(trial.value_at(common)), -trial.seconds[-1]

    return sorted(trials, key=rank)


def _round(
    alive: Sequence[Trial], trials: Sequence[Trial], budget: Budget, until_s: float, progress: Callable[[], object]
) -> None:
    """Lets trials go on, in turn, until a time, or until none of them can win any more."""
    while budget.spent_s < until_s:
        budget.check()
        able = [trial for trial in alive if _may_win(trial, trials)]
        if not able:
            return
        min(able, key=lambda trial: trial.seconds[-1]).advance(budget)
        progress()


def _may_win(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Whether a trial can still reach the target sooner than all that have reached it."""
    if trial.to_target is not None or (trial.pieces and trial.has_diverged):
        return False
    best = min((reached[0] for other in trials if (reached := other.to_target) is not None), default=float("inf"))
    return trial.seconds[-1] < best
