"""Plans the home of each variable: is the variable sparse, and how many of its rows does a step touch?

Looks at the loss function and one batch; makes no table and no step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from ampjax.cluster.hosts.resources import RemoteDevice, Resources
from ampjax.devices.loss_collectives import AXIS
from ampjax.devices.memory_budget import device_bytes
from ampjax.errors import ParameterError, SettingsError
from ampjax.optim.split_transform import Split
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.config.leaf_paths import matches, names
from ampjax.parallel.config.partitioner import Partitioner, PartitionGroup, group_variables
from ampjax.parallel.config.row_dtypes import check_patterns_of, row_dtype_of
from ampjax.parallel.homes.placement import place_variables
from ampjax.parallel.homes.row_homes import row_bytes
from ampjax.parallel.planning.saved_tables import AS_SAVED, SavedTables
from ampjax.parallel.planning.stacking import by_shape, split_and_stack
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_programs import LossFn
from ampjax.sparse.detection.detect import MIN_ROWS, Analysis, Variable, analyse
from ampjax.sparse.detection.loss_jaxpr import (
    MappedAxes,
    TracedLoss,
    abstract,
    signature,
    trace_loss,
)
from ampjax.sparse.rewrite.pulled_step import SparseProgram, rewrite
from ampjax.sparse.table.table_or_dense import TableOrDense, table_or_dense

Tree = Any


@dataclass(frozen=True)
class VariablePlan:
    """A model's variables and their homes. Paths are in the form of `jax.tree_util.keystr`.

    Args:
      analysis: What detection says of each variable.
      program: The loss on pulled rows of the tables, each of which holds the rows of one variable or of several.
      split: The optimizer, cut in two; None if there is no table.
      has_aux: Whether the loss function gives `(loss, aux)`.
      alpha: By sparse variable, the share of its rows that a replica touched in the first batch.
      choice: By variable: `allreduce`, `server`, `table at servers` or `table on every machine`, and why.
      groups: Tables that are split alike.
      partitions: By table the number of partitions to start with.
      servers: By table or dense variable at servers the server of each partition.
    """

    analysis: Analysis
    program: SparseProgram
    split: Split | None
    has_aux: bool
    alpha: Mapping[str, float]
    choice: Mapping[str, str]
    groups: Sequence[PartitionGroup]
    partitions: Mapping[str, int]
    servers: Mapping[str, tuple[int, ...]]

    @property
    def tables(self) -> tuple[str, ...]:
        """The variables that are kept by rows."""
        return tuple(self.program.axes)

    @property
    def table_of(self) -> dict[str, str]:
        """The table of each variable that is kept by rows, by variable."""
        result = {}
        for name, paths in self.program.members.items():
            for path in paths:
                result[path] = name
        return result

    def load(self, n_servers: int) -> list[int]:
        """Counts bytes of dense variables at each server. A new split of tables moves no dense variable."""
        result = [0] * n_servers
        for path, (server, *_) in self.servers.items():
            result[server] += 0 if path in self.program.tables else _nbytes(self.analysis[path])
        return result


def plan_variables(
    loss_fn: LossFn,
    params: Tree,
    parts: Sequence[Tree],
    resources: Resources,
    config: ParallaxConfig,
    partitioners: Sequence[Partitioner],
    tx: optax.GradientTransformation,
    saved: SavedTables | None = None,
) -> VariablePlan:
    """Plans a model.

    Args:
      loss_fn: The loss function.
      params: The parameters.
      parts: By replica its part of the first batch.
      resources: The machines.
      config: The settings.
      partitioners: The user's partitioners.
      tx: The optimizer.
      saved: The tables of the checkpoint from which the run goes on; None for a new run, in which alpha decides.

    Returns:
      What becomes of each variable.

    Raises:
      TableError: If the optimizer does not work row by row on a table.
      ParameterError: If parameters don't fit the loss function.
      DataError: If the batch is nothing that JAX takes, or a saved table is not read row by row.
      SettingsError: If the loss is no scalar, a partitioner or a pattern of what stays dense fits nothing, a `Weighted` shall be summed, or
        a setting contradicts the checkpoint.
    """
    # without a barrier each replica steps alone
    if config.sync:
        mapped = ((AXIS, len(parts)),)
    else:
        mapped = ()
    traced = trace_loss(loss_fn, params, parts[0], mapped)
    analysis = _analysis(traced, loss_fn, params, parts[0], mapped)
    text = names(params)
    _check_patterns(config.keep_dense, text)
    check_patterns_of(config.row_dtype, text.values())
    sparse = {}
    for v in analysis:
        if v.sparse and _may_be_table(v, text, config):
            sparse[v.path] = v.axes
    program = rewrite(
        loss_fn,
        params,
        parts[0],
        sparse,
        mapped,
        by_shape(analysis, sparse),
        traced,
    )
    _check_reductions(traced.is_weighted, config)
    alpha = measure_alpha(program, params, parts)
    return _plan(analysis, program, alpha, resources, config, partitioners, tx, saved)


def plan_again(
    plan: VariablePlan,
    resources: Resources,
    config: ParallaxConfig,
    partitioners: Sequence[Partitioner],
    tx: optax.GradientTransformation,
    saved: SavedTables,
) -> VariablePlan:
    """Plans the same model again, with the tables of a checkpoint.

    Args:
      plan: The present plan.
      resources: The machines.
      config: The settings.
      partitioners: The user's partitioners.
      tx: The optimizer.
      saved: The tables of the checkpoint from which the run goes on.

    Returns:
      What becomes of each variable.

    Raises:
      TableError: As `plan_variables`.
      DataError: As `plan_variables`.
      SettingsError: As `plan_variables`.
    """
    return _plan(
        plan.analysis,
        plan.program,
        plan.alpha,
        resources,
        config,
        partitioners,
        tx,
        saved,
    )


def _plan(
    analysis: Analysis,
    program: SparseProgram,
    alpha: Mapping[str, float],
    resources: Resources,
    config: ParallaxConfig,
    partitioners: Sequence[Partitioner],
    tx: optax.GradientTransformation,
    saved: SavedTables | None,
) -> VariablePlan:
    """Chooses the tables among the variables that have an alpha, and the homes of all variables."""
    text = names(program.params)
    if config.run_option == "hybrid":
        homes = _homes(analysis, alpha, resources, config)
    else:
        homes = {}
    if saved is None:
        tables = {}
        for path in alpha:
            if path not in homes or homes[path].is_table:
                tables[path] = analysis[path].axes
        program = _on_rows_of(program, tables, by_shape(analysis, tables))
    else:
        saved.require_allowed(config, alpha, text)
        program = _as_saved(program, analysis, saved, text)
    tables = program.axes
    n_rows = {
        path: math.prod(analysis[path].shape[a] for a in axes) for path, axes in tables.items()
    }
    groups = _groups(partitioners, n_rows, text)
    starts = {group: _start(group, resources, config) for group in groups}
    split = None
    if tables:
        split = split_and_stack(
            tx, program, analysis, program.params, program.batch, starts, resources, config
        )
        program = _on_rows_of(program, tables, split.members)
    of_paths = {}
    for group, n in starts.items():
        for path in group.paths:
            of_paths[path] = n
    partitions = {}
    for name, paths in program.members.items():
        partitions[name] = of_paths[paths[0]]
    choice = {}
    for v in analysis:
        choice[v.path] = _choice(
            v,
            tables,
            homes,
            config,
            saved is not None,
            row_dtype_of(config.row_dtype, text[v.path]),
        )
    return VariablePlan(
        analysis=analysis,
        program=program,
        split=split,
        has_aux=program.split_loss(program.batch).traced.has_aux,
        alpha=alpha,
        choice=choice,
        groups=groups,
        partitions=partitions,
        servers=_servers(analysis, program, partitions, resources, config),
    )


def _on_rows_of(
    program: SparseProgram,
    tables: Mapping[str, tuple[int, ...]],
    stacks: Mapping[str, Sequence[str]],
) -> SparseProgram:
    """Builds the loss on pulled rows of other tables, or of other stacks of tables."""
    if (
        tables == program.axes
        and {name: tuple(paths) for name, paths in stacks.items()} == program.members
    ):
        return program
    traced = program.split_loss(program.batch).traced
    return rewrite(
        program.loss_fn,
        program.params,
        program.batch,
        tables,
        program.mapped,
        stacks,
        traced,
    )


def _as_saved(
    program: SparseProgram, analysis: Analysis, saved: SavedTables, text: Mapping[str, str]
) -> SparseProgram:
    """Builds the loss on pulled rows of a checkpoint's tables; along other axes than saved, if the program reads other axes: then the checkpoint is of another model."""
    known = {v.path: v for v in analysis}
    try:
        return _on_rows_of(program, saved.axes, by_shape(analysis, saved.axes))
    except ParameterError as error:
        unlike = [path for path in saved.axes if path not in known or not known[path].sparse]
        if unlike:
            why = (
                f"a dense one ({known[unlike[0]].reason})"
                if unlike[0] in known
                else "no such variable"
            )
            raise saved.foreign(
                text.get(unlike[0], unlike[0]),
                why,
            ) from error
        axes = {path: known[path].axes for path in saved.axes}
        return _on_rows_of(program, axes, by_shape(analysis, axes))


