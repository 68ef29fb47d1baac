"""Builds the parts that a plan describes: tables, homes, and the kind of step that the settings ask for. Runs no step."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax.numpy as jnp
import optax

from ampjax.cluster.hosts.resources import Resources
from ampjax.optim.row_rule import RowRule
from ampjax.optim.split_transform import Split
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.config.leaf_paths import names, readable
from ampjax.parallel.config.row_dtypes import row_dtype_of
from ampjax.parallel.homes.all_homes import VariableHomes, naming_variable
from ampjax.parallel.homes.column_reads import Readings
from ampjax.parallel.homes.dense_homes import DenseAtServers, DenseHome, DenseOnDevices
from ampjax.parallel.homes.placement import in_turn
from ampjax.parallel.homes.row_copies import RowsOnEveryMachine
from ampjax.parallel.homes.row_homes import RowHome, RowsAtServers
from ampjax.parallel.homes.server_totals import ServerTotals
from ampjax.parallel.homes.wire import MachineWire
from ampjax.parallel.planning.stacking import split_optimizer
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.steps.asynchronous_steps import AsyncStep
from ampjax.parallel.steps.replicas_here import ReplicasHere
from ampjax.parallel.steps.step_programs import GradientReduction, LossFn
from ampjax.parallel.steps.synchronous_steps import DenseStep, SparseStep
from ampjax.parallel.workers.asynchronous_workers import ReplicasAtWorkers
from ampjax.parallel.workers.dense_at_workers import DenseAtWorkers
from ampjax.parallel.workers.process_group import ProcessGroup
from ampjax.parallel.workers.worker_program import WorkerProgram
from ampjax.parallel.workers.workers_step import WorkersStep
from ampjax.sparse.servers.exports import jax_settings
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_parts import StackedValues

Tree = Any
Step = DenseStep | SparseStep | AsyncStep | WorkersStep


@dataclass(frozen=True)
class RunnerSetup:
    """The inputs of a training: loss, settings, optimizer and machines.

    Args:
      loss_fn: The single-device loss function.
      tx: An optax transform.
      resources: The machines.
      config: The settings.
      wire: The way between machines.
      processes: The servers' processes, started when a table needs them; None where servers are in this process.
      group: All processes, where replicas are processes too.
    """

    loss_fn: LossFn
    tx: optax.GradientTransformation
    resources: Resources
    config: ParallaxConfig
    wire: MachineWire
    processes: ServerProcesses | None = None
    group: ProcessGroup | None = None


def build_step(setup: RunnerSetup, plan: VariablePlan, params: Tree) -> Step:
    """Makes the step of a planned model, with its parameters in their homes.

    Args:
      setup: What it is trained with.
      plan: What becomes of each variable.
      params: The first parameters.

    Returns:
      The step.

    Raises:
      TableError: If the optimizer does not work row by row on a table.
      SettingsError: If `tx` is no optax transform.
    """
    config = setup.config
    resources = setup.resources
    reduction = _reduction(setup, plan)
    if setup.group is None and not plan.tables and reduction.across:
        step = DenseStep(
            setup.loss_fn,
            plan.has_aux,
            setup.tx,
            resources.devices,
            reduction,
            config.check_finite,
        )
        step.write(params, setup.tx.init(params))
        return step
    split = plan.split or split_optimizer(
        setup.tx,
        plan.program,
        params,
        {},
        config.check_finite,
    )
    dense, rows = plan.program.split(params)
    values = {}
    for name, paths in plan.program.members.items():
        values[name] = _stack_rows(paths, rows)
    if setup.group is not None and setup.processes is not None:
        setup.group.carry(
            _worker_program(setup, plan, reduction),
            setup.processes.answer_question,
        )
    homes = VariableHomes(
        split,
        _dense_home(setup, plan, split, dense, names(params)),
        {
            name: _row_home(setup, plan, name, split.rules[name], values[name])
            for name in plan.program.tables
        },
        plan.program.stacks,
        ServerTotals(resources, setup.wire, config.boundary_among_servers),
        plan.load(len(resources.servers)),
    )
    shared = (
        plan.program,
        plan.has_aux,
        homes,
        Readings(plan.program, config.boundary_between_workers_and_servers),
    )
    if setup.group is not None:
        if config.sync:
            return WorkersStep(*shared, setup.group, resources, config.check_finite)
        at_workers = ReplicasAtWorkers(*shared, setup.group, resources, config.check_finite)
        return AsyncStep(*shared, at_workers, config.max_staleness)
    if not config.sync:
        return AsyncStep(
            *shared, ReplicasHere(*shared, resources, config.check_finite), config.max_staleness
        )
    return SparseStep(*shared, resources.devices, reduction, config.check_finite)


def _worker_program(
    setup: RunnerSetup, plan: VariablePlan, reduction: GradientReduction
) -> WorkerProgram:
    program = plan.program
    shared = (
        program.params,
        program.batch,
        dict(program.axes),
        program.members,
        program.mapped,
        plan.has_aux,
        reduction,
    )
    return WorkerProgram(
        setup.loss_fn,
        setup.tx,
        *shared,
        setup.config.check_finite,
        setup.config.sync,
        jax_settings(),
    )


def restart_step(
    setup: RunnerSetup,
    plan: VariablePlan,
    step: Step,
    params: Tree,
) -> None:
    """Puts other parameters into a step's homes, with fresh optimizer state; tables keep their split.

    Args:
      setup: What the model is trained with.
      plan: What became of each variable.
      step: The step.
      params: Parameters like the first ones.
    """
    if isinstance(step, DenseStep):
        step.write(params, setup.tx.init(params))
        return
    dense, rows = plan.program.split(params)
    values = {}
    for name, paths in plan.program.members.items():
        values[name] = _stack_rows(paths, rows)
    tables = {}
    for name, copies in step.tables.items():
        tables[name] = [Table(values[name], table.rule, **table.settings) for table in copies]
    step.write(dense, step.homes.split.init(dense), tables)


def _stack_rows(
    paths: Sequence[str],
    rows: Mapping[str, Any],
) -> Any:
    """The rows of a table's variables, one after the other."""
    if len(paths) == 1:
        return rows[paths[0]]
    return StackedValues([rows[path] for path in paths])


