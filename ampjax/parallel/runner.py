"""The runner: hybrid data parallelism from a single-device program (Parallax).

Takes a loss function, parameters and an optimizer; plans at the first batch; then each `run` is one step over all replicas. Owns
the order of things and the counts; planning, steps, files and reports are elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ampjax.errors import AmpError, EquivalenceWarning, HostError, ServerError, SettingsError
from ampjax.optim.told_staleness import told_if_asked
from ampjax.parallel import runner_files
from ampjax.parallel.config.partitioner import Group, Partitioner
from ampjax.parallel.config.trainable_params import checked_params
from ampjax.parallel.equivalence.compare import Equivalence, check_equivalence
from ampjax.parallel.explanation import Explanation
from ampjax.parallel.planning.build_runner import RunnerSetup, Step, build_step
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.search_timing import Searches
from ampjax.parallel.planning.variable_plan import VariablePlan, plan_variables
from ampjax.parallel.report import StepTotals, explain
from ampjax.parallel.runner_checkpoints import RunnerCheckpoints
from ampjax.parallel.runner_model import BuiltModel, InitialModel
from ampjax.parallel.shard import split_batch
from ampjax.parallel.steps.step_outcome import Metrics, checked_fetch, fetched
from ampjax.parallel.workers.process_group import ProcessState
from ampjax.parallel.workers.recovery import Recoverer, Recovery
from ampjax.utils.counted import counted
from ampjax.utils.setting_checks import at_least

Tree = Any


class Runner:
    """A model in training. Made by `get_runner`.

    It is all that a user of hybrid training holds, so most of its methods are the user's: they train, read and write the model. What they
    do to the model is `BuiltModel`'s.

    Args:
      setup: What it is trained with.
      params: The first parameters.
      partitioners: The user's partitioners.
      clock: Gives seconds; for the partition search.

    Attributes:
      steps: Steps taken so far, those before a restored checkpoint among them.
    """

    def __init__(
        self, setup: RunnerSetup, params: Tree, partitioners: Sequence[Partitioner], clock: Callable[[], float]
    ):
        first = checked_params(params)
        self.setup, self.steps = replace(setup, tx=told_if_asked(setup.tx, first)), 0
        self._model: InitialModel | BuiltModel = InitialModel(self.setup.tx, first)
        self._partitioners, self._clock = list(partitioners), clock
        self._searches: Searches | None = None
        self._found: tuple[Group, int] | None = None  # how a search that has just ended wants tables to be split
        self._equivalence = Equivalence(skipped="there was no batch yet")
        self._totals = StepTotals()
        self._checkpoints = RunnerCheckpoints(setup.config.checkpoint)
        self._recoverer: Recoverer | None = None
        if setup.group is not None and setup.config.checkpoint is not None:
            self._recoverer = Recoverer(self._go_back_to, self._go_back_to_begin, self._step_again)
            self._recoverer.begin_at(first)

    def __repr__(self) -> str:
        resources = self.setup.resources
        sizes = counted(len(resources.machines), "machine"), counted(len(resources.devices), "replica")
        return f"Runner({', '.join(sizes)}, {counted(self.steps, 'step')})"

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends its processes, if it has any, and with them what they hold: read or save it before.

        The end of a `with` block does this too, and so does the end of the runner or of this process.
        """
        if self.setup.group is not None:
            self.setup.group.close()
        if self.setup.processes is not None:
            self.setup.processes.close()

    # ---- training ----------------------------------------------------------------------------------------------------

    def run(self, batch: Tree, fetch: str | Sequence[str] = ()) -> Metrics:
        """One step over all replicas.

        Ids outside of a table do what they do on one device, by JAX's gather mode: ids from -n to -1 count from the end of n rows; beyond
        that `x[ids]` reads the nearest row, and `jnp.take` NaN, which stops the step; neither has a gradient.

        Args:
          batch: A joined batch, which is cut into as many parts as there are replicas, or `Parts`, as `shard` gives them.
          fetch: What of the aggregated gradients to read: `gradients` (by path: an array, or `RowGrads` for a sparse variable),
            `norms` (by path), `global_norm`.

        Returns:
          The step's metrics.

        Raises:
          SettingsError: If the replicas don't divide the batch, or `fetch` names something else.
          ParameterError: If a gradient is not finite. Nothing has changed then, as after all errors but a `ServerError`. Without a barrier
            it may be of an earlier step: then that gradient alone is dropped, and this step has been taken and counted.
          TableError: If a row's gradient is not finite; or, at the first batch, if the optimizer is not row-wise on a table.
          DataError: If the batch is not like the first one.
          EquivalenceError: At the first batch, if the joined batch's loss is not what replicas make of it, where the settings ask for it.
          ServerError: If a server's process has ended. `restore` goes on from a checkpoint, with a new process.
          HostError: If a worker's process has ended, or gives no sign of life; likewise. With `ParallaxConfig(checkpoint=...)` all processes
            are started anew instead, and all steps since the last checkpoint taken again (`recoveries`).
        """
        wanted = checked_fetch(fetch, self.setup.config.sync)
        parts = split_batch(batch, len(self.setup.resources.devices))
        metrics, number = None, self.steps + 1
        while True:
            try:
                model = self._built(parts)
                if metrics is None:
                    metrics, dropped = self._step(model, parts, wanted)
                self._split_as_found(model)
                if (path := self._checkpoints.save_if_due(self.steps, self.save)) and self._recoverer is not None:
                    self._recoverer.begin_at(path)
                break
            except (HostError, ServerError) as error:
                self._recover(error, number)
        if dropped:
            raise dropped[0]
        return metrics

    def _step(
        self, model: BuiltModel, parts: Sequence[Tree], wanted: Sequence[str]
    ) -> tuple[Metrics, Sequence[AmpError]]:
        """One step, and which errors are to be told after it."""
        searches = self._searches
        if searches is not None and (next_split := searches.wanted()) is not None:
            model.resplit(*next_split)
        before, start = self.setup.wire.traffic(), self._clock()
        n_updates = model.step.n_updates
        try:
            outcome = model.step(self.steps + 1, parts, bool(wanted))
        except KeyboardInterrupt:
            if model.step.n_updates > n_updates:  # it had waited until all was written: the step counts
                self._count({}, parts)
            raise
        read = fetched(wanted, model.readable(outcome.gradients())) if wanted else {}
        self._count(outcome.alpha, parts)
        if searches is not None and not searches.is_over:
            jax.block_until_ready((outcome.aux, [np.asarray(loss) for loss in outcome.losses]))
            self._found = searches.record(self._clock() - start)
        result = Metrics(
            step=self.steps,
            losses=outcome.losses,
            aux=outcome.aux,
            alpha=model.readable(outcome.alpha),
            traffic=self.setup.wire.traffic() - before,
            staleness=outcome.staleness,
            fetched=read,
            is_mean=self.setup.config.average_dense == "mean",
        )
        return result, outcome.dropped

    def _split_as_found(self, model: BuiltModel) -> None:
        """Splits a group of tables as a search that has ended wants it: after its step, which must not be taken twice if a process is lost here."""
        if self._found is not None:
            model.resplit(*self._found)
            self._found = None

    def build(self, batch: Tree) -> Runner:
        """Plans and builds for a batch, without a step; `run` does it otherwise.

        Args:
          batch: As `run` takes it.

        Returns:
          The runner itself.

        Raises:
          SettingsError: As `run`.
          ParameterError: As `run`.
          TableError: As `run`.
          DataError: As `run`.
          EquivalenceError: As `run`.
        """
        self._built(split_batch(batch, len(self.setup.resources.devices)))
        return self

    def reset(self, params: Tree) -> None:
        """Starts anew from other parameters of the same shapes: what was compiled, planned and split stays.

        Args:
          params: Parameters like the first ones.

        Raises:
          ParameterError: If they have another structure, other shapes or dtypes, or are not finite.
          SettingsError: Before the first batch.
        """
        self._require_built().reset(params)
        self.steps = 0
        if self._recoverer is not None:
            self._recoverer.begin_at(checked_params(params))

    def resplit(self, partitions: int) -> None:
        """Deals the rows of all tables out to another number of partitions; training goes on as it was.

        Args:
          partitions: P; a group of tables gets the nearest number that it may have (see `partitioner`).

        Raises:
          SettingsError: If P is below 1, or before the first batch.
        """
        at_least("partitions", partitions, 1)
        model = self._require_built()
        model.settle()
        for group in model.plan.groups:
            model.resplit(group, min(max(partitions, group.low), group.high))

    def wait(self) -> None:
        """Returns when everything that was begun has ended, so that times can be taken."""
        if isinstance(self._model, BuiltModel):
            self._model.settle().wait()

    def keys(self) -> jax.Array:
        """Random keys for the next step, one for each replica, made of the seed and the step's number.

        Put them into the batch, where a program draws at random: each replica gets `[1]` of them.

        Returns:
          `[n]`.
        """
        key = jax.random.fold_in(jax.random.key(self.setup.config.seed), self.steps)
        return jax.random.split(key, len(self.setup.resources.devices))

    # ---- what it holds -----------------------------------------------------------------------------------------------

    @property
    def params(self) -> Tree:
        """All parameters, a plain pytree of host arrays as the single-device program has them."""
        return self._model.params()

    @property
    def opt_state(self) -> Tree:
        """The optimizer's state, as `tx.init` makes it for the single-device program."""
        return self._model.opt_state()

    @property
    def plan(self) -> VariablePlan | None:
        """What becomes of each variable; None before the first batch."""
        return self._model.plan if isinstance(self._model, BuiltModel) else None

    @property
    def step(self) -> Step:
        """The object that makes steps.

        Raises:
          SettingsError: Before the first batch.
        """
        return self._require_built().step

    @property
    def hosts(self) -> list[ProcessState]:
        """Its servers' and workers' processes, where machines have addresses; none where all is in this process."""
        return [] if self.setup.group is None else self.setup.group.states

    @property
    def recoveries(self) -> list[Recovery]:
        """Losses of processes after which it went on, in order."""
        return [] if self._recoverer is None else list(self._recoverer.recoveries)

    @property
    def searches(self) -> list[SearchResult]:
        """Partition searches that have ended: samples, fit and choice; `ampjax.viz.partitions` draws them."""
        return [] if self._searches is None else list(self._searches.results)

    def explain(self, compiled: bool = True) -> Explanation:
        """What became of each variable, and why.

        Args:
          compiled: Whether the bytes of AllReduce are read from the compiled program, which is compiled once more for that.

        Returns:
          A table to print, with one entry for each variable.

        Raises:
          SettingsError: Before the first batch.
        """
        return explain(self._require_built(), self._totals, self.searches, self._equivalence, compiled=compiled)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes all parameters and optimizer state to a folder, with checksums, in one go.

        Args:
          path: The folder; a checkpoint that is there is replaced.

        Raises:
          SettingsError: Before the first batch, or if the path is none.
          DataError: If the folder holds anything else, or is the one in which the program runs.
        """
        notes = None if self._searches is None else self._searches.notes
        self._require_built().save(path, self.steps, notes)

    def restore(self, path: str | Path) -> None:
        """Goes on from what `save` wrote, once all of it was read and checked.

        Before the first batch it is not known yet where variables live. Then only the parameters' shapes are compared at once, and the
        folder must stay: it is read and checked as a whole at the first batch, and whenever parameters or optimizer state are read before.

        Args:
          path: The folder.

        Raises:
          DataError: If it is of another model.
          TableError: If files are missing, cut off or altered.
        """
        restored = self._model.restore(path)
        self.steps = restored if isinstance(restored, int) else restored.step
        self._checkpoints.claim()
        if self._recoverer is not None:
            self._recoverer.begin_at(Path(path))

    def resume(self) -> int:
        """Goes on from the newest whole checkpoint that `ParallaxConfig(checkpoint=...)` has written, if there is one.

        Called before the first batch, by a program that may have been killed. The run then ends with the same bits as one that was not,
        if it gets the batches that are left: `shard(data, skip=runner.steps)` has them, and `keys` those of the next step.

        Returns:
          The steps that had been taken; 0 if there is no checkpoint.

        Raises:
          SettingsError: If the settings name no folder.
          DataError: If the checkpoint is of another model.
          TableError: If all checkpoints are damaged.

        Warns:
          SnapshotWarning: For each damaged one that was passed over.
        """

        def restore(path: Path) -> None:
            runner_files.require_undamaged(path)
            self.restore(path)

        self._checkpoints.resume(restore)
        return self.steps

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _count(self, alpha: Mapping[str, float], parts: Sequence[Tree] | None = None) -> None:
        self.steps += 1
        self._totals.add(alpha)
        if self._recoverer is not None and parts is not None:
            self._recoverer.note_step(parts)

    def _recover(self, error: HostError | ServerError, step: int) -> None:
        """Goes on after a loss of processes, or raises the error again."""
        group = self.setup.group
        if self._recoverer is None or group is None or not group.is_lost or isinstance(self._model, InitialModel):
            raise error
        steps = self.steps
        try:
            self._recoverer.recover(error, step)
        except BaseException:
            group.end()  # the model is at an earlier step than the user knows of: the next step has to go back again
            self.steps = steps
            raise

    def _go_back_to(self, path: Path) -> int:
        self.steps = self._require_built().restore(path).step
        return self.steps

    def _go_back_to_begin(self, params: Tree) -> None:
        self._require_built().reset(params)
        self.steps = 0

    def _step_again(self, parts: Sequence[Tree]) -> None:
        self._count(self._require_built().step(self.steps + 1, parts, False).alpha)

    def _require_built(self) -> BuiltModel:
        if isinstance(self._model, InitialModel):
            raise SettingsError("runner", "a batch first", "none yet", "Call `run`, or `build` with a batch.")
        return self._model

    def _built(self, parts: Sequence[Tree]) -> BuiltModel:
        """The model, built at the first batch."""
        if isinstance(self._model, InitialModel):
            self._checkpoints.begin()
            self._model = self._build(self._model, parts)
            for error in self._equivalence.errors:
                warnings.warn(str(error), EquivalenceWarning, stacklevel=3)
        return self._model

    def _build(self, initial: InitialModel, parts: Sequence[Tree]) -> BuiltModel:
        """Plans and builds; nothing of this runner has changed after an error."""
        setup, first = self.setup, initial.first
        plan = plan_variables(setup.loss_fn, first, parts, setup.resources, setup.config, self._partitioners)
        model = BuiltModel(setup, plan, build_step(setup, plan, first, parts))
        saved = None if initial.checkpoint is None else model.restore(initial.checkpoint)
        equivalence = check_equivalence(setup, plan, model.step, parts)
        if equivalence.errors and setup.config.check_equivalence == "error":
            raise equivalence.errors[0]
        self._equivalence, self.steps = equivalence, self.steps if saved is None else saved.step
        if setup.config.search_partitions and plan.groups:
            self._searches = self._begin_searches(model, None if saved is None else saved.notes)
        return model

    def _begin_searches(self, model: BuiltModel, notes: Mapping[str, Any] | None) -> Searches:
        """The searches, without those that an earlier run ended on as many machines: their results are put to use."""
        groups: Sequence[Group] = model.plan.groups
        searches = Searches(groups, len(self.setup.resources.machines), self.setup.config.sample, notes)
        chosen = {result.label: result.partitions for result in searches.results}
        for group in groups:
            if group.label in chosen:
                model.resplit(group, chosen[group.label])
        return searches