def _analysis(
    traced: TracedLoss, loss_fn: LossFn, params: Tree, part: Tree, mapped: MappedAxes
) -> Analysis:
    """Analyses the variables as if each feature had ids: a batch in which a feature has none must not decide about its table."""
    shapes = abstract(part)
    with_ids = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct([n or 1 for n in leaf.shape], leaf.dtype),
        shapes,
    )
    if signature(with_ids) != signature(shapes):
        with contextlib.suppress(
            Exception
        ):  # whatever the user's program raises for sizes that it was not given
            return Analysis(analyse(trace_loss(loss_fn, params, with_ids, mapped), MIN_ROWS))
    return Analysis(analyse(traced, MIN_ROWS))


def _may_be_table(
    variable: Variable,
    text: Mapping[str, str],
    config: ParallaxConfig,
) -> bool:
    """Tells whether a sparse variable can be a table: the user does not forbid it, and tables hold such rows."""
    return not any(matches(p, text[variable.path]) for p in config.keep_dense) and not _is_double(
        variable
    )


def _check_patterns(
    patterns: Sequence[str],
    text: Mapping[str, str],
) -> None:
    for pattern in patterns:
        if not any(matches(pattern, path) for path in text.values()):
            raise SettingsError(
                f"setting `keep_dense`, `{pattern}`",
                f"a name in one of {list(text.values())}",
                "no match",
                "Write names of one of these paths, or leave the pattern out.",
            )


