"""The runner: hybrid data parallelism from a single-device program (Parallax).

Takes a loss function, parameters and an optimizer; plans at the first batch; then each `run` is one step over all replicas. Owns
the order of things and the counts; planning, steps, files and reports are elsewhere.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ampjax.errors import EquivalenceWarning, SettingsError
from ampjax.parallel import runner_files
from ampjax.parallel.config.leaf_paths import names
from ampjax.parallel.config.partitioner import Group, Partitioner
from ampjax.parallel.config.trainable_params import check_like, checked_params
from ampjax.parallel.equivalence.compare import Equivalence, check_equivalence
from ampjax.parallel.explanation import Explanation
from ampjax.parallel.planning.build_runner import RunnerSetup, Step, build_step, restart_step
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.search_timing import Searches
from ampjax.parallel.planning.variable_plan import VariablePlan, plan_variables
from ampjax.parallel.report import explain
from ampjax.parallel.shard import split_batch
from ampjax.parallel.steps.asynchronous_steps import AsyncStep
from ampjax.parallel.steps.step_outcome import Metrics, fetched
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.utils.setting_checks import at_least

Tree = Any
FETCHES = ("gradients", "norms", "global_norm")


class Runner:
    """A model in training. Made by `get_runner`.

    Args:
      setup: What it is trained with.
      params: The first parameters.
      partitioners: The user's partitioners.
      clock: Gives seconds; for the partition search.
    """

    def __init__(
        self, setup: RunnerSetup, params: Tree, partitioners: Sequence[Partitioner], clock: Callable[[], float]
    ):
        self.setup, self.plan = setup, None
        self._first: Any = checked_params(params)
        self._partitioners, self._clock = list(partitioners), clock
        self._step: Step | None = None
        self._searches: Searches | None = None
        self._equivalence = Equivalence(skipped="there was no batch yet")
        self._restored: Path | None = None
        self._alpha: collections.Counter[str] = collections.Counter()
        self.steps = 0
        self.counted = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends its server processes, if it has any, and with them the rows of sparse variables: read or save them before.

        The end of a `with` block does this too, and so does the end of the runner or of this process.
        """
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
          ParameterError: If a gradient is not finite. Nothing has changed then, as after all errors but a `ServerError`. Without a barrier it may be
            of an earlier step: then that gradient alone is dropped, and this step has been taken and counted.
          TableError: If a row's gradient is not finite; or, at the first batch, if the optimizer is not row-wise on a table.
          DataError: If the batch is not like the first one.
          EquivalenceError: At the first batch, if the joined batch's loss is not what replicas make of it, where the settings ask for it.
          ServerError: If a server's process has ended. `restore` goes on from a checkpoint, with a new process.
        """
        wanted = self._wanted(fetch)
        parts = split_batch(batch, len(self.setup.resources.devices))
        step = self._built(parts)
        self._split_for_search()
        before, start = self.setup.wire.traffic(), self._clock()
        made = step.n_updates
        try:
            outcome = step(self.steps + 1, parts, bool(wanted))
        except KeyboardInterrupt:
            if step.n_updates > made:  # it had waited until all was written: the step counts
                self._count()
            raise
        read = fetched(wanted, self._readable(outcome.gradients())) if wanted else {}
        self._count()
        self._alpha.update(outcome.alpha)
        if self._searches is not None and not self._searches.is_over:
            jax.block_until_ready((outcome.aux, [np.asarray(loss) for loss in outcome.losses]))
            self._resplit(self._searches.record(self._clock() - start))
        metrics = Metrics(
            self.steps,
            outcome.losses,
            outcome.aux,
            self._readable(outcome.alpha),
            self.setup.wire.traffic() - before,
            outcome.staleness,
            read,
            self.setup.config.average_dense == "mean",
        )
        self._save_if_due()
        if outcome.dropped:
            raise outcome.dropped[0]
        return metrics

    def build(self, batch: Tree) -> Runner:
        """Plans and builds for a batch, without a step; `run` does it otherwise.

        Args:
          batch: As `run` takes it.

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
        step = self.step
        assert self.plan is not None
        params = checked_params(params)
        check_like(params, self.plan.program.params)
        restart_step(self.setup, self.plan, step, params)
        self.steps = 0

    def resplit(self, partitions: int) -> None:
        """Deals the rows of all tables out to another number of partitions; training goes on as it was.

        Args:
          partitions: P; a group of tables gets the nearest number that it may have (see `partitioner`).

        Raises:
          SettingsError: If P is below 1, or before the first batch.
        """
        at_least("partitions", partitions, 1)
        self._settled()
        assert self.plan is not None
        for group in self.plan.groups:
            self._resplit((group, min(max(partitions, group.low), group.high)))

    def wait(self) -> None:
        """Returns when everything that was begun has ended, for those who take times."""
        if self._step is not None:
            self._settled().wait()

    def keys(self) -> jax.Array:
        """Random keys for the next step, one for each replica, `[n]`: made of the seed and the step's number.

        Put them into the batch, where a program draws at random: each replica gets `[1]` of them.
        """
        key = jax.random.fold_in(jax.random.key(self.setup.config.seed), self.steps)
        return jax.random.split(key, len(self.setup.resources.devices))

    # ---- what it holds -----------------------------------------------------------------------------------------------

    @property
    def params(self) -> Tree:
        """All parameters, a plain pytree of host arrays as the single-device program has them."""
        if self._step is None or self.plan is None:
            return jax.tree.map(np.array, self._first) if self._restored is None else self._read_restored()[0]
        params, _ = self._settled().read()
        return self.plan.program.join(params, {path: own[0].dense() for path, own in self._step.tables.items()})

    @property
    def opt_state(self) -> Tree:
        """The optimizer's state, as `tx.init` makes it for the single-device program."""
        if self._step is None:
            return self.setup.tx.init(self._first) if self._restored is None else self._read_restored()[1]
        _, state = self._settled().read()
        if isinstance(self._step, DenseStep):
            return state
        assert self.plan is not None
        program = self.plan.program
        rows = {path: program.as_leaves(path, own[0].opt_state) for path, own in self._step.tables.items()}
        return self._step.homes.split.state.fill(jax.tree.leaves(state), rows)

    @property
    def step(self) -> Step:
        """The object that makes steps.

        Raises:
          SettingsError: Before the first batch.
        """
        if self._step is None:
            raise SettingsError("runner", "a batch first", "none yet", "Call `run`, or `build` with a batch.")
        return self._step

    @property
    def searches(self) -> list[SearchResult]:
        """Partition searches that have ended: samples, fit and choice; `ampjax.viz.partitions` draws them."""
        return [] if self._searches is None else list(self._searches.found)

    def explain(self, compiled: bool = True) -> Explanation:
        """What became of each variable, and why.

        Args:
          compiled: Whether the bytes of AllReduce are read from the compiled program, which is compiled once more for that.

        Raises:
          SettingsError: Before the first batch.
        """
        step = self.step
        assert self.plan is not None
        return explain(
            self.setup, self.plan, step, self._alpha, self.counted, self.searches, compiled, self._equivalence
        )

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes all parameters and optimizer state to a folder, with checksums, in one go.

        Args:
          path: The folder; a checkpoint that is there is replaced.

        Raises:
          SettingsError: Before the first batch, or if the path is none.
          DataError: If the folder holds anything else, or is the one in which the program runs.
        """
        step = self._settled()
        tables = {name: own[0] for name, own in step.tables.items()}
        notes = None if self._searches is None else self._searches.notes
        assert self.plan is not None
        runner_files.save(path, self.steps, *step.read(), tables, notes, axes=self.plan.program.turned)

    def restore(self, path: str | Path) -> None:
        """Goes on from what `save` wrote: checked as a whole before anything changes.

        Before the first batch, homes are not known yet: then only the shapes of its parameters are compared at once, and the folder must stay, for
        it is read, and checked as a whole, when it is asked for and at the first batch.

        Args:
          path: The folder.

        Raises:
          DataError: If it is of another model.
          TableError: If files are missing, cut off or altered.
        """
        if self._step is None:
            self.steps, self._restored = runner_files.steps(path, self._first), Path(path)
        else:
            self._restore(path)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self.steps, self.counted = self.steps + 1, self.counted + 1

    def _built(self, parts: Sequence[Tree]) -> Step:
        if self._step is None:
            s = self.setup
            plan = plan_variables(s.loss_fn, self._first, parts, s.resources, s.config, self._partitioners)
            self._adopt(plan, build_step(s, plan, self._first, parts), parts)
            for told in self._equivalence.errors:
                warnings.warn(str(told), EquivalenceWarning, stacklevel=3)
        assert self._step is not None
        return self._step

    def _adopt(self, plan: VariablePlan, step: Step, parts: Sequence[Tree]) -> None:
        notes, before = None, self.steps
        self.plan, self._step = plan, step
        try:
            if self._restored is not None:
                notes = self._restore(self._restored)
            self._equivalence = check_equivalence(self.setup, plan, step, parts)
            if self._equivalence.errors and self.setup.config.check_equivalence == "error":
                raise self._equivalence.errors[0]
        except Exception:
            self.plan, self._step, self.steps = None, None, before
            raise
        self._first = None  # the homes have copies
        if self.setup.config.search_partitions and plan.groups:
            self._search(plan.groups, notes)

    def _search(self, groups: Sequence[Group], notes: Mapping[str, Any] | None) -> None:
        """Begins the searches, without those that an earlier run ended on as many machines."""
        self._searches = Searches(groups, len(self.setup.resources.machines), self.setup.config.sample, notes)
        chosen = {own.label: own.partitions for own in self._searches.found}
        for group in groups:
            if group.label in chosen:
                self._resplit((group, chosen[group.label]))

    def _restore(self, path: str | Path) -> Mapping[str, Any] | None:
        """Reads a checkpoint into the homes; gives the notes in it. What is under way is of no more use."""
        step = self.step
        assert self.plan is not None
        saved = runner_files.load(path, *step.read(), step.tables, self.plan.program.turned)
        step.write(saved.params, saved.state, saved.tables)
        self.steps = saved.step
        return saved.notes

    def _read_restored(self) -> tuple[Tree, Tree]:
        """Parameters and optimizer state that wait for the first batch in a folder."""
        assert self._restored is not None
        return runner_files.whole(self._restored, self._first, self.setup.tx)

    def _settled(self) -> Step:
        """The step, with nothing under way."""
        if isinstance(self.step, AsyncStep):
            self.step.finish()
        return self.step

    def _wanted(self, fetch: str | Sequence[str]) -> tuple[str, ...]:
        wanted = (fetch,) if isinstance(fetch, str) or not isinstance(fetch, Iterable) else tuple(fetch)
        for name in wanted:
            if name not in FETCHES:
                raise SettingsError("fetch", f"some of {list(FETCHES)}", f"{name!r}", "Choose among these.")
        if wanted and not self.setup.config.sync:
            fix = "Without a barrier no gradient is aggregated over replicas."
            raise SettingsError("fetch", "synchronous training", "sync=False", fix)
        return wanted

    def _split_for_search(self) -> None:
        self._resplit(self._searches.wanted() if self._searches is not None else None)

    def _resplit(self, wanted: tuple[Group, int] | None) -> None:
        """Gives a group of tables its number of partitions, if it has another one."""
        if wanted is None or isinstance(self.step, DenseStep):
            return
        group, count = wanted
        homes, counts = self.step.homes, dict.fromkeys(group.paths, count)
        if not homes.is_split(counts):  # a search asks before each step, and settling takes the staleness away
            self._settled()
            homes.resplit(counts)

    def _save_if_due(self) -> None:
        due = self.setup.config.checkpoint
        if due is not None and self.steps % due.every_steps == 0:
            self.save(Path(due.folder) / f"step-{self.steps}")

    def _readable(self, by_path: dict[str, Any]) -> dict[str, Any]:
        """Paths as names with `/` between them."""
        assert self.plan is not None
        text = names(self.plan.program.params)
        return {text.get(path, path): value for path, value in by_path.items()}
