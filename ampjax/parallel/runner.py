"""The runner: hybrid data parallelism from a single-device program (Parallax).

Takes a loss function, parameters and an optimizer; plans at the first batch; then each `run` is one step over all replicas. This is
what users hold; what happens in which order is `Training`'s.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ampjax.errors import AmpError, IdWarning
from ampjax.parallel.batch_splitter import BatchSplitter
from ampjax.parallel.checkpoints import runner_files
from ampjax.parallel.config.partitioner import Partitioner
from ampjax.parallel.evaluation import Evaluation, Evaluator
from ampjax.parallel.explanation import Explanation
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.report import explain
from ampjax.parallel.runner_model import BuiltModel
from ampjax.parallel.shard import joined_batch
from ampjax.parallel.steps.step_outcome import Metrics, checked_fetch
from ampjax.parallel.training import Training
from ampjax.parallel.workers.process_group import ProcessState
from ampjax.parallel.workers.recovery import Recovery
from ampjax.utils.counted import count_of
from ampjax.utils.setting_checks import assignable, at_least

Tree = Any

_IN_PLACE_OF = {
    "learning_rate": "Make the optimizer with `optax.inject_hyperparams`, as in `inject_hyperparams(optax.adam)(learning_rate=0.1)`; then assign "
    '`runner.opt_state.hyperparams["learning_rate"]`.',
    "params": "`runner.reset(params)` starts anew from other parameters.",
    "steps": "`runner.restore(folder)` goes on from a checkpoint and its steps; `runner.reset(params)` starts anew.",
    "tx": "Make another runner from `runner.params`; of this optimizer `runner.opt_state` can be assigned.",
}
"""By attribute what users do in place of an assignment."""


class Runner:
    """A data-parallel training of a model; made by `get_runner`.

    It has more than 15 methods, since it is the only object that users of hybrid training need: they train, read and write the model, and
    half of them are properties. `Training` does the work.

    Args:
      setup: The loss, the optimizer and the settings.
      params: The first parameters.
      partitioners: The user's partitioners.
      clock: Gives seconds; for the partition search.
    """

    def __init__(
        self,
        setup: RunnerSetup,
        params: Tree,
        partitioners: Sequence[Partitioner],
        clock: Callable[[], float],
    ):
        self._training = Training(setup, params, partitioners, clock)
        self._split = BatchSplitter(len(setup.resources.devices), setup.config.shared)
        self._evaluation: Evaluator | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        assignable(self, "runner", name, _IN_PLACE_OF)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        resources = self.setup.resources
        sizes = (
            count_of(len(resources.machines), "machine"),
            count_of(len(resources.devices), "replica"),
        )
        return f"Runner({', '.join(sizes)}, {count_of(self.steps, 'step')})"

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the runner's processes, if there are any. Their parameters are lost: read or save them before.

        The end of a `with` block also does this, and so does the end of the runner or of this process.
        """
        if self.setup.group is not None:
            self.setup.group.close()
        if self.setup.processes is not None:
            self.setup.processes.close()

    # ---- training ----------------------------------------------------------------------------------------------------

    def run(
        self,
        batch: Tree,
        fetch: str | Sequence[str] = (),
        following: Tree = None,
    ) -> Metrics:
        """Takes one step over all replicas.

        Ids outside a table have the same effect as on one device, by JAX's gather mode. Ids from -n to -1 count from the end of n rows. For
        other ids `x[ids]` reads the nearest row, and `jnp.take` reads NaN, which stops the step; neither gets a gradient.

        Args:
          batch: A joined batch, which is cut into as many parts as there are replicas, or `Parts`, as `shard` gives them. Arrays of NumPy's or
            JAX's, or tensors of another library in host memory. They may be written to when this returns: those that are read later have
            been copied.
          fetch: Which parts of the aggregated gradients to read: `gradients` (by path: an array, or `RowGrads` for a sparse variable),
            `norms` (by path), `global_norm`.
          following: The batch of the next step, if it is known. Workers that are processes get it, and ask for its rows, while this step is
            computed. The training is the same, bit for bit. It has no effect in one process, or where `sync` is False.

        Returns:
          The step's metrics.

        Raises:
          SettingsError: If the number of replicas does not divide the batch, `fetch` names something else, or at the first batch after a
            checkpoint was restored, if a setting says that its tables are dense, or its dense variables tables.
          ParameterError: If a gradient is not finite; it says where that comes from. Nothing has changed then, as after all errors but a `ServerError`. In asynchronous
            training (`sync=False`) the gradient may be of an earlier step: then it alone is dropped, and this step has been taken and counted.
          TableError: If a row's gradient is not finite; or, at the first batch, if the optimizer is not row-wise on a table.
          DataError: If the batch is not like the first one, or JAX does not hold its numbers.
          EquivalenceError: If the joined batch's loss is not what replicas make of it, where the settings ask for it. Nothing has changed.
          ServerError: If a server's process has ended. `restore` continues from a checkpoint, with a new process.
          HostError: If a worker's process has ended, or gives no sign of life. `restore` helps here, too. With
            `ParallaxConfig(checkpoint=...)` there is no error: all processes are started anew, and all steps since the last checkpoint are
            repeated (`recoveries`).

        Warns:
          EquivalenceWarning: In place of an `EquivalenceError`, once.
          IdWarning: If an id is outside of its table, once; it names the id, the batch's leaf and the table.
        """
        wanted = checked_fetch(fetch, self.setup.config.sync)
        parts = self._split(batch)
        self._training.build(parts)
        upcoming = None
        if following is not None:
            with contextlib.suppress(AmpError):  # its own step will say so
                upcoming = self._split(following)
        return self._training.take_step(parts, wanted, upcoming)

    def build(self, batch: Tree) -> Runner:
        """Plans and builds the step for a batch without taking the step; else the first `run` does this.

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
        self._training.build(self._split(batch))
        return self

    def reset(self, params: Tree) -> None:
        """Restarts training from other parameters of the same shapes; compiled programs, plan and partitions are kept.

        Args:
          params: Parameters like the first ones.

        Raises:
          ParameterError: If they have another structure, other shapes or dtypes, or are not finite.
          SettingsError: Before the first batch.
        """
        self._training.reset(params)

    def assign_rows(
        self,
        name: str,
        rows: Any,
        values: Any,
    ) -> None:
        """Gives some rows of a variable new values and fresh optimizer state, as at the start of training; all other rows stay.

        This is for rows that a `Vocabulary` has given to new ids. State that all rows share, such as Adam's count of steps, stays as it is. In
        asynchronous training, gradients under way are applied first.

        Args:
          name: The variable, as `explain` writes it.
          rows: `[k]`, integers in `[0, n_rows)`, each once; of a variable whose rows are counted along other axes, those of `RowGrads`, but before
            the first batch along the first axis.
          values: `[k, *row]`, finite numbers, which are cast to the variable's dtype.

        Raises:
          SettingsError: If there is no such variable, or a checkpoint was restored and there was no batch yet.
          DataError: If rows or values are wrong. Nothing has changed then.
          TableError: If the variable is dense, and the optimizer does not work row by row on it. Nothing has changed then.
        """
        self._training.assign_rows(name, rows, values)

    def grow_rows(self, name: str, values: Any) -> None:
        """Appends rows to a variable, with fresh optimizer state; all other rows and their state stay.

        All parameters are copied, and the next batch, of `run` or `build`, plans and compiles anew; until then the runner is as before its first batch.
        So let the variable grow seldom and by much, as a `Vocabulary` does, which doubles it.

        Args:
          name: The variable, as `explain` writes it; its rows are along its first axis.
          values: `[k, *row]`, k at least 1, finite numbers, which are cast to the variable's dtype.

        Raises:
          SettingsError: If there is no such variable, its rows are along other axes, a checkpoint was restored and there was no batch yet, or
            the runner replaces lost processes (`ParallaxConfig(checkpoint=...)`): its earlier checkpoints have fewer rows.
          DataError: If the values are wrong. Nothing has changed then, nor after a `TableError`.
          TableError: If the optimizer does not work row by row on the variable.
        """
        self._training.grow_rows(name, values)

    def resplit(self, partitions: int) -> None:
        """Distributes the rows of all tables over another number of partitions; training is not affected.

        Args:
          partitions: P; a group of tables gets the nearest number that it may have (see `Partitioner`).

        Raises:
          SettingsError: If P is below 1, or before the first batch.
        """
        at_least("partitions", partitions, 1)
        model = self._training.built
        model.settle()
        for group in model.plan.groups:
            model.resplit(
                group,
                min(max(partitions, group.low), group.high),
            )

    def wait(self) -> None:
        """Waits until all work that was begun has ended, so that times can be measured."""
        if isinstance(model := self._training.model, BuiltModel):
            model.settle().wait()

    def keys(self) -> jax.Array:
        """Makes random keys for the next step, one for each replica, from the seed and the step's number.

        Put them into the batch if the program draws random numbers: each replica gets `[1]` of them.

        Returns:
          `[n]`.
        """
        key = jax.random.fold_in(
            jax.random.key(self.setup.config.seed),
            self.steps,
        )
        return jax.random.split(key, len(self.setup.resources.devices))

    # ---- without a step ----------------------------------------------------------------------------------------------

    def evaluate(self, batch: Tree) -> Evaluation:
        """Computes the loss of a batch without a step.

        One device computes it, as the single-device program would, from the rows that the batch reads; so the batch may have any number of
        examples. Nothing is changed or counted. In asynchronous training, gradients under way are applied first, here and below.

        Args:
          batch: A joined batch, or `Parts`.

        Returns:
          The loss, and the loss function's second result.

        Raises:
          SettingsError: Before the first batch.
          DataError: If the batch is nothing that JAX takes.

        Warns:
          IdWarning: If an id is outside of its table, as `run` does.
        """
        return self._evaluator.evaluate(self._join_batch(batch))

    def gradients(self, batch: Tree) -> dict[str, Any]:
        """Computes the gradients of a batch's loss without a step, as `evaluate` computes the loss.

        Args:
          batch: As `evaluate` takes it.

        Returns:
          By path an array, or `RowGrads` for a variable in a table.

        Raises:
          SettingsError: As `evaluate`.
          DataError: As `evaluate`.

        Warns:
          IdWarning: As `evaluate`.
        """
        return self._evaluator.gradients(self._join_batch(batch))

    def apply(
        self,
        function: Callable[[Tree, Tree], Tree],
        batch: Tree,
    ) -> Tree:
        """Computes any function of the parameters and a batch, such as predictions.

        What the function reads by rows is pulled by rows, as in a step. A table that it uses as a whole, or by ids that depend on
        parameters, is copied as a whole.

        Args:
          function: `function(params, batch)`, anything that `jax.jit` takes. It is compiled once for each shape of a batch, so pass the same
            object each time.
          batch: As `evaluate` takes it.

        Returns:
          What the function returns: a pytree of arrays.

        Raises:
          SettingsError: As `evaluate`.
          DataError: As `evaluate`.
        """
        return self._evaluator.apply(
            function,
            joined_batch(batch, self.setup.config.shared),
        )

    def rows(self, name: str, ids: Any) -> np.ndarray:
        """Reads rows of a variable; if the variable is in a table, no other rows are read.

        Args:
          name: The variable, as `explain` writes it.
          ids: Integers in `[0, n_rows)`, of any shape; of a variable whose rows are counted along other axes, those of `RowGrads`.

        Returns:
          `[*ids, *row]`.

        Raises:
          SettingsError: Before the first batch, or if there is no such variable.
          DataError: If ids are no integers, or outside.
        """
        return self._evaluator.rows(name, ids)

    def _join_batch(self, batch: Tree) -> Tree:
        """A batch of the loss function as one; the user is told of ids outside of their tables."""
        joined = joined_batch(batch, self.setup.config.shared)
        if warning := self._training.built.ids.look([joined]):
            warnings.warn(warning, IdWarning, stacklevel=3)
        return joined

    @property
    def _evaluator(self) -> Evaluator:
        model = self._training.built
        if (
            self._evaluation is None or self._evaluation.model is not model
        ):  # a checkpoint may have brought another one
            self._evaluation = Evaluator(model)
        return self._evaluation

    # ---- what it holds -----------------------------------------------------------------------------------------------

    @property
    def setup(self) -> RunnerSetup:
        """The loss, the settings, and the optimizer in the form that steps use."""
        return self._training.setup

    @property
    def steps(self) -> int:
        """The number of steps taken so far, including the steps before a restored checkpoint."""
        return self._training.steps

    @property
    def params(self) -> Tree:
        """All parameters, a plain pytree of host arrays with the single-device program's structure."""
        return self._training.model.params()

    @property
    def opt_state(self) -> Tree:
        """The optimizer's state, in the form of `tx.init` for the single-device program. May be set, as a whole or in parts.

        `runner.opt_state = state` replaces it by a state of the same optimizer for the same parameters, of another runner or of plain optax.
        `runner.opt_state.hyperparams["learning_rate"] = 0.01` changes a hyperparameter of `optax.inject_hyperparams`, for tables, too, from the next
        step on: updates that rows have missed are made with the one of that time. Dictionaries of scalars such as `hyperparams` stay as good as
        new; other parts of a tree can be assigned to until the next step. Arrays in it are read-only.

        Raises:
          ParameterError: If what was assigned does not fit. The next step, or whatever needs the state first, raises it, too, and the state stays
            as it was.
        """
        return self._training.state.get()

    @opt_state.setter
    def opt_state(self, state: Tree) -> None:
        self._training.state.set(state)

    @property
    def plan(self) -> VariablePlan | None:
        """The plan for each variable; None before the first batch."""
        model = self._training.model
        return model.plan if isinstance(model, BuiltModel) else None

    @property
    def step(self) -> Step:
        """The object that makes steps.

        Raises:
          SettingsError: Before the first batch.
        """
        return self._training.built.step

    @property
    def hosts(self) -> list[ProcessState]:
        """Its servers' and workers' processes, where machines have addresses; none where all is in this process."""
        return [] if self.setup.group is None else self.setup.group.states

    @property
    def recoveries(self) -> list[Recovery]:
        """Losses of processes from which the runner recovered, in order."""
        recoverer = self._training.recoverer
        return [] if recoverer is None else list(recoverer.recoveries)

    @property
    def searches(self) -> list[SearchResult]:
        """Partition searches that have ended: samples, fit and choice; `ampjax.viz.partitions` draws them."""
        searches = self._training.searches
        return [] if searches is None else list(searches.results)

    def explain(self, compiled: bool = True) -> Explanation:
        """Explains how each variable is kept, and why.

        Args:
          compiled: Whether the bytes of AllReduce are read from the compiled program, which is compiled once more for this.

        Returns:
          A table to print, with one entry for each variable.

        Raises:
          SettingsError: Before the first batch.
        """
        training = self._training
        return explain(training.built, training.totals, self.searches, compiled=compiled)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(
        self,
        path: str | Path,
        base: str | Path | None = None,
    ) -> None:
        """Writes all parameters and the optimizer state to a folder, with checksums, atomically.

        Args:
          path: The folder; a checkpoint that is there is replaced.
          base: The checkpoint that this runner has saved last, in another folder. Then only those rows of tables are written that have changed
            since; to restore the new checkpoint, both are needed, side by side as they are now. All rows of a table are written
            if `base` is another checkpoint, the table was split anew since, or an update changes all rows (momentum or Adam in
            `faithful` mode). `ParallaxConfig(checkpoint=Checkpoints(..., full_every=10))` does this by itself.

        Raises:
          SettingsError: Before the first batch, if a path is none, or `base` is the folder itself.
          DataError: If the folder holds anything else, or is the one in which the program runs.
          TableError: If `base` can't be read.
        """
        self._training.save(path, base)

    def export(self, path: str | Path) -> None:
        """Writes all parameters to one file of NumPy's, for `numpy.load`: an array by each name that `explain` shows.

        Tables are written block by block, so that they are not copied as a whole. bfloat16 is written as float32, which NumPy knows. The
        optimizer's state is not in the file.

        Args:
          path: The file; its name ends in `.npz`. One that is there is replaced.

        Raises:
          SettingsError: If the path is none, or ends otherwise.
        """
        self._training.model.export(path)

    def restore(self, path: str | Path) -> None:
        """Restores a checkpoint written by `save`, after a check of the whole checkpoint.

        Before the first batch it is not yet known where variables are kept. So then only the parameters' shapes and the optimizer are compared, and
        the folder must not be removed: it is read and checked as a whole at the first batch, or when parameters or optimizer state are read.
        What was a table there is a table here, whatever alpha would say, and what was dense is dense; a runner that has decided otherwise is
        planned anew.

        Args:
          path: The folder.

        Raises:
          DataError: If it is of another model or optimizer.
          SettingsError: If a setting says that its tables are dense, or its dense variables tables.
          TableError: If files are missing, cut off or altered.
        """
        self._training.restore(path)

    def resume(self) -> int:
        """Continues from the newest complete checkpoint that `ParallaxConfig(checkpoint=...)` has written, if there is one.

        Call it before the first batch, in a program that may have been killed. If the run then gets exactly the remaining batches, it ends with
        the same bits as one that was not killed: `shard(data, skip=runner.steps)` gives these batches, and `keys` the keys of the next step.

        Returns:
          The steps that had been taken; 0 if there is no checkpoint.

        Raises:
          SettingsError: If the settings name no folder.
          DataError: If the checkpoint is of another model or optimizer.
          TableError: If all checkpoints are damaged.

        Warns:
          SnapshotWarning: For each damaged checkpoint that was skipped.
        """

        def restore(path: Path) -> None:
            runner_files.require_undamaged(path)
            self.restore(path)

        self._training.checkpoints.resume(restore)
        return self.steps
