"""Trials that are told in advance how well they will do, on a clock of their own."""

from __future__ import annotations

import math

from ampjax.tuning.budget import OutOfTime
from ampjax.tuning.candidate import Candidate, Figures
from ampjax.tuning.trial import Goal, Trial

GOAL = Goal("accuracy", 0.9)


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Told(Trial):
    """A trial whose accuracy rises by the second at a known rate; a piece takes `piece_s`, on the clock twice that."""

    def __init__(
        self,
        clock,
        rate,
        piece_s=1.0,
        figures=None,
        top=1.0,
    ):
        choice = Candidate(
            {"max_active_keys": 1},
            {},
            figures or Figures(100.0, 0.0, 1.0),
        )
        super().__init__(
            choice,
            None,
            [0],
            [0],
            GOAL,
            1,
        )  # type: ignore[arg-type]
        self.values.append(0.0)
        self.clock = clock
        self.rate = rate
        self.piece_s = piece_s
        self.top = top

    def advance(self, budget):
        self.clock.now_s += 2 * self.piece_s
        if budget.left_s < 0:
            raise OutOfTime
        self.seconds.append(self.seconds[-1] + self.piece_s)
        self.examples.append(self.examples[-1] + 100 * self.piece_s)
        self.values.append(
            min(
                self.top,
                self.rate * self.seconds[-1],
            )
        )
        self.staleness.append(0.0)


def needed_s(rate):
    """Seconds that a trial with pieces of a second needs to the target, interpolated over the logarithm of its examples."""
    n = math.floor(GOAL.target / rate)
    before = n * rate
    after = min(1.0, (n + 1) * rate)
    share = (GOAL.target - before) / (after - before)
    return math.expm1((1 - share) * math.log1p(100 * n) + share * math.log1p(100 * (n + 1))) / 100
