"""A runner's training: plans at the first batch, steps, partition searches, saves, and recovery after a loss of processes.

Owns the order of these things and the counts. The model itself, files and reports are elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ampjax.errors import (
    EquivalenceWarning,
    HostError,
    IdWarning,
    ParameterError,
    ServerError,
    SettingsError,
    TableError,
)
from ampjax.optim.staleness_state import keep_staleness_if_used
from ampjax.parallel.assigned_state import AssignableState, leaves_of
from ampjax.parallel.checkpoints import runner_files
from ampjax.parallel.checkpoints.runner_checkpoints import RunnerCheckpoints
from ampjax.parallel.config.partitioner import Partitioner, PartitionGroup
from ampjax.parallel.config.trainable_params import checked_params
from ampjax.parallel.equivalence.watch import EquivalenceWatch
from ampjax.parallel.homes.assigned_rows import AssignedRows
from ampjax.parallel.not_finite import with_cause
from ampjax.parallel.planning.build_runner import RunnerSetup, build_step
from ampjax.parallel.planning.search_timing import Searches
from ampjax.parallel.planning.variable_plan import plan_variables
from ampjax.parallel.report import StepTotals
from ampjax.parallel.runner_model import BuiltModel, InitialModel, with_tables_of
from ampjax.parallel.steps.asynchronous_steps import AsyncStep
from ampjax.parallel.steps.step_outcome import Metrics, select_fetched
from ampjax.parallel.steps.synchronous_steps import Dropped
from ampjax.parallel.workers.recovered_losses import RecoveredLosses
from ampjax.parallel.workers.recovery import Recoverer
from ampjax.parallel.workers.workers_step import WorkersStep
from ampjax.utils.freed_memory import give_back_freed_memory

Tree = Any


class Training:
    """A model, and how far its training has come.

    It has more than 15 methods, since it alone knows in which order things happen.

    Args:
      setup: What it is trained with.
      params: The first parameters.
      partitioners: The user's partitioners.
      clock: Gives seconds; for the partition search.

    Attributes:
      setup: The same.
      model: The model: before the first batch its parameters only.
      steps: Steps taken so far, those before a restored checkpoint among them.
      totals: Sums over these steps, for reports.
      searches: The partition searches; None before the first batch, and where none is wanted.
      checkpoints: The checkpoints that are written between steps.
      state: The optimizer's state as users look at it and write to it.
      recoverer: Goes on after a loss of processes; None where nothing can be lost, or nothing is saved.
    """

    def __init__(
        self,
        setup: RunnerSetup,
        params: Tree,
        partitioners: Sequence[Partitioner],
        clock: Callable[[], float],
    ):
        first = checked_params(params)
        self.setup = replace(setup, tx=keep_staleness_if_used(setup.tx, first))
        self.steps = 0
        self.model: InitialModel | BuiltModel = InitialModel(self.setup.tx, first)
        self._partitioners = list(partitioners)
        self._clock = clock
        self.searches: Searches | None = None
        self._found: tuple[PartitionGroup, int] | None = (
            None  # how a search that has just ended wants tables to be split
        )
        self.totals = StepTotals()
        self.checkpoints = RunnerCheckpoints(setup.config.checkpoint)
        self.recoverer: Recoverer | None = None
        if setup.group is not None and setup.config.checkpoint is not None:
            self.recoverer = Recoverer(
                self._go_back_to,
                self._go_back_to_begin,
                self._step_again,
                lambda leaves: self.built.assign_state(leaves),
            )
            self.recoverer.begin_at(first)
        self.state = AssignableState(lambda: self.model, self._assign_state)
        self._losses = RecoveredLosses(lambda error: self._recover(error, self.steps + 1))

    @property
    def built(self) -> BuiltModel:
        """The model after its first batch.

        Raises:
          SettingsError: If there was none.
        """
        if isinstance(self.model, InitialModel):
            raise SettingsError(
                "runner", "a batch first", "none yet", "Call `run`, or `build` with a batch."
            )
        return self.model

    # ---- the first batch ---------------------------------------------------------------------------------------------

    def build(self, parts: Sequence[Tree]) -> None:
        """Plans and builds, at the first batch. Nothing has changed after an error.

        Args:
          parts: By replica its part of the batch.

        Raises:
          AmpError: As `Runner.run`.
        """
        if isinstance(self.model, BuiltModel):
            return
        self.checkpoints.begin()
        self.model = self._build_model(self.model, parts)
        # Tables have the rows now: the first parameters, where nobody else has them, were a copy of all.
        give_back_freed_memory()
        for error in self.model.watch.found.errors:
            warnings.warn(str(error), EquivalenceWarning, stacklevel=3)

    def _build_model(self, initial: InitialModel, parts: Sequence[Tree]) -> BuiltModel:
        setup = self.setup
        first = initial.first
        tables = None if initial.checkpoint is None else runner_files.tables_of(initial.checkpoint)
        settings = setup.resources, setup.config, self._partitioners, setup.tx
        plan = plan_variables(setup.loss_fn, first, parts, *settings, tables)
        model = BuiltModel(
            setup, plan, build_step(setup, plan, first), EquivalenceWatch(setup, plan)
        )
        saved = None if initial.checkpoint is None else model.restore(initial.checkpoint)
        if initial.state is not None:
            model.assign_state(leaves_of(initial.state))
        model.watch.first(model.step, parts)
        self.steps = self.steps if saved is None else saved.step
        notes = None if self.searches is None else self.searches.notes
        self.searches = self._begin_searches(model, notes if saved is None else saved.notes)
        return model

    def _begin_searches(
        self, model: BuiltModel, notes: Mapping[str, Any] | None
    ) -> Searches | None:
        """Begins the partition searches. Searches that an earlier run ended on as many machines are not repeated, but their results used. None if no search is wanted."""
        groups: Sequence[PartitionGroup] = model.plan.groups
        if not (self.setup.config.search_partitions and groups):
            return None
        searches = Searches(
            groups,
            len(self.setup.resources.machines),
            self.setup.config.sample,
            notes,
        )
        chosen = {result.label: result.partitions for result in searches.results}
        for group in groups:
            if group.label in chosen:
                model.resplit(group, chosen[group.label])
        return searches

    # ---- steps -------------------------------------------------------------------------------------------------------

    def take_step(
        self,
        parts: Sequence[Tree],
        wanted: Sequence[str],
        following: Sequence[Tree] | None = None,
    ) -> Metrics:
        """Takes one step over all replicas, and then any other split of tables or checkpoint that is due.

        Args:
          parts: By replica its part of the batch.
          wanted: What of the aggregated gradients to read.
          following: By replica its part of the next batch, if it is known.

        Returns:
          The step's metrics.

        Raises:
          AmpError: As `Runner.run`.
        """
        model = self.built
        number = self.steps + 1
        metrics = None
        dropped = ()
        self.state.adopt()
        self.state.accept()  # the tree that was given last is of the state before this step
        while True:
            try:
                if metrics is None:
                    for error in model.watch.later(number, model.step, parts):
                        warnings.warn(str(error), EquivalenceWarning, stacklevel=3)
                    if warning := model.ids.look(parts):
                        warnings.warn(warning, IdWarning, stacklevel=3)
                    if following is not None and isinstance(model.step, WorkersStep):
                        model.step.announce(following)
                    metrics, dropped = self._step(model, parts, wanted)
                self._split_as_found(model)
                path = self.checkpoints.save_if_due(self.steps, self.save)
                if path is not None and self.recoverer is not None:
                    self.recoverer.begin_at(path)
                break
            except (HostError, ServerError) as error:
                self._recover(error, number)
        if dropped:
            raise with_cause(
                dropped[0].error,
                self.setup,
                model.plan,
                model.step,
                [dropped[0].part],
            )
        return metrics

    def _step(
        self, model: BuiltModel, parts: Sequence[Tree], wanted: Sequence[str]
    ) -> tuple[Metrics, Sequence[Dropped]]:
        """Takes a step; also returns the dropped gradients, for a warning to the user after the step."""
        searches = self.searches
        if searches is not None and (next_split := searches.next_request()) is not None:
            model.resplit(*next_split)
        before = self.setup.wire.traffic()
        start = self._clock()
        n_updates = model.step.n_updates
        try:
            outcome = model.step(self.steps + 1, parts, bool(wanted))
        except (ParameterError, TableError) as error:
            raise with_cause(
                error,
                self.setup,
                model.plan,
                model.step,
                parts,
            ) from None
        except KeyboardInterrupt:
            if (
                model.step.n_updates > n_updates
            ):  # it had waited until all was written: the step counts
                self._count({}, parts)
            raise
        if wanted:
            read = select_fetched(wanted, model.readable(outcome.gradients()))
        else:
            read = {}
        self._count(outcome.alpha, parts)
        if searches is not None and not searches.is_over:
            jax.block_until_ready((outcome.aux, [np.asarray(loss) for loss in outcome.losses]))
            self._found = searches.record(self._clock() - start)
        may_be_lost = self.recoverer is not None and isinstance(model.step, AsyncStep)
        result = Metrics(
            step=self.steps,
            losses=self._losses.of(self.steps, outcome.losses) if may_be_lost else outcome.losses,
            aux=outcome.aux,
            alpha=model.readable(outcome.alpha),
            traffic=self.setup.wire.traffic() - before,
            staleness=outcome.staleness,
            fetched=read,
            is_mean=self.setup.config.average_dense == "mean",
        )
        return result, outcome.dropped

    def _split_as_found(self, model: BuiltModel) -> None:
        """Splits a group of tables by the result of an ended search: after its step, which must not be taken twice if a process is lost here."""
        if self._found is not None:
            model.resplit(*self._found)
            self._found = None

    def _count(
        self,
        alpha: Mapping[str, float],
        parts: Sequence[Tree] | None = None,
    ) -> None:
        self.steps += 1
        self.totals.add(alpha)
        if self.recoverer is not None and parts is not None:
            self.recoverer.note_step(parts)

    # ---- other states ------------------------------------------------------------------------------------------------

    def _assign_state(self, leaves: Mapping[str, Any]) -> None:
        """Replaces leaves of the optimizer's state between steps."""
        if self.recoverer is not None:
            self.recoverer.note_state(leaves)
        try:
            self.model.assign_state(leaves)
        except (HostError, ServerError) as error:
            self._recover(error, self.steps + 1)

    def assign_rows(
        self,
        name: str,
        ids: Any,
        values: Any,
    ) -> None:
        """Gives some rows of a variable new values and fresh optimizer state between steps.

        Raises:
          AmpError: As `Runner.assign_rows`.
        """
        new = self.model.check_rows(name, ids, values)
        if not len(new.ids):
            return
        self.state.adopt()
        self.state.accept()  # the tree that was given last is of the state before
        try:
            self.model.assign_rows(new)
        except (HostError, ServerError) as error:
            self._note_rows(new)
            self._recover(error, self.steps + 1)
        else:
            self._note_rows(new)

    def grow_rows(self, name: str, values: Any) -> None:
        """Appends rows to a variable. The model is built anew at the next batch, with its parameters and optimizer state.

        Raises:
          AmpError: As `Runner.grow_rows`.
        """
        if self.recoverer is not None:
            raise SettingsError(
                "grow_rows",
                "a runner whose lost processes are not replaced",
                "one with `checkpoint`, whose checkpoints have fewer rows",
                "Give the table at first as many rows as it may ever have.",
            )
        self.state.adopt()
        model = self.model
        longer = model.with_more_rows(name, values)
        self.state.accept()
        if isinstance(model, BuiltModel):
            self.checkpoints.claim()
            if self.setup.group is not None:
                self.setup.group.end()  # workers have the old program
        self.model = longer

    def _note_rows(self, new: AssignedRows) -> None:
        """Keeps an assignment, so that a recovery can repeat the assignment."""
        if self.recoverer is not None:
            self.recoverer.note(lambda: self.built.assign_rows(new))

    def reset(self, params: Tree) -> None:
        """Starts anew from other parameters; compiled programs, plans and splits stay.

        Args:
          params: Parameters like the first ones.

        Raises:
          ParameterError: If they are not.
          SettingsError: Before the first batch.
        """
        self.built.reset(params)
        self.steps = 0
        self.state.accept()
        if self.recoverer is not None:
            self.recoverer.begin_at(checked_params(params))

    def save(
        self,
        path: str | Path,
        base: str | Path | None = None,
    ) -> None:
        """Writes a checkpoint, with the results of the partition searches.

        Args:
          path: Where to.
          base: The checkpoint that it continues; None writes all rows.

        Raises:
          AmpError: As `Runner.save`.
        """
        self.state.adopt()
        self.built.save(
            path,
            self.steps,
            None if self.searches is None else self.searches.notes,
            base,
        )

    def restore(self, path: str | Path) -> None:
        """Continues from a checkpoint, which is read when the model is built if there was no batch yet.

        Raises:
          AmpError: As `Runner.restore`.
        """
        model = self.model
        if (
            isinstance(model, BuiltModel)
            and (other := with_tables_of(path, model, self._partitioners)) is not None
        ):
            self.model, restored = other
            self.searches = self._begin_searches(self.model, restored.notes)
        else:
            restored = model.restore(path)
        self.state.accept()
        self.steps = restored if isinstance(restored, int) else restored.step
        self.checkpoints.claim()
        if self.recoverer is not None:
            self.recoverer.begin_at(Path(path))

    # ---- lost processes ----------------------------------------------------------------------------------------------

    def _recover(self, error: HostError | ServerError, step: int) -> None:
        """Goes on after a loss of processes, or raises the error again."""
        group = self.setup.group
        if self.recoverer is None or group is None or not group.is_lost:
            raise error
        steps = self.steps
        try:
            self.recoverer.recover(error, step)
        except BaseException:
            group.end()  # the model is at an earlier step than the user knows of: the next step has to go back again
            self.steps = steps
            raise

    def _go_back_to(self, path: Path) -> int:
        self.steps = self.built.restore(path).step
        return self.steps

    def _go_back_to_begin(self, params: Tree) -> None:
        self.built.reset(params)
        self.steps = 0

    def _step_again(self, parts: Sequence[Tree]) -> None:
        outcome = self.built.step(self.steps + 1, parts, False)
        self._count(outcome.alpha)
        self._losses.replace(self.steps, outcome.losses)
