"""A search for settings: simulates choices, finds the front, tries some of it, and lets trials choose the next ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from ampjax.errors import SettingsError
from ampjax.ir.instances import Subset
from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.candidate import Candidate
from ampjax.tuning.contest import contest
from ampjax.tuning.efficiency import predicted_seconds, promising
from ampjax.tuning.pareto import non_dominated
from ampjax.tuning.play_off import play_off
from ampjax.tuning.predictor import MakeCost, Predictor, Prepared
from ampjax.tuning.trial import Goal, Trial
from ampjax.tuning.tuned import Tuned
from ampjax.utils.counted import count_of
from ampjax.utils.progress import Reporter

FIRST_TRIALS = 6
LATER_TRIALS = 2
"""Trials that begin with the contest, at most, and that may enter it after each round."""

PREPARING = 0.4
LONGEST_PREPARING = 0.6
SIMULATING = 0.1
"""Shares of the budget: when the first is spent no other plan is compiled, when the second is, one that takes longer than expected is given up. A
plan's choices are simulated as long as the third lasts."""

FIRST_PIECES = 0.4
"""The share of the time after preparation that the first pieces of all trials take at most. On the treebank two choices are near the best, and with
fewer trials neither of them may be among those that begin."""

PIECES = 40
"""About how many pieces all trials together consist of, at least: with fewer, none could be stopped early."""


