"""A runner's model in its two states: before the first batch, only parameters; after the first batch, trainable.

Knows how parameters, optimizer state and files are put together from homes; nothing of the order in which a runner does things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ampjax.devices.random_keys import copy_leaf, data_of
from ampjax.errors import DataError, SettingsError
from ampjax.optim.optimizer_identity import operations_of, parts_of
from ampjax.parallel.assigned_state import leaves_of
from ampjax.parallel.checkpoints import runner_files
from ampjax.parallel.checkpoints.numpy_export import export_numpy
from ampjax.parallel.checkpoints.runner_files import Like, SavedRunner
from ampjax.parallel.config.leaf_paths import by_path, names, readable
from ampjax.parallel.config.partitioner import Partitioner, PartitionGroup
from ampjax.parallel.config.trainable_params import check_like, checked_params
from ampjax.parallel.equivalence.watch import EquivalenceWatch
from ampjax.parallel.homes.assigned_rows import (
    AssignedRows,
    RowStates,
    checked_assignment,
    checked_new_rows_of,
    path_of,
    with_more_rows,
    with_rows,
)
from ampjax.parallel.id_watch import IdWatch
from ampjax.parallel.planning.build_runner import RunnerSetup, Step, build_step, restart_step
from ampjax.parallel.planning.variable_plan import VariablePlan, plan_again
from ampjax.parallel.steps.asynchronous_steps import AsyncStep
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.sparse.detection.row_axes import LEADING, to_table
from ampjax.sparse.table.table_parts import TablePart

Tree = Any


@dataclass
class InitialModel:
    """A model before its first batch: its first parameters, or the checkpoint to continue from.

    Args:
      tx: The optimizer.
      first: The first parameters, host arrays.
      checkpoint: A folder that `BuiltModel.save` wrote, read when the model is built; None to begin with the first parameters.
      state: The optimizer's state, if it was assigned.
    """

    tx: optax.GradientTransformation
    first: Tree
    checkpoint: Path | None = None
    state: Tree = None

    def params(self) -> Tree:
        """Copies all parameters, or reads them from the checkpoint.

        Raises:
          DataError: If the checkpoint is of another model.
          TableError: If its files are missing, cut off or altered.
        """
        if self.checkpoint is None:
            return jax.tree.map(np.array, self.first)
        return self._read(self.checkpoint)[0]

    def opt_state(self) -> Tree:
        """Makes the optimizer's first state, or reads the state from the checkpoint.

        Raises:
          DataError: If the checkpoint is of another model.
          TableError: If its files are missing, cut off or altered.
        """
        if self.state is not None:
            return jax.tree.map(copy_leaf, self.state)
        if self.checkpoint is None:
            return self.tx.init(self.first)
        return self._read(self.checkpoint)[1]

    def export(self, path: str | Path) -> None:
        """Writes the parameters to a file of NumPy's.

        Args:
          path: The file.

        Raises:
          SettingsError: If it has no such name.
        """
        leaves = {name: data_of(leaf) for name, leaf in by_path(self.params()).items()}
        export_numpy(path, leaves)

    def state_like(self) -> Tree:
        """Shapes and dtypes of the optimizer's state."""
        return jax.eval_shape(self.tx.init, self.first)

    def assign_state(self, leaves: Mapping[str, Any]) -> None:
        """Replaces some leaves of the optimizer's state.

        Args:
          leaves: By path, arrays like the leaves.
        """
        state = self.opt_state()
        self.state = jax.tree.unflatten(
            jax.tree.structure(state),
            (leaves_of(state) | dict(leaves)).values(),
        )

    def check_rows(
        self,
        name: str,
        ids: Any,
        values: Any,
    ) -> AssignedRows:
        """Checks new values of some rows.

        Args:
          name: The variable, as it is written for users.
          ids: The rows.
          values: Their values.

        Returns:
          Copies of both.

        Raises:
          SettingsError: If there is no such variable, or a checkpoint has not been read yet.
          DataError: If ids or values are wrong.
        """
        path = path_of(self.first, name, "assign_rows")
        self._require_read("assign_rows")
        leaf = leaves_of(self.first)[path]
        like = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return checked_assignment(name, path, like, ids, values)

    def assign_rows(self, new: AssignedRows) -> None:
        """Gives some rows of a variable new values and fresh optimizer state.

        Args:
          new: The rows; there is at least one.

        Raises:
          TableError: If the optimizer's state was assigned, and it does not work row by row on the variable.
        """
        if self.state is not None:
            states = RowStates(self.tx, self.first)
            self.assign_state(states.fresh(leaves_of(self.state), new))
        self.first = with_rows(self.first, new)

    def with_more_rows(self, name: str, values: Any) -> InitialModel:
        """Makes a model in which a variable has more rows.

        Args:
          name: The variable, as it is written for users.
          values: The rows, which come after those that it has.

        Returns:
          The model.

        Raises:
          SettingsError: If there is no such variable, or a checkpoint has not been read yet.
          DataError: If the values are wrong.
          TableError: If the optimizer's state was assigned, and it does not work row by row on the variable.
        """
        path = path_of(self.first, name, "grow_rows")
        self._require_read("grow_rows")
        leaf = leaves_of(self.first)[path]
        rows = checked_new_rows_of(name, leaf, values)
        first = with_more_rows(self.first, path, rows)
        if self.state is None:
            return InitialModel(self.tx, first)
        state = _longer_state(self.tx, self.first, self.state, path, rows)
        return InitialModel(self.tx, first, state=state)

    def _require_read(self, call: str) -> None:
        """Raises unless the parameters are known."""
        if self.checkpoint is not None:
            raise SettingsError(
                call,
                "a batch after a checkpoint was restored",
                "none yet",
                "Call `build` with a batch.",
            )

    def restore(self, path: str | Path) -> int:
        """Goes on from a checkpoint, of which only the parameters' shapes and the optimizer are compared now.

        Args:
          path: A folder that `BuiltModel.save` wrote.

        Returns:
          The steps that had been taken.

        Raises:
          DataError: If it is of another model or optimizer.
          TableError: If there is no manifest, or it was altered.
        """
        steps = runner_files.steps(path, self.first)
        runner_files.check_optimizer(
            path,
            parts_of(self.state_like()),
            operations_of(self.tx, self.first),
            self.first,
        )
        self.checkpoint = Path(path)
        self.state = None
        return steps

    def _read(self, checkpoint: Path) -> tuple[Tree, Tree]:
        return runner_files.read_whole(checkpoint, self.first, self.tx)