def _check_reductions(is_weighted: bool, config: ParallaxConfig) -> None:
    for name in ("average_dense", "average_sparse"):
        if is_weighted and getattr(config, name) != "mean":
            raise SettingsError(
                f"setting `{name}`",
                "`mean` where the loss function returns `Weighted`, which is normalised over all replicas",
                f"{getattr(config, name)!r}",
                "Leave the setting out.",
            )


def _is_double(variable: Variable) -> bool:
    return variable.dtype.itemsize > 4


def measure_alpha(
    program: SparseProgram,
    params: Tree,
    parts: Sequence[Tree],
) -> dict[str, float]:
    """By table, the share of its rows that a replica touches, the mean over replicas.

    Args:
      program: The loss on pulled rows.
      params: The parameters.
      parts: By replica its batch.

    Returns:
      By table, a number from 0 to 1.
    """
    if not program.tables:
        return {}
    dense, _ = program.split(params)
    ids_of = jax.jit(lambda batch: program.ids(dense, batch))
    return batch_rows.alphas(
        program, batch_rows.rows_of_replicas(program, [ids_of(part) for part in parts])
    )


def _groups(
    partitioners: Sequence[Partitioner],
    n_rows: Mapping[str, int],
    text: Mapping[str, str],
) -> list[PartitionGroup]:
    """The groups of tables; partitioners know short paths."""
    full = {short: path for path, short in text.items()}
    groups = group_variables(
        partitioners,
        {text[path]: n for path, n in n_rows.items()},
        list(full),
    )
    result = []
    for group in groups:
        result.append(
            PartitionGroup(
                group.label,
                tuple(full[name] for name in group.paths),
                group.low,
                group.high,
            )
        )
    return result


def _start(group: PartitionGroup, resources: Resources, config: ParallaxConfig) -> int:
    wanted = len(resources.machines) if config.partitions is None else config.partitions
    return min(max(wanted, group.low), group.high)


def _homes(
    analysis: Analysis, alpha: Mapping[str, float], resources: Resources, config: ParallaxConfig
) -> dict[str, TableOrDense]:
    """Chooses table or dense for each sparse variable: a dense variable lies on each replica's device, beside its gradient."""
    devices = []
    for machine in resources.machines:
        for device in machine.devices:
            devices.append(device)
    room = (
        None
        if any(isinstance(device, RemoteDevice) for device in devices)
        else device_bytes(devices)
    )
    result = {}
    for v in analysis:
        if v.path in alpha:
            result[v.path] = table_or_dense(
                alpha[v.path],
                v.dtype,
                config.alpha_threshold,
                2 * _nbytes(v),
                room,
            )
    return result


def _choice(
    variable: Variable,
    tables: Collection[str],
    homes: Mapping[str, TableOrDense],
    config: ParallaxConfig,
    is_continued: bool,
    narrow: str | None,
) -> str:
    path = variable.path
    home = "server" if config.dense_at_servers else "allreduce"
    if path in tables:
        home = "table on every machine" if config.run_option == "ar" else "table at servers"
        if narrow is not None:
            home = f"{home}, rows in {narrow}"
    if is_continued and path in homes and homes[path].is_table != (path in tables):
        return f"{home}: {AS_SAVED}"
    if path in tables:
        return f"{home}: {homes[path].why}" if path in homes and homes[path].is_too_large else home
    if variable.sparse and _is_double(variable):
        return f"{home}: tables hold no rows of {variable.dtype}"
    return f"{home}: {homes[path].why}" if path in homes else home


def _servers(
    analysis: Analysis,
    program: SparseProgram,
    partitions: Mapping[str, int],
    resources: Resources,
    config: ParallaxConfig,
) -> dict[str, tuple[int, ...]]:
    """Servers of all that lives at servers, placed together."""
    sizes = {}
    first = {}
    for name, paths in program.members.items():
        first[paths[0]] = program.tables[name]
    for variable in analysis:  # in the parameters' order
        if (table := first.get(variable.path)) is not None and config.run_option != "ar":
            sizes[table.path] = (table.shape[0], row_bytes(table))
        if variable.path not in program.axes and config.dense_at_servers:
            sizes[variable.path] = (1, _nbytes(variable))
    return place_variables(sizes, partitions, len(resources.servers))


def _nbytes(variable: Any) -> int:
    size = variable.dtype.itemsize
    for n in variable.shape:
        size *= n
    return size
