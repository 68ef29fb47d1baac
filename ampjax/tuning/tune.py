"""Finds the settings with which a graph trains to a target soonest on this machine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import optax

from ampjax.drivers.cost import Cost
from ampjax.errors import SettingsError, TuningWarning
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances, Subset
from ampjax.plan.planner import Plan
from ampjax.train.assemble import require_transform
from ampjax.train.settings import Settings
from ampjax.train.training_data import Data, as_instances, n_examples
from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.built_graphs import Graphs
from ampjax.tuning.candidate import Candidate
from ampjax.tuning.contest import contest
from ampjax.tuning.efficiency import place, predicted_seconds
from ampjax.tuning.pareto import non_dominated, spread
from ampjax.tuning.predictor import Predictor, Prepared, cores_here
from ampjax.tuning.search_space import GraphOrBuilder, Space, candidates, check_space, full_space
from ampjax.tuning.trial import Goal, Trial
from ampjax.tuning.tuned import Tuned
from ampjax.utils.progress import Reporter
from ampjax.utils.setting_checks import at_least

HELD_OUT = 1000
"""Instances that are held out for validation at most, where the user gives none: a tenth of all, if that is fewer."""

FIRST_TRIALS = 6
LATER_TRIALS = 2
"""Trials that begin with the contest, and that may enter it after each round."""

PREPARING, SIMULATING = 0.4, 0.1
"""Shares of the budget: when the first is spent no other plan is compiled, and a plan's choices are simulated as long as the second lasts."""

PIECES = 40
"""About how many pieces all trials together consist of, at least: with fewer, none could be stopped early."""