def _reduction(setup: RunnerSetup, plan: VariablePlan) -> GradientReduction:
    config = setup.config
    return GradientReduction(
        n=len(setup.resources.devices),
        dense=config.average_dense,
        sparse=config.average_sparse,
        by_rows=frozenset(plan.analysis.sparse),
        across=not config.dense_at_servers,
        gather=config.run_option == "ar",
        at_once=setup.group is not None,
    )


def _dense_home(
    setup: RunnerSetup,
    plan: VariablePlan,
    split: Split,
    params: Tree,
    text: dict[str, str],
) -> DenseHome:
    config = setup.config
    resources = setup.resources
    if setup.group is not None and not config.dense_at_servers:
        return DenseAtWorkers(split, params, setup.group)
    if not config.dense_at_servers:
        return DenseOnDevices(split, params, resources.devices)
    servers = {}
    for path, servers_of in plan.servers.items():
        if path not in plan.program.tables:
            servers[text[path]] = servers_of[0]
    together = (
        config.local_aggregation and setup.group is None
    )  # processes pull and push for themselves
    return DenseAtServers(split, params, resources, servers, setup.wire, together)


def _row_home(
    setup: RunnerSetup, plan: VariablePlan, path: str, rule: RowRule, values: Any
) -> RowHome:
    config = setup.config
    resources = setup.resources
    if config.run_option == "ar":
        # Each machine's table is at its own servers; where these are no processes, a table has one of its own.
        servers = []
        for m in range(len(resources.machines)):
            servers.append((0,) if setup.group is None else resources.servers_of(m))
        n = plan.partitions[path]
        tables = []
        for server in servers:
            tables.append(
                _table(
                    setup,
                    plan,
                    path,
                    rule,
                    values,
                    n,
                    in_turn(server, n),
                )
            )
        return RowsOnEveryMachine(path, tables, resources, setup.wire, servers)
    table = _table(
        setup,
        plan,
        path,
        rule,
        values,
        plan.partitions[path],
        plan.servers[path],
    )
    return RowsAtServers(
        path, table, resources, setup.wire, config.local_aggregation, setup.group is None
    )


def _table(
    setup: RunnerSetup,
    plan: VariablePlan,
    path: str,
    rule: RowRule,
    values: Any,
    partitions: int,
    servers: Any,
) -> Table:
    config = setup.config
    # Those in one stack keep their rows alike.
    first = names(plan.program.params)[plan.program.members[path][0]]
    row_dtype = row_dtype_of(config.row_dtype, first)
    wire_dtype = jnp.dtype(config.wire_dtype) if config.wire_dtype != "float32" else None
    settings = {
        "mode": config.table_mode,
        "wire_dtype": wire_dtype,
        "folder": config.folder,
        "processes": setup.processes,
        "row_dtype": row_dtype,
    }
    if row_dtype is not None:  # each table has random numbers of its own
        settings["rounding_seed"] = zlib.crc32(first.encode(), config.seed % 2**32)
    if config.table_sharing is not None:
        assert config.folder is not None  # as settings say
        settings |= {
            "folder": Path(config.folder) / quote(readable(path), safe=""),
            "sharing": config.table_sharing,
        }
    return naming_variable(
        path,
        lambda: Table(values, rule, partitions=partitions, servers=servers, **settings),
    )
