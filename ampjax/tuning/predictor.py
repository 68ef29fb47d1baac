"""Simulates choices of settings on a machine like this one, with measured times, and prepares what their trials share.

Choices with the same graph on the same workers share arenas of one size, those of the largest choice. So they share kernels: all of them
are compiled once, and each further choice can be tried at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
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
from ampjax.simulation.profile import Profile, quickest
from ampjax.simulation.profile_cost import HostedCost
from ampjax.simulation.simulate import simulate, training_times
from ampjax.train.runs import single_passes
from ampjax.train.settings import Settings
from ampjax.train.trainer import Trainer
from ampjax.tuning.budget import Budget
from ampjax.tuning.built_graphs import Graphs
from ampjax.tuning.candidate import Candidate, Figures
from ampjax.tuning.trial import Goal, Trial
from ampjax.utils.blocking import blocking
from ampjax.utils.progress import SILENT, Reporter

SIMULATED = 128
"""Instances of a simulated pass, at least."""

PROFILED = 48
"""Instances of a measured pass, at least."""

PASSES, MEASURING = 3, 0.03
"""How often it is measured at most, and the share of the budget after which once is enough, both for each of two sizes of dispatches. Least times count, since
the machine may do other things meanwhile."""

MakeCost = Callable[[Plan], Any]


@dataclass(frozen=True)
class Prepared:
    """What choices with the same graph on the same workers share.

    Args:
      graph: The graph.
      arena_rows: Rows of each arena, so that all of them run the same kernels.
      keeper: The trainer of the largest choice, which keeps the kernels; its parameters are of no use.
    """

    graph: Graph
    arena_rows: int
    keeper: Trainer


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

    graphs: Graphs
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

    def prepare(self, choices: Sequence[Candidate]) -> Prepared:
        """Compiles what some choices with the same `plan_key` need.

        Args:
          choices: The choices.

        Raises:
          OutOfTime: If the budget ends before.
          SettingsError, MessageError: As `Trainer` and `Trainer.fit`.
        """
        sized = self._sized(choices)
        train, valid = sized.session.train_and_valid(self.train, self.valid)
        blocking(sized.session.preparation.prepare(train, valid, SILENT, warm=False))
        rows = max(sized.session.scheduler.settings.capacities.values(), default=2)
        settings = replace(sized.settings, arena_rows=rows)
        trainer = Trainer(sized.graph, self.tx, cost=self.cost, settings=settings)
        blocking(self.budget.within(single_passes.warm_up(trainer.session, train, valid, self.reporter)))
        self._compiled.add(_stages_of(trainer))
        return Prepared(sized.graph, rows, trainer)

    def is_compiled(self, choices: Sequence[Candidate]) -> bool:
        """Whether others with the same stages were prepared, so that these share their kernels and their profile.

        Args:
          choices: Choices with the same `plan_key`.
        """
        return _stages_of(self._sized(choices)) in self._compiled

    def _sized(self, choices: Sequence[Candidate]) -> Trainer:
        """A trainer of the largest of some choices, for which nothing is compiled."""
        return Trainer(self.graphs.of(choices[0].knobs), self.tx, cost=self.cost, settings=_largest(choices))

    def simulate(self, choice: Candidate, prepared: Prepared, cost: MakeCost) -> Candidate:
        """The choice with what a simulated pass tells of it.

        Args:
          choice: The choice.
          prepared: What it shares with others.
          cost: Makes the cost model.

        Raises:
          SettingsError: If training takes no time on that machine.
        """
        settings = Settings(**choice.settings)
        n = min(len(self.train), max(SIMULATED, 4 * settings.in_flight))
        some = Subset(self.train, np.random.default_rng(settings.seed).permutation(len(self.train))[:n])
        run = simulate(prepared.graph, some, cost=cost, tx=self.tx, **choice.settings)
        if not run.seconds:
            fix = "Give the machine a latency, or fewer operations per second."
            raise SettingsError(
                "tune, `cost`", "a machine on which training takes time", "one where it takes none", fix
            )
        nodes = max(1, len(run.stats.nodes))
        figures = Figures(run.per_s * self.per_instance, run.stats.staleness_mean, run.stats.updates / nodes / n)
        return replace(choice, simulated=figures)

    def trial(self, choice: Candidate, prepared: Prepared, goal: Goal, most: int) -> Trial:
        """A trial of a choice, with the kernels that it shares.

        Its pieces are an eighth of the training instances, so that progress is seen within an epoch, but long enough for the instances in flight to come
        and go several times.

        Args:
          choice: The choice.
          prepared: What it shares with others.
          goal: What is to be reached.
          most: Instances of a piece at most, if that is more than are in flight.
        """
        settings = Settings(**{**choice.settings, "arena_rows": prepared.arena_rows, "compile_ahead": True})
        trainer = Trainer(prepared.graph, self.tx, cost=self.cost, settings=settings)
        piece = min(len(self.train), max(1, 8 * settings.in_flight, min(most, len(self.train) // 8)))
        return Trial(choice, trainer, self.train, self.valid, goal, piece, self.per_instance)

    def cost_of(self, prepared: Prepared, choices: Sequence[Candidate]) -> MakeCost:
        """The cost model that choices are simulated with: of this machine, it is measured, with full dispatches and with small ones.

        Graphs whose stages are the same share what was measured.

        Args:
          prepared: What the choices share.
          choices: The choices.

        Raises:
          OutOfTime: If the budget ends before.
        """
        if self.cost is not None:
            return self.cost
        trainer = prepared.keeper
        session, executor, key = trainer.session, trainer.session.executor, _stages_of(trainer)
        assert isinstance(executor, Executor)
        if key not in self._profiles:
            settings, sizes = session.scheduler.settings, [c.settings.get("max_dispatch_size", 64) for c in choices]
            n = min(len(self.train), max(PROFILED, min(settings.max_active_keys, SIMULATED)))
            some, tables = Subset(self.train, np.arange(n)), []
            for size in sorted({min(sizes), max(sizes)}, reverse=True):
                scheduler = Scheduler(trainer.plan, replace(settings, max_dispatch_size=size, min_admission=1))
                until_s = self.budget.spent_s + MEASURING * self.budget.seconds
                for found in islice(training_times(scheduler, executor, some, trainer.settings.seed), PASSES):
                    tables += found
                    self.budget.check()
                    if self.budget.spent_s > until_s:
                        break
            self._profiles[key] = quickest(tables)
        return partial(HostedCost, profile=self._profiles[key], cores=self.cores)


def cores_here() -> float:
    """Cores of this machine that its devices share with the host: on GPUs none, so there are enough for all."""
    if jax.default_backend() != "cpu":
        return float(len(jax.devices()) + 1)
    return float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _stages_of(trainer: Trainer) -> str:
    """What two trainers share whose kernels are the same: stages, arenas, workers and the shapes of parameters."""
    stages = [(stage.name, stage.arenas, stage.worker) for stage in trainer.plan.stages]
    return repr((stages, trainer.plan.spaces, jax.tree.map(np.shape, dict(trainer.session.executor.store.params))))


def _largest(choices: Sequence[Candidate]) -> Settings:
    """Settings that need the largest arenas and the most kernels of all."""
    first, sized = dict(choices[0].settings), ("max_active_keys", "max_dispatch_size")
    usual = {name: getattr(Settings, name) for name in sized}
    most = {name: max(c.settings.get(name, usual[name]) for c in choices) for name in sized}
    least = {"min_update_interval": min(c.settings.get("min_update_interval", 1) for c in choices), "min_admission": 1}
    return Settings(**{**first, **most, **least, "compile_ahead": True})