def tune(
    graph: GraphOrBuilder,
    data: Data,
    tx: optax.GradientTransformation | None = None,
    *,
    target: float | None = None,
    metric: str = "loss",
    budget_s: float = 60.0,
    valid: Data | None = None,
    space: Space | None = None,
    cost: Callable[[Plan], Cost] | None = None,
    cores: float | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Tuned:
    """Finds the settings with which a graph trains to a target soonest, within a time.

    First it measures this machine (`amp.profile`) and simulates all choices (`amp.simulate`): throughput, staleness, updates. Those that no other
    one beats in all three are the front. Then some of the front are tried: short training runs from the same parameters, in turn, of which
    the worse half ends after each round, while others enter that the trials so far make promising. Their seconds are those of training
    alone; compiling counts for the budget only, and all choices of a plan share their kernels.

    Args:
      graph: A closed graph; or a function that builds one, to which names in `space` that are no settings are passed: with
        `space={"copies": (1, 2)}` it is called as `graph(copies=2)`.
      data: Training instances.
      tx: The optax transform of every parameterised node that has none of its own; by default `optax.adam(1e-3)`.
      target: The value of the metric to reach; None to get as far as possible.
      metric: A validation metric: `loss`, or what the losses' bodies return. Losses and errors fall, all others rise.
      budget_s: Seconds that all of it may take, compilations included. It ends at most one kernel's compilation, or one simulated pass, later.
      valid: Validation instances; by default a tenth of `data`, 1000 at most, is held out.
      space: Values to choose from, by name; settings that it does not name get usual values (`{"workers": (1,)}` keeps one worker).
      cost: As for `Trainer`: tunes for the machine of a cost model, whose seconds count then; the budget is this machine's.
      cores: Cores that host and devices share, for the simulation; by default those of this machine.
      seed: Of parameters, of the order of instances and of what is chosen to be tried.
      progress: Whether to show progress.
      **options: Settings that do not vary, as for `Trainer`.

    Returns:
      The best choice, as settings for `Trainer`, and all others, as a table, a picture and data.

    Raises:
      GraphError: If the graph is not closed, or has parameters in a table in host memory, which all trials would train.
      SettingsError: If there is no instance, a setting or a name in `space` is wrong, the metric is unknown, the target is no number, or the
        budget was spent before a single choice was tried.
      MessageError: If a message, payload or state function does not fit.

    Warns:
      TuningWarning: If no trial has reached the target.
    """
    require_transform(tx)
    if target is not None and (
        isinstance(target, bool) or not isinstance(target, int | float) or not math.isfinite(target)
    ):
        fix = "Give the value to reach, or None to get as far as possible."
        raise SettingsError("tune, `target`", "a finite number, or None", f"{target!r}", fix)
    at_least("seed", seed, 0)
    options, space = {**_renamed(options), "seed": seed}, _renamed(space or {})
    check_space(graph, space, options)
    budget, graphs = Budget(budget_s), Graphs(graph)
    some = graphs.of({name: values[0] for name, values in space.items() if name not in Settings.__dataclass_fields__})
    train, held_out = _split(some, data, valid, seed)
    per_instance = n_examples(data) / len(data)
    with Reporter(progress) as reporter:
        given = graphs, tx, train, held_out, cost, cores or cores_here(), budget, per_instance, reporter
        search = Search(Predictor(*given), Goal(metric, target), np.random.default_rng(seed))
        tuned = search.run(candidates(full_space(some, train, space, options), options), seed)
    if target is not None and not tuned.is_reached:
        _warn(tuned)
    return tuned


@dataclass
class Search:
    """A search that is under way.

    Args:
      predictor: Prepares and simulates.
      goal: What is to be reached.
      rng: Draws the order in which choices are simulated.
    """

    predictor: Predictor
    goal: Goal
    rng: np.random.Generator
    prepared: dict[Any, Prepared] = field(default_factory=dict)
    choices: list[Candidate] = field(default_factory=list)

    @property
    def budget(self) -> Budget:
        """What may be spent."""
        return self.predictor.budget

    @property
    def reporter(self) -> Reporter:
        """Shows progress."""
        return self.predictor.reporter

    def run(self, choices: Sequence[Candidate], seed: int) -> Tuned:
        """Simulates, tries, and gives what was found.

        Args:
          choices: All choices.
          seed: For the record.

        Raises:
          SettingsError: If the budget was spent before a choice was tried.
        """
        self.choices = list(choices)
        self.reporter.line(f"tune: {len(choices)} choices, {self.budget.seconds:g} s, seed {seed}")
        trials: list[Trial] = []
        try:
            self._simulate()
            with self.reporter.part("tuning, seconds", max(1, round(self.budget.seconds))) as advance:
                shown = Clock(self.budget, advance)
                trials = self._begin(self._first(), shown)
                trials = contest(trials, lambda so_far: self._begin(self._next(so_far), shown), self.budget, shown)
        except OutOfTime:
            pass
        if not any(trial.pieces for trial in trials):
            raise SettingsError(
                "tune, `budget_s`",
                "enough to try a single choice",
                f"{self.budget.seconds:g} s, spent after {len(self.prepared)} plans were compiled and {sum(c.simulated is not None for c in self.choices)} choices simulated",
                "Give several times that; or fewer values in `space`, since most of it went into compiling for the largest.",
            )
        return self._tuned(trials, seed)

    def _simulate(self) -> None:
        """Prepares plans and simulates their choices, as long as their shares of the budget last, and finds the front.

        Raises:
          OutOfTime: If the budget is spent before.
        """
        self.choices.sort(key=lambda c: (c.settings.get("workers", 1), repr(c.plan_key)))
        longest, done = 0.0, []
        for key, group in groupby(self.choices, key=lambda c: c.plan_key):
            choices = list(group)
            too_late = self.prepared and self.budget.spent_s + longest > PREPARING * self.budget.seconds
            if too_late and not self.predictor.is_compiled(choices):
                done += choices
                continue
            began = self.budget.spent_s
            prepared = self.prepared[key] = self.predictor.prepare(choices)
            cost = self.predictor.cost_of(prepared, choices)
            longest = max(longest, self.budget.spent_s - began)
            until_s = self.budget.spent_s + SIMULATING * self.budget.seconds
            for i in self.rng.permutation(len(choices)):
                self.budget.check()
                if self.budget.spent_s < until_s:
                    choices[i] = self.predictor.simulate(choices[i], prepared, cost)
            done += choices
        simulated = [i for i, c in enumerate(done) if c.simulated is not None]
        for i in non_dominated([done[i].simulated.objectives for i in simulated]):  # type: ignore[union-attr]
            done[simulated[i]] = replace(done[simulated[i]], is_on_front=True)
        self.choices = done
        n_front = sum(c.is_on_front for c in done)
        self.reporter.line(
            f"tune: {len(self.prepared)} plans compiled and measured, {len(simulated)} choices simulated, {n_front} on the front; {self.budget.spent_s:.1f} s"
        )

    def _first(self) -> list[Candidate]:
        """Those of the front to begin with: of the third that a first guess takes for the best, some that differ much."""
        ranked = self._ranked([])
        best = ranked[: max(FIRST_TRIALS, len(ranked) // 3)]
        places = [(*place(c.simulated), math.log2(max(c.simulated.per_s, 1e-9))) for c in best if c.simulated]
        return [best[i] for i in spread(places, FIRST_TRIALS)]

    def _next(self, trials: Sequence[Trial]) -> list[Candidate]:
        """Those of the front that the trials so far make more promising than all that were tried."""
        tried = [trial.choice.simulated for trial in trials if trial.choice.simulated is not None]
        best_s = min(predicted_seconds(tried, trials), default=math.inf)
        needed_s = min((reached[0] for trial in trials if (reached := trial.to_target)), default=0.0)
        if self.predictor.cost is None and self.budget.left_s < max(needed_s, 0.1 * self.budget.seconds):
            return []
        taken = [trial.choice for trial in trials]
        left = [c for c in self._ranked(trials) if c not in taken][:LATER_TRIALS]
        seconds = predicted_seconds([c.simulated for c in left if c.simulated], trials)
        return [c for c, s in zip(left, seconds, strict=True) if s < best_s]

    def _ranked(self, trials: Sequence[Trial]) -> list[Candidate]:
        """The front, the most promising first; of choices with equal figures, which run the same schedule, one."""
        different: dict[Any, Candidate] = {}
        for choice in self.choices:
            if choice.is_on_front and choice.simulated is not None:
                different.setdefault((repr(choice.knobs), choice.simulated), choice)
        choices = list(different.values())
        seconds = predicted_seconds([c.simulated for c in choices if c.simulated], trials)
        return [choices[i] for i in np.argsort(seconds, kind="stable")]

    def _begin(self, choices: Sequence[Candidate], shown: Callable[[], object]) -> list[Trial]:
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
        p, most = self.predictor, len(self.predictor.train)
        if p.cost is None and choice.simulated is not None:
            most = round(choice.simulated.per_s / p.per_instance * self.budget.seconds / PIECES)
        return p.trial(choice, self.prepared[choice.plan_key], self.goal, most)

    def _tuned(self, trials: Sequence[Trial], seed: int) -> Tuned:
        tried = [replace(trial.choice, tried=trial.result()) for trial in trials if trial.pieces]
        taken = [trial.choice for trial in trials if trial.pieces]
        others = sorted(
            (c for c in self.choices if c not in taken), key=lambda c: (not c.is_on_front, c.simulated is None)
        )
        p, goal, budget = self.predictor, self.goal, self.budget
        graph = self.prepared[tried[0].plan_key].graph
        every = [*tried, *others]
        return Tuned(
            every, graph, goal.metric, goal.target, budget.spent_s, budget.seconds, seed, p.per_instance, len(p.train)
        )


@dataclass
class Clock:
    """Shows how much of a budget is spent.

    Args:
      budget: The budget.
      advance: Shows that so many seconds more are spent.
    """

    budget: Budget
    advance: Callable[[int], object]
    shown_s: int = 0

    def __call__(self) -> None:
        """Shows what has been spent since the last call."""
        now = min(int(self.budget.spent_s), round(self.budget.seconds))
        self.advance(now - self.shown_s)
        self.shown_s = now


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names that `Settings` has: the arXiv version's `min_update_frequency` is an interval."""
    return {"min_update_interval" if name == "min_update_frequency" else name: v for name, v in settings.items()}


def _split(graph: Graph, data: Data, valid: Data | None, seed: int) -> tuple[Instances, Instances]:
    """Training instances in a random order, and validation instances."""
    whole = as_instances(graph, data)
    order = np.random.default_rng(seed).permutation(len(whole))
    if valid is not None:
        return Subset(whole, order), as_instances(graph, valid, "validation data")
    if len(whole) < 2:
        fix = "Pass more, or some for validation as `valid`."
        raise SettingsError("tune, `data`", "two instances at least, one of them for validation", "one", fix)
    n = min(HELD_OUT, max(1, len(whole) // 10))
    return Subset(whole, order[n:]), Subset(whole, order[:n])


def _warn(tuned: Tuned) -> None:
    """Warns that no trial has reached the target."""
    tried = tuned.best.tried
    assert tried is not None
    warning = SettingsError(
        "tune, `target`",
        f"{tuned.metric} {tuned.target:g} within {tuned.budget_s:g} s",
        f"{tried.best:.4g} at best, after {tried.seconds:.3g} s of training",
        "The settings are those that came closest; raise `budget_s`, or choose a nearer target.",
    )
    warnings.warn(str(warning), TuningWarning, stacklevel=3)