@dataclass(frozen=True)
class BuiltModel:
    """A model after its first batch: its variables have their homes, and a step trains them.

    It has more than 15 methods, since each change of a model between steps is one.

    Args:
      setup: What it is trained with.
      plan: What became of each variable.
      step: The object that makes steps, and holds the homes.
      watch: Compares replicas with a single device.
    """

    setup: RunnerSetup
    plan: VariablePlan
    step: Step
    watch: EquivalenceWatch

    @cached_property
    def ids(self) -> IdWatch:
        """The watch over the ids of batches."""
        return IdWatch(self.plan.program, self.plan.analysis)

    @cached_property
    def optimizer(self) -> str:
        """The parts of the optimizer's state, by which a checkpoint knows its optimizer."""
        return parts_of(self.state_like())

    @cached_property
    def operations(self) -> str:
        """The operations that make the optimizer's updates, for the same purpose."""
        return operations_of(
            self.setup.tx,
            self.plan.program.params,
        )

    def settle(self) -> Step:
        """Applies all gradients that are under way, of which only asynchronous steps have any.

        Returns:
          The step, with nothing under way.

        Raises:
          ParameterError: If a gradient is not finite. It alone is dropped.
          TableError: If a row's gradient is not; likewise.
        """
        if isinstance(self.step, AsyncStep):
            self.step.finish()
        return self.step

    def _ready_for_tables(self) -> Step:
        """Waits until no replica uses the old tables, and restarts lost processes, before other tables come. Returns the step."""
        if isinstance(self.step, AsyncStep):
            self.step.rest()
        if self.setup.group is not None:
            self.setup.group.start()
        return self.step

    def params(self) -> Tree:
        """Collects all parameters in the single-device program's form, host arrays."""
        params, _ = self.settle().read()
        return self.plan.program.join(
            params,
            {path: rows.arrays(1)[0] for path, rows in self._parts().items()},
        )

    def export(self, path: str | Path) -> None:
        """Writes the parameters to a file of NumPy's.

        Args:
          path: The file.

        Raises:
          SettingsError: If it has no such name.
        """
        params, _ = self.settle().read()
        program = self.plan.program
        leaves: dict[str, np.ndarray | TablePart] = {}
        for name, leaf in by_path(params).items():
            leaves[name] = data_of(leaf)
        for place, part in self._parts().items():
            if place in program.transposed:
                leaves[readable(place)] = program.as_leaves(place, part.arrays(1))[0]
            else:
                leaves[readable(place)] = part
        export_numpy(path, {name: leaves[name] for name in by_path(program.params)})

    def _parts(self) -> dict[str, TablePart]:
        """By variable its rows in its table."""
        if isinstance(self.step, DenseStep):
            return {}
        return self.step.homes.parts()

    def opt_state(self) -> Tree:
        """The optimizer's state, in the form of `tx.init` for the single-device program."""
        _, state = self.settle().read()
        if isinstance(self.step, DenseStep):
            return state
        program = self.plan.program
        rows = {}
        for path, part in self._parts().items():
            rows[path] = program.as_leaves(
                path,
                part.arrays()[1:],
            )
        return self.step.homes.split.state.fill(
            jax.tree.leaves(state),
            rows,
        )

    def state_like(self) -> Tree:
        """Shapes and dtypes of the optimizer's state."""
        return jax.eval_shape(
            self.setup.tx.init,
            self.plan.program.params,
        )

    def assign_state(self, leaves: Mapping[str, Any]) -> None:
        """Replaces some leaves of the optimizer's state, once all gradients under way have been applied.

        Args:
          leaves: By path, arrays like the leaves.
        """
        step = self.settle()
        if isinstance(step, DenseStep):
            params, state = step.read()
            step.write(
                params,
                jax.tree.unflatten(
                    jax.tree.structure(state),
                    (leaves_of(state) | dict(leaves)).values(),
                ),
            )
            return
        states = step.homes.split.state
        axes = self.plan.program.axes
        owner = dict(zip(states.names, states.table_of, strict=True))
        as_rows = {}
        for name, leaf in leaves.items():
            as_rows[name] = to_table(
                leaf,
                axes.get(owner[name] or "", LEADING),
            )
        step.homes.write_state(as_rows)

    @cached_property
    def _row_states(self) -> RowStates:
        return RowStates(self.setup.tx, self.plan.program.params)

    def check_rows(
        self,
        name: str,
        ids: Any,
        values: Any,
    ) -> AssignedRows:
        """Checks new values of some rows.

        Args:
          name: The variable, as it is written for users.
          ids: The rows.
          values: Their values.

        Returns:
          Copies of both.

        Raises:
          SettingsError: If there is no such variable.
          DataError: If ids or values are wrong.
        """
        params = self.plan.program.params
        path = path_of(params, name, "assign_rows")
        leaf = leaves_of(params)[path]
        parts = self._parts()
        shape = parts[path].shape if path in parts else leaf.shape
        like = jax.ShapeDtypeStruct(shape, leaf.dtype)
        return checked_assignment(name, path, like, ids, values)

    def assign_rows(self, new: AssignedRows) -> None:
        """Gives some rows of a variable new values and fresh optimizer state, once all gradients under way have been applied.

        Args:
          new: The rows; there is at least one.

        Raises:
          TableError: If the variable is dense, and the optimizer does not work row by row on it.
        """
        step = self.settle()
        if isinstance(step, DenseStep):
            params, state = step.read()
            fresh = self._row_states.fresh(leaves_of(state), new)
        elif new.path in step.homes.parts():
            step.assign_rows(new)
            return
        else:
            params, state = step.read()
            fresh = self._row_states.fresh(step.homes.name_shared(state), new)
        step.write(with_rows(params, new), state, step.tables)
        self.assign_state(fresh)

    def with_more_rows(self, name: str, values: Any) -> InitialModel:
        """Makes a model in which a variable has more rows, once all gradients under way have been applied.

        Args:
          name: The variable, as it is written for users.
          values: The rows, which come after those that it has.

        Returns:
          The model with all parameters and optimizer state, before its first batch.

        Raises:
          SettingsError: If there is no such variable, or it is a table whose rows are not along the first axis.
          DataError: If the values are wrong.
          TableError: If the optimizer does not work row by row on the variable.
        """
        program = self.plan.program
        path = path_of(program.params, name, "grow_rows")
        axes = program.axes.get(path, LEADING)
        if tuple(axes) != LEADING:
            fix = "Transpose it, and read its rows by the first axis."
            raise SettingsError(f"grow_rows of `{name}`", "rows along axis 0", f"{axes}", fix)
        rows = checked_new_rows_of(name, leaves_of(program.params)[path], values)
        params = self.params()
        state = _longer_state(self.setup.tx, params, self.opt_state(), path, rows)
        return InitialModel(
            self.setup.tx,
            with_more_rows(params, path, rows),
            state=state,
        )

    def reset(self, params: Tree) -> None:
        """Replaces the parameters, with fresh optimizer state; tables keep their split.

        Args:
          params: Parameters like the first ones.

        Raises:
          ParameterError: If they have another structure, other shapes or dtypes, or are not finite.
        """
        params = checked_params(params)
        check_like(params, self.plan.program.params)
        restart_step(self.setup, self.plan, self._ready_for_tables(), params)

    def resplit(self, group: PartitionGroup, count: int) -> None:
        """Gives a group of tables its number of partitions, if that number has changed.

        Args:
          group: The tables.
          count: The number of partitions that each shall have.
        """
        if isinstance(self.step, DenseStep):
            return
        table_of = self.plan.table_of
        homes = self.step.homes
        counts = {table_of[path]: count for path in group.paths}
        if not homes.is_split(
            counts
        ):  # a search asks before each step, and settling takes the staleness away
            self.settle()
            homes.resplit(counts)

    def save(
        self,
        path: str | Path,
        steps: int,
        notes: Mapping[str, Any] | None,
        base: str | Path | None = None,
    ) -> None:
        """Writes all parameters and optimizer state to a folder, atomically.

        Args:
          path: The folder; a checkpoint that is there is replaced.
          steps: Steps taken so far.
          notes: What the partition searches have found, in JSON's types.
          base: The checkpoint that was saved last: of tables the rows that have changed since then are written; None writes all.

        Raises:
          SettingsError: If a path is none.
          DataError: If the folder holds anything else, or is the one in which the program runs.
        """
        step = self.settle()
        notes = {
            **(notes or {}),
            "optimizer": self.optimizer,
            "operations": self.operations,
        }
        identifier = runner_files.save(
            path,
            steps,
            *step.read(),
            self._parts(),
            notes,
            axes=self.plan.program.transposed,
            base=base,
        )
        for copies in step.tables.values():
            copies[0].note_changes(identifier)

    def restore(self, path: str | Path) -> SavedRunner:
        """Reads a checkpoint into the homes, after a check of the whole checkpoint. Gradients under way are dropped.

        Args:
          path: A folder that `save` wrote.

        Returns:
          What was read; its steps and notes are the runner's.

        Raises:
          DataError: If it is of another model or optimizer.
          TableError: If files are missing, cut off or altered.
        """
        runner_files.check_optimizer(
            path,
            self.optimizer,
            self.operations,
            self.plan.program.params,
        )
        step = self._ready_for_tables()
        saved = runner_files.load(
            path,
            *step.like(),
            self._like(step),
            self.plan.program.transposed,
        )
        step.write(saved.params, saved.state, saved.tables)
        return saved

    def _like(self, step: Step) -> dict[str, list[Like]]:
        """By table how its copies are loaded."""
        if isinstance(step, DenseStep):
            return {}
        parts = step.homes.parts()
        result = {}
        for name, copies in step.tables.items():
            held = {}
            for path in self.plan.program.members[name]:
                held[path] = parts[path]
            shapes, states = (
                {path: getattr(part, what) for path, part in held.items()}
                for what in ("shape", "state")
            )
            result[name] = [
                Like(table.rule, table.settings, shapes, states, table.dtype) for table in copies
            ]
        return result

    def readable(
        self,
        by_path: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Writes paths as names with `/` between.

        Args:
          by_path: Values by path, as `jax.tree_util.keystr` writes it.

        Returns:
          The values by name.
        """
        result = {}
        for path, value in by_path.items():
            result[self._names.get(path, path)] = value
        return result

    @cached_property
    def _names(self) -> dict[str, str]:
        """By path a variable's name for users."""
        return names(self.plan.program.params)


def _longer_state(
    tx: optax.GradientTransformation,
    params: Tree,
    state: Tree,
    path: str,
    rows: np.ndarray,
) -> Tree:
    """The optimizer's state of parameters of which one has more rows."""
    leaves = leaves_of(state)
    longer = RowStates(tx, params).longer(leaves, path, rows)
    return jax.tree.unflatten(
        jax.tree.structure(state),
        (leaves | longer).values(),
    )


def with_tables_of(
    path: str | Path, model: BuiltModel, partitioners: Sequence[Partitioner]
) -> tuple[BuiltModel, SavedRunner] | None:
    """Goes on from a checkpoint of a model in which other variables are tables.

    Args:
      path: A folder that `save` wrote.
      model: The model; its processes end.
      partitioners: The user's partitioners.

    Returns:
      A model with these tables, and what was read; None if the same variables are tables, or the checkpoint is of another model.

    Raises:
      AmpError: If the checkpoint is damaged, or the user has chosen which variables are tables. Then nothing has changed.
    """
    setup = model.setup
    tables = runner_files.tables_of(path)
    if tables.axes == model.plan.program.axes:
        return None
    first = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype),
        model.plan.program.params,
    )
    try:
        runner_files.steps(path, first)
    except DataError:
        return None  # who reads it says so
    runner_files.check_optimizer(
        path,
        model.optimizer,
        model.operations,
        first,
    )
    plan = plan_again(
        model.plan,
        setup.resources,
        setup.config,
        partitioners,
        setup.tx,
        tables,
    )
    runner_files.read_whole(path, first, setup.tx)  # before anything is replaced
    if setup.group is not None:
        setup.group.end()  # workers have the old program
    other = BuiltModel(
        setup,
        plan,
        build_step(setup, plan, first),
        EquivalenceWatch(setup, plan, model.watch),
    )
    return other, other.restore(path)