@dataclass
class Search:
    """A search that is under way.

    Args:
      predictor: Prepares and simulates.
      goal: What is to be reached.
      budget: What may be spent.
      rng: Draws the order in which choices are simulated.
    """

    predictor: Predictor
    goal: Goal
    budget: Budget
    rng: np.random.Generator
    prepared: dict[Any, Prepared] = field(default_factory=dict)
    choices: list[Candidate] = field(default_factory=list)

    @property
    def reporter(self) -> Reporter:
        """Shows progress."""
        return self.predictor.reporter

    def run(self, choices: Sequence[Candidate], seed: int) -> Tuned:
        """Simulates, tries, and returns the findings.

        Raises:
          SettingsError: If the budget was spent before a choice was tried, or the target needs no training.
        """
        self.choices = list(choices)
        self.reporter.line(f"tune: {len(choices)} choices, {self.budget.seconds:g} s, seed {seed}")
        trials: list[Trial] = []
        try:
            self._simulate()
            left = Clock(self.budget, int(self.budget.spent_s))
            with self.reporter.part("tuning, seconds", max(1, left.total)) as left.advance:
                trials = self._begin(self._choose_first(), left)
                trials = contest(
                    trials,
                    lambda so_far: self._begin(self._choose_next(so_far), left),
                    self.budget,
                    left,
                )
                trials = play_off(trials, self._again, self.budget, left)
        except OutOfTime:
            pass
        if not any(trial.pieces for trial in trials):
            self._require_training(trials)
            raise SettingsError(
                "tune, `budget_s`",
                "enough to try a single choice",
                f"{self.budget.seconds:g} s, spent after {len(self.prepared)} plans were compiled and {sum(c.simulated is not None for c in self.choices)} choices simulated",
                "Give several times that, or fewer values in `space`: kernels are compiled for the largest of them.",
            )
        return self._make_result(trials, seed)

    def _require_training(self, trials: Sequence[Trial]) -> None:
        """Checks that the target is not met by the parameters with which trials begin: then there is nothing to choose by.

        Raises:
          SettingsError: If it is.
        """
        metric = self.goal.metric
        target = self.goal.target
        if target is not None and any(trial.to_target is not None for trial in trials):
            expected = "a value that takes training"
            got = f"{target:g}, and {metric} {trials[0].values[0]:.4g} before it"
            raise SettingsError(
                "tune, `target`",
                expected,
                got,
                "Choose a target that the parameters at the start do not meet.",
            )

    def _simulate(self) -> None:
        """Prepares plans and simulates their choices, as long as their shares of the budget last, and finds the front.

        Raises:
          OutOfTime: If the budget is spent before.
        """
        self.choices.sort(key=lambda c: (c.settings.get("workers", 1), repr(c.plan_key)))
        longest = 0.0
        done = []
        for key, group in groupby(self.choices, key=lambda c: c.plan_key):
            choices = list(group)
            if self._is_too_late(longest) and not self.predictor.is_compiled(choices):
                done += choices
                continue
            began = self.budget.spent_s
            try:
                prepared, cost = self._prepare(choices)
            except OutOfTime:
                self.budget.check()
                done += choices
                continue
            self.prepared[key] = prepared
            longest = max(longest, self.budget.spent_s - began)
            until_s = self.budget.spent_s + SIMULATING * self.budget.seconds
            for i in self.rng.permutation(len(choices)):
                self.budget.check()
                if self.budget.spent_s < until_s:
                    choices[i] = self.predictor.simulate(choices[i], prepared, cost)
            done += choices
        simulated = [i for i, c in enumerate(done) if c.simulated is not None]
        for i in non_dominated([done[i].simulated.objectives for i in simulated]):  # type: ignore[union-attr]
            done[simulated[i]] = replace(
                done[simulated[i]],
                is_on_front=True,
            )
        self.choices = done
        n_front = sum(c.is_on_front for c in done)
        self.reporter.line(
            f"tune: {count_of(len(self.prepared), 'plan')} measured, {count_of(len(simulated), 'choice')} simulated, {n_front} on the front; {self.budget.spent_s:.1f} s"
        )

    def _is_too_late(self, expected_s: float) -> bool:
        """Tells whether it is too late to compile another plan, since trials need the rest of the budget."""
        return (
            bool(self.prepared)
            and self.budget.spent_s + expected_s > PREPARING * self.budget.seconds
        )

    def _prepare(self, choices: Sequence[Candidate]) -> tuple[Prepared, MakeCost]:
        """Compiles and measures a plan; a later plan is given up where this takes longer than expected.

        Raises:
          OutOfTime: If it is given up, or the budget is spent.
        """
        if self.prepared:
            left_s = LONGEST_PREPARING * self.budget.seconds - self.budget.spent_s
            self.predictor.budget = Budget(
                max(left_s, 1e-9),
                self.budget.now,
            )
        try:
            prepared = self.predictor.prepare(choices, self.goal.metric)
            return prepared, self.predictor.cost_of(prepared, choices)
        finally:
            self.predictor.budget = self.budget

    def _choose_first(self) -> list[Candidate]:
        """Selects choices of the front to begin with: the best under different laws of staleness and updates.

        They are so few that a piece of each takes `FIRST_PIECES` of the time that is left; half a piece's time is allowed for its validation.
        """
        n = FIRST_TRIALS
        front = self._front()
        if self.predictor.cost is None:
            piece_s = 1.5 * self.budget.seconds / PIECES
            n = max(
                LATER_TRIALS,
                min(n, int(FIRST_PIECES * self.budget.left_s / piece_s)),
            )
        result = []
        for i in promising([c.simulated for c in front if c.simulated], n):
            result.append(front[i])
        return result

    def _choose_next(self, trials: Sequence[Trial]) -> list[Candidate]:
        """Selects choices of the front that look more promising, after the trials so far, than all tried ones."""
        tried = [trial.choice.simulated for trial in trials if trial.choice.simulated is not None]
        best_s = min(predicted_seconds(tried, trials), default=math.inf)
        needed_s = min(
            (reached[0] for trial in trials if (reached := trial.to_target)),
            default=0.0,
        )
        if self.predictor.cost is None and self.budget.left_s < max(
            needed_s, 0.1 * self.budget.seconds
        ):
            return []
        taken = [trial.choice for trial in trials]
        left = [c for c in self._rank_front(trials) if c not in taken][:LATER_TRIALS]
        seconds = predicted_seconds([c.simulated for c in left if c.simulated], trials)
        result = []
        for c, s in zip(left, seconds, strict=True):
            if s < best_s:
                result.append(c)
        return result

    def _rank_front(self, trials: Sequence[Trial]) -> list[Candidate]:
        """The front, the most promising first, after some trials."""
        front = self._front()
        seconds = predicted_seconds([c.simulated for c in front if c.simulated], trials)
        return [front[i] for i in np.argsort(seconds, kind="stable")]

    def _front(self) -> list[Candidate]:
        """The front; of choices with equal figures, which run the same schedule, one."""
        different: dict[Any, Candidate] = {}
        for choice in self.choices:
            if choice.is_on_front and choice.simulated is not None:
                different.setdefault((repr(choice.knobs), choice.simulated), choice)
        return list(different.values())

    def _begin(
        self,
        choices: Sequence[Candidate],
        shown: Callable[[], object],
    ) -> list[Trial]:
        """Makes trials of choices, ready to train; fewer if time runs out."""
        trials: list[Trial] = []
        for choice in choices:
            trial = self._trial(choice)
            try:
                trial.warm_up(self.budget)
            except OutOfTime:
                break
            trials.append(trial)
            shown()
        return trials

    def _trial(self, choice: Candidate) -> Trial:
        """A trial in pieces that are short enough for all trials to have several."""
        p = self.predictor
        most = len(self.predictor.train)
        if p.cost is None and choice.simulated is not None:
            most = round(choice.simulated.per_s / p.per_instance * self.budget.seconds / PIECES)
        return p.trial(
            choice,
            self.prepared[choice.plan_key],
            self.goal,
            most,
        )

    def _again(
        self,
        finalists: Sequence[Trial],
        run: int,
    ) -> list[Trial]:
        """Trials of the same choices with another order of instances, ready to train.

        Raises:
          OutOfTime: If the budget ends before.
        """
        trials = []
        for finalist in finalists:
            choice = finalist.choice
            seed = choice.settings["seed"] + run
            order = np.random.default_rng(seed).permutation(len(finalist.train))
            trial = self._trial(replace(choice, settings={**choice.settings, "seed": seed}))
            trials.append(replace(trial, train=Subset(self.predictor.train, order)))
            trials[-1].warm_up(self.budget)
        return trials

    def _make_result(self, trials: Sequence[Trial], seed: int) -> Tuned:
        tried = []
        for trial in trials:
            if trial.pieces:
                tried.append(replace(trial.choice, tried=trial.result()))
        taken = [trial.choice for trial in trials if trial.pieces]
        others = sorted(
            (c for c in self.choices if c not in taken),
            key=lambda c: (not c.is_on_front, c.simulated is None),
        )
        p = self.predictor
        goal = self.goal
        budget = self.budget
        graph = self.prepared[tried[0].plan_key].graph
        every = [*tried, *others]
        return Tuned(
            every,
            graph,
            goal.metric,
            goal.target,
            budget.spent_s,
            budget.seconds,
            seed,
            p.per_instance,
            len(p.train),
        )


@dataclass
class Clock:
    """Shows how much of the rest of a budget is spent.

    Args:
      budget: The budget.
      shown_s: Whole seconds that were spent when it began, and later those that are shown.
      advance: Shows that so many seconds more are spent.
    """

    budget: Budget
    shown_s: int
    advance: Callable[[int], object] = field(default=lambda n: None)

    @property
    def total(self) -> int:
        """Seconds that are left to be shown."""
        return int(self.budget.seconds) - self.shown_s

    def __call__(self) -> None:
        """Shows the budget spent since the last call."""
        now = min(
            int(self.budget.spent_s),
            int(self.budget.seconds),
        )
        self.advance(now - self.shown_s)
        self.shown_s = now
