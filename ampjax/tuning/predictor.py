"""Simulates choices of settings on a machine like this one, with measured times, and prepares the common part of their trials.

Choices with the same graph on the same workers share arenas of one size, those of the largest choice. So they share kernels: each is compiled
once, when the measurement or a trial first needs it. Few sizes of dispatches are measured, and times between them are interpolated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from ampjax.drivers.cost import Cost
from ampjax.engine.executor import Executor
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances, Subset
from ampjax.plan.planner import Plan
from ampjax.sched.scheduler import Scheduler
from ampjax.simulation.calls import few_sizes
from ampjax.simulation.measuring import calls_of, training_times
from ampjax.simulation.profile import Profile, quickest
from ampjax.simulation.profile_cost import HostedCost
from ampjax.simulation.simulate import simulate
from ampjax.train.settings import Settings
from ampjax.train.trainer import Trainer
from ampjax.tuning.budget import Budget
from ampjax.tuning.built_graphs import BuiltGraphs
from ampjax.tuning.candidate import Candidate, Figures
from ampjax.tuning.trial import Goal, Trial
from ampjax.utils.blocking import blocking
from ampjax.utils.progress import SILENT, Reporter

SIMULATED = 128
"""Instances of a simulated pass, at least."""

PROFILED = 48
"""Instances of a measured pass, at least."""

ENOUGH = 5
"""How often a call is measured, of each size. Least times count, since the machine may do other things meanwhile."""

MakeCost = Callable[[Plan], Any]


@dataclass(frozen=True)
class Prepared:
    """The common part of choices with the same graph on the same workers.

    Args:
      graph: The graph.
      arena_rows: Rows of each arena, so that all of them run the same kernels.
      keeper: The trainer of the largest choice. Kernels are measured and compiled with its parameters, which are of no use afterwards, and it evaluates
        those of trials, all with the same kernels.
      value: The metric of the parameters with which trials begin that have the keeper's seed.
    """

    graph: Graph
    arena_rows: int
    keeper: Trainer
    value: float


@dataclass
class Predictor:
    """Prepares and simulates choices.

    Args:
      graphs: The choices' graphs.
      tx: The optimizer of nodes that have none of their own.
      train: Training instances.
      valid: Validation instances.
      cost: Makes the cost model of a machine that is not here; None for this one, which is then measured.
      cores: Cores of this machine.
      budget: What may be spent.
      per_instance: Training examples in an instance.
      reporter: Shows compilations.
    """

    graphs: BuiltGraphs
    tx: optax.GradientTransformation | None
    train: Instances
    valid: Instances
    cost: Callable[[Plan], Cost] | None
    cores: float
    budget: Budget
    per_instance: float = 1.0
    reporter: Reporter = SILENT
    _compiled: set[str] = field(default_factory=set)
    _profiles: dict[str, Profile] = field(default_factory=dict)

    def prepare(self, choices: Sequence[Candidate], metric: str) -> Prepared:
        """Sizes the arenas that choices with the same `plan_key` share, and evaluates their initial parameters.

        Raises:
          OutOfTime: If the budget ends before.
          SettingsError, MessageError: As `Trainer` and `Trainer.fit`.
        """
        sized = self._make_largest(choices)
        train, valid = sized.session.train_and_valid(self.train, self.valid)
        blocking(sized.session.preparation.prepare(train, valid, SILENT, warm=False))
        rows = max(
            sized.session.scheduler.settings.capacities.values(),
            default=2,
        )
        settings = replace(sized.settings, arena_rows=rows)
        trainer = Trainer(
            sized.graph,
            self.tx,
            cost=self.cost,
            settings=settings,
        )
        blocking(trainer.session.preparation.prepare(train, valid, SILENT, ahead=False))
        with trainer.session.preparation.showing_postponed(self.reporter):
            value = blocking(self.budget.within(trainer.evaluate_async(self.valid)))[metric]
        trainer.session.preparation.leave_to_calls()
        self._compiled.add(_stages_of(trainer))
        return Prepared(sized.graph, rows, trainer, value)

    def is_compiled(self, choices: Sequence[Candidate]) -> bool:
        """Tells whether other choices with the same stages were prepared, whose kernels and profile these ones share.

        Args:
          choices: Choices with the same `plan_key`.
        """
        return _stages_of(self._make_largest(choices)) in self._compiled

    def _make_largest(self, choices: Sequence[Candidate]) -> Trainer:
        """A trainer of the largest of some choices, for which nothing is compiled."""
        return Trainer(
            self.graphs.of(choices[0].knobs),
            self.tx,
            cost=self.cost,
            settings=_largest(choices),
        )

    def simulate(self, choice: Candidate, prepared: Prepared, cost: MakeCost) -> Candidate:
        """Adds a simulated pass's figures to a choice.

        Args:
          choice: The choice.
          prepared: What it shares with others.
          cost: Makes the cost model.

        Raises:
          SettingsError: If training takes no time on that machine.
        """
        settings = Settings(**choice.settings)
        n = min(
            len(self.train),
            max(SIMULATED, 4 * settings.in_flight),
        )
        some = Subset(
            self.train,
            np.random.default_rng(settings.seed).permutation(len(self.train))[:n],
        )
        run = simulate(
            prepared.graph,
            some,
            cost=cost,
            tx=self.tx,
            **choice.settings,
        )
        if not run.seconds:
            fix = "Give the machine a latency, or fewer operations per second."
            raise SettingsError(
                "tune, `cost`",
                "a machine on which training takes time",
                "one where it takes none",
                fix,
            )
        nodes = max(1, len(run.stats.nodes))
        figures = Figures(
            run.per_s * self.per_instance,
            run.stats.staleness_mean,
            run.stats.updates / nodes / n,
        )
        return replace(choice, simulated=figures)

    def trial(
        self,
        choice: Candidate,
        prepared: Prepared,
        goal: Goal,
        most: int,
    ) -> Trial:
        """Makes a trial of a choice, with the shared kernels.

        Its pieces are an eighth of the training instances, so that progress is seen within an epoch, but long enough for the instances in flight to come
        and go several times.

        Args:
          choice: The choice.
          prepared: What it shares with others.
          goal: What is to be reached.
          most: Instances of a piece at most, if that is more than are in flight.
        """
        settings = Settings(**{**choice.settings, "arena_rows": prepared.arena_rows})
        trainer = Trainer(
            prepared.graph,
            self.tx,
            cost=self.cost,
            settings=settings,
        )
        piece = min(
            len(self.train),
            max(
                1,
                8 * settings.in_flight,
                min(most, len(self.train) // 8),
            ),
        )
        value = prepared.value if settings.seed == prepared.keeper.settings.seed else None
        return Trial(
            choice,
            trainer,
            self.train,
            self.valid,
            goal,
            piece,
            self.per_instance,
            prepared.keeper,
            value,
            self.cost is not None,
        )

    def cost_of(self, prepared: Prepared, choices: Sequence[Candidate]) -> MakeCost:
        """Makes the cost model for simulations of choices, measured on this machine with full and with small dispatches, of few sizes.

        Graphs whose stages are the same share what was measured.

        Raises:
          OutOfTime: If the budget ends before.
        """
        if self.cost is not None:
            return self.cost
        trainer = prepared.keeper
        session = trainer.session
        executor = trainer.session.executor
        key = _stages_of(trainer)
        assert isinstance(executor, Executor)
        if key not in self._profiles:
            settings = session.scheduler.settings
            sizes = [Settings(**c.settings).dispatch_limit for c in choices]
            n = min(
                len(self.train),
                max(PROFILED, min(settings.max_active_keys, SIMULATED)),
            )
            some = Subset(self.train, np.arange(n))
            seed = trainer.settings.seed
            schedulers = []
            for size in sorted({min(sizes), max(sizes)}, reverse=True):
                schedulers.append(
                    Scheduler(
                        trainer.plan, replace(settings, max_dispatch_size=size, min_admission=1)
                    )
                )
            few = few_sizes(
                call for s in schedulers for call in calls_of(s, executor, some, seed).seen
            )
            passes = []
            for s in schedulers:
                passes.append(
                    training_times(s, executor, some, seed, ENOUGH, few, self.budget.check)
                )
            tables = []
            for measured in passes:
                for table in next(measured):
                    tables.append(table)
            self._profiles[key] = quickest(tables)
        return partial(HostedCost, profile=self._profiles[key], cores=self.cores)


def cores_here() -> float:
    """Cores of this machine that its devices share with the host: on GPUs none, so there are enough for all."""
    if jax.default_backend() != "cpu":
        return float(len(jax.devices()) + 1)
    return float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def _stages_of(trainer: Trainer) -> str:
    """Computes the key that two trainers with the same kernels share: stages, arenas, workers and the shapes of parameters."""
    stages = []
    for stage in trainer.plan.stages:
        stages.append((stage.name, stage.arenas, stage.worker))
    return repr(
        (
            stages,
            trainer.plan.spaces,
            jax.tree.map(
                np.shape,
                dict(trainer.session.executor.store.params),
            ),
        )
    )


def _largest(choices: Sequence[Candidate]) -> Settings:
    """Settings that need the largest arenas and the most kernels of all."""
    first = dict(choices[0].settings)
    of_choices = [Settings(**c.settings) for c in choices]
    most = {
        "max_active_keys": max(s.max_active_keys for s in of_choices),
        "max_dispatch_size": max(s.dispatch_limit for s in of_choices),
    }
    least = {
        "min_update_interval": min(c.settings.get("min_update_interval", 1) for c in choices),
        "min_admission": 1,
    }
    return Settings(**{**first, **most, **least})
