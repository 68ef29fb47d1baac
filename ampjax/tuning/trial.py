"""A short training run of one choice of settings, a piece at a time, with its results so far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ampjax.engine.executor import Executor
from ampjax.engine.timing.compilation_count import compiling_s
from ampjax.ir.instances import Instances, Subset
from ampjax.sched.scheduler import Scheduler
from ampjax.simulation.measuring import rehearse
from ampjax.train.history import falls, reaches
from ampjax.train.trainer import Trainer
from ampjax.tuning.budget import Budget
from ampjax.tuning.candidate import Candidate, Tried
from ampjax.utils.blocking import blocking
from ampjax.utils.progress import SILENT

REHEARSED = 48
"""Instances with which the kernels of a trial are compiled, at least."""

CONFIRMED_BY = 2
"""Validations after the one that met the target, by which one sees whether the metric stays there."""

LOST = 0.1
"""The share of the way to the target by which a metric may become worse again: validations are noisy."""


@dataclass(frozen=True)
class Goal:
    """The target of a trial.

    Args:
      metric: A validation metric.
      target: Its value; None where there is only to be got as far as possible.
      smallest: Whether smaller values are better; None lets the metric's name tell.
    """

    metric: str
    target: float | None
    smallest: bool | None = None

    def reaches(self, value: float, target: float) -> bool:
        """Tells whether a value is as good as another."""
        return reaches(value, target, self.metric, self.smallest)

    def is_met(self, value: float) -> bool:
        """Tells whether a value is as good as the target."""
        return self.target is not None and self.reaches(value, self.target)

    def badness(self, value: float) -> float:
        """Maps a value to a number that is smaller for better values, and infinite for values that are not finite."""
        if not math.isfinite(value):
            return math.inf
        is_smaller_better = falls(self.metric) if self.smallest is None else self.smallest
        return value if is_smaller_better else -value


@dataclass(eq=False)
class Trial:
    """A choice that is tried.

    It has more than twelve attributes: what it is tried with, and how far it has come.

    Args:
      choice: The choice.
      trainer: Its trainer.
      train: Training instances, in the order in which they are taken.
      valid: Validation instances.
      goal: What is to be reached.
      piece: Instances that are trained on between two validations.
      per_instance: Training examples in an instance.
      keeper: A trainer of the same graph that evaluates the parameters, and with whose own parameters, which are of no use, kernels are compiled; by
        default the trial's.
      value: The metric before training, where it is known.
      is_virtual: Whether seconds are those of virtual time.
      seconds: Seconds that were trained until each validation.
      examples: Examples that were trained on until then.
      values: The metric there.
      staleness: Mean staleness in each piece.
      runs: Seconds to the target in each run of a play-off, the first one that of this trial; empty if there was none.
    """

    choice: Candidate
    trainer: Trainer
    train: Instances
    valid: Instances
    goal: Goal
    piece: int
    per_instance: float = 1.0
    keeper: Trainer | None = None
    value: float | None = None
    is_virtual: bool = False
    seconds: list[float] = field(default_factory=lambda: [0.0])
    examples: list[float] = field(default_factory=lambda: [0.0])
    values: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    runs: Sequence[float] = ()

    def warm_up(self, budget: Budget) -> None:
        """Compiles the kernels of the first instances, and evaluates the initial parameters.

        What later instances need besides is compiled when it is first called; its time is not counted.

        Raises:
          OutOfTime: If it ends before.
        """
        session = self.trainer.session
        ahead = self.trainer.settings.compile_ahead
        first, valid = session.train_and_valid(self._piece(), self.valid)
        blocking(budget.within(session.preparation.prepare(first, valid, SILENT, ahead=ahead)))
        session.preparation.leave_to_calls()
        if self.keeper is not None and not self.is_virtual:
            n = min(
                self.piece,
                max(REHEARSED, 3 * self.trainer.settings.in_flight),
            )
            some = Subset(self.train, np.arange(n))
            scheduler = Scheduler(self.keeper.plan, session.scheduler.settings)
            rehearse(
                scheduler,
                _executor_of(self.keeper),
                some,
                self.trainer.settings.seed,
                budget.check,
            )
        if self.value is None:
            value = blocking(budget.within(self._evaluate()))
        else:
            value = self.value
        self.values.append(value)

    def advance(self, budget: Budget) -> None:
        """Trains on the next piece, and validates.

        Raises:
          OutOfTime: If it ends before; the piece does not count then.
        """
        data = self._piece()
        compiled_s = compiling_s()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # of losses that are not finite: `badness` knows them
            history = blocking(
                budget.within(self.trainer.fit_async(data, None, epochs=1, progress=False))
            )
            if history.interrupted:  # `within` would have raised, so it was the user
                raise KeyboardInterrupt
            compiled_s = 0.0 if self.is_virtual else compiling_s() - compiled_s
            value = blocking(budget.within(self._evaluate()))
        epoch = history[0]
        trained_s = len(data) / epoch.train_per_s if epoch.train_per_s else 0.0
        self.seconds.append(self.seconds[-1] + max(0.0, trained_s - compiled_s))
        self.examples.append(self.examples[-1] + len(data) * self.per_instance)
        self.values.append(value)
        self.staleness.append(epoch.staleness_mean)

    async def _evaluate(self) -> float:
        """Computes the metric of the present parameters, on the keeper."""
        judge = self.keeper or self.trainer
        theirs = _executor_of(judge).store
        store = _executor_of(self.trainer).store
        params = theirs.params
        theirs.params = store.params
        try:
            return (await judge.evaluate_async(self.valid))[self.goal.metric]
        finally:
            theirs.params = params

    @property
    def pieces(self) -> int:
        """The number of pieces trained so far."""
        return len(self.staleness)

    @property
    def has_diverged(self) -> bool:
        """Tells whether the metric is no number any more."""
        return not math.isfinite(self.values[-1])

    @property
    def to_target(self) -> tuple[float, float] | None:
        """Seconds and examples to the target; None if the target was not reached."""
        if self.goal.target is None:
            return None
        return self.to_value(self.goal.target)

    @property
    def is_confirmed(self) -> bool:
        """Tells whether the trial was watched long enough after it reached the target; a trial that began there needs no watch."""
        i = self._reached_at
        return i == 0 or (i is not None and len(self.values) - 1 - i >= CONFIRMED_BY)

    @property
    def falls_back(self) -> bool:
        """Tells whether the metric has become clearly worse again after it reached the target."""
        i = self._reached_at
        goal = self.goal
        if i is None or goal.target is None:
            return False
        way = goal.badness(self.values[0]) - goal.badness(goal.target)
        lost = goal.badness(self.values[-1]) - goal.badness(goal.target)
        return lost > LOST * way if math.isfinite(way) else not math.isfinite(lost)

    @property
    def _reached_at(self) -> int | None:
        """The first validation that met the target."""
        return next(
            (i for i, value in enumerate(self.values) if self.goal.is_met(value)),
            None,
        )

    def to_value(self, value: float) -> tuple[float, float] | None:
        """Seconds and examples until the metric was as good as a value.

        Between two validations values are interpolated over the logarithm of the examples: curves are steep at first.

        Returns:
          None if it never was.
        """
        i = next(
            (i for i, v in enumerate(self.values) if self.goal.reaches(v, value)),
            None,
        )
        if i is None:
            return None
        if not i:
            return 0.0, 0.0
        before = self.values[i - 1]
        after = self.values[i]
        if math.isfinite(before) and after != before:
            share = (value - before) / (after - before)
        else:
            share = 1.0
        first, last = self.examples[i - 1 : i + 1]
        examples = math.expm1(math.log1p(first) + share * (math.log1p(last) - math.log1p(first)))
        return float(
            np.interp(
                examples,
                (first, last),
                self.seconds[i - 1 : i + 1],
            )
        ), examples

    @property
    def best_values(self) -> list[float]:
        """The best value of the metric until each validation; NaN as long as there was none."""
        values: list[float] = []
        for value in self.values:
            better = not values or self.goal.badness(value) < self.goal.badness(values[-1])
            values.append(value if better else values[-1])
        return [value if math.isfinite(value) else math.nan for value in values]

    def result(self) -> Tried:
        """The results so far."""
        reached = self.to_target
        if reached is None:
            needed_s = None
        elif self.runs:
            needed_s = float(np.exp(np.mean(np.log(self.runs))))
        else:
            needed_s = reached[0]
        return Tried(
            seconds=self.seconds[-1],
            examples=round(self.examples[-1]),
            value=self.values[-1],
            best=self.best_values[-1],
            staleness=float(np.mean(self.staleness)) if self.staleness else 0.0,
            seconds_to_target=needed_s,
            examples_to_target=None if reached is None else reached[1],
            runs=max(1, len(self.runs)),
        )

    def _piece(self) -> Subset:
        """The next instances; after the last one come the first ones again."""
        start = self.pieces * self.piece
        return Subset(
            self.train,
            np.arange(start, start + self.piece) % len(self.train),
        )


def _executor_of(trainer: Trainer) -> Executor:
    """The executor of a trainer without hosts."""
    executor = trainer.session.executor
    assert isinstance(executor, Executor)
    return executor
