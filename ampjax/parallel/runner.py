"""The runner: hybrid data parallelism from a single-device program (Parallax).

Takes a loss function, parameters and an optimizer; plans at the first batch; then each `run` is one step over all replicas. This is
what users hold; what happens in which order is `Training`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from ampjax.parallel import runner_files
from ampjax.parallel.config.partitioner import Partitioner
from ampjax.parallel.explanation import Explanation
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.report import explain
from ampjax.parallel.runner_model import BuiltModel
from ampjax.parallel.shard import split_batch
from ampjax.parallel.steps.step_outcome import Metrics, checked_fetch
from ampjax.parallel.training import Training
from ampjax.parallel.workers.process_group import ProcessState
from ampjax.parallel.workers.recovery import Recovery
from ampjax.utils.counted import counted
from ampjax.utils.setting_checks import at_least

Tree = Any


class Runner:
    """A model in training. Made by `get_runner`.

    It has more than 15 methods, as it is all that a user of hybrid training holds: they train, read and write the model, and half of them
    are properties. What they do is done by `Training`.

    Args:
      setup: What it is trained with.
      params: The first parameters.
      partitioners: The user's partitioners.
      clock: Gives seconds; for the partition search.
    """

    def __init__(
        self, setup: RunnerSetup, params: Tree, partitioners: Sequence[Partitioner], clock: Callable[[], float]
    ):
        self._training = Training(setup, params, partitioners, clock)

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
        self._training.build(parts)
        return self._training.take_step(parts, wanted)

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
        self._training.build(split_batch(batch, len(self.setup.resources.devices)))
        return self

    def reset(self, params: Tree) -> None:
        """Starts anew from other parameters of the same shapes: what was compiled, planned and split stays.

        Args:
          params: Parameters like the first ones.

        Raises:
          ParameterError: If they have another structure, other shapes or dtypes, or are not finite.
          SettingsError: Before the first batch.
        """
        self._training.reset(params)

    def resplit(self, partitions: int) -> None:
        """Deals the rows of all tables out to another number of partitions; training goes on as it was.

        Args:
          partitions: P; a group of tables gets the nearest number that it may have (see `partitioner`).

        Raises:
          SettingsError: If P is below 1, or before the first batch.
        """
        at_least("partitions", partitions, 1)
        model = self._training.built
        model.settle()
        for group in model.plan.groups:
            model.resplit(group, min(max(partitions, group.low), group.high))

    def wait(self) -> None:
        """Returns when everything that was begun has ended, so that times can be taken."""
        if isinstance(model := self._training.model, BuiltModel):
            model.settle().wait()

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
    def setup(self) -> RunnerSetup:
        """What it is trained with, the optimizer as steps use it."""
        return self._training.setup

    @property
    def steps(self) -> int:
        """Steps taken so far, those before a restored checkpoint among them."""
        return self._training.steps

    @property
    def params(self) -> Tree:
        """All parameters, a plain pytree of host arrays as the single-device program has them."""
        return self._training.model.params()

    @property
    def opt_state(self) -> Tree:
        """The optimizer's state, as `tx.init` makes it for the single-device program."""
        return self._training.model.opt_state()

    @property
    def plan(self) -> VariablePlan | None:
        """What becomes of each variable; None before the first batch."""
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
        """Losses of processes after which it went on, in order."""
        recoverer = self._training.recoverer
        return [] if recoverer is None else list(recoverer.recoveries)

    @property
    def searches(self) -> list[SearchResult]:
        """Partition searches that have ended: samples, fit and choice; `ampjax.viz.partitions` draws them."""
        searches = self._training.searches
        return [] if searches is None else list(searches.results)

    def explain(self, compiled: bool = True) -> Explanation:
        """What became of each variable, and why.

        Args:
          compiled: Whether the bytes of AllReduce are read from the compiled program, which is compiled once more for that.

        Returns:
          A table to print, with one entry for each variable.

        Raises:
          SettingsError: Before the first batch.
        """
        training = self._training
        return explain(training.built, training.totals, self.searches, training.equivalence, compiled=compiled)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes all parameters and optimizer state to a folder, with checksums, in one go.

        Args:
          path: The folder; a checkpoint that is there is replaced.

        Raises:
          SettingsError: Before the first batch, or if the path is none.
          DataError: If the folder holds anything else, or is the one in which the program runs.
        """
        self._training.save(path)

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
        self._training.restore(path)

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

        self._training.checkpoints.resume(restore)
        return self.steps
