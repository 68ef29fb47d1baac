"""Starts the hosts of a trainer's workers, and makes the executor that uses the hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import optax

from ampjax.devices.allreduce import Device
from ampjax.devices.random_keys import on_host
from ampjax.errors import GraphError
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosted_groups import Together
from ampjax.hosts.hosts import Hosts
from ampjax.hosts.starting.in_processes import start_processes
from ampjax.hosts.starting.in_threads import start_threads
from ampjax.hosts.starting.make_host import HostProgram
from ampjax.ir.host_tables import HostTable
from ampjax.optim.joint.params_form import UNREAD
from ampjax.plan.planner import Plan
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.travelling_table import TravellingTable
from ampjax.train.assemble import optimizers, stashed_nodes
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings


def with_workers(settings: Settings, hosts: Hosts) -> Settings:
    """Settings with a worker for each memory space at least.

    Args:
      settings: The settings.
      hosts: Where workers are.
    """
    if settings.workers >= hosts.n_spaces:
        return settings
    return replace(settings, workers=hosts.n_spaces)


def start_hosts(
    plan: Plan,
    settings: Settings,
    tx: optax.GradientTransformation | None,
    params: Mapping[str, Any],
    hosts: Hosts,
    devices: Sequence[Device],
) -> HostedExecutor:
    """Starts hosts, and makes the executor through which the hosts carry out launches.

    Args:
      plan: The plan.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own.
      params: Parameters by node name; the others are initialised from the seed.
      hosts: Where workers are.
      devices: The devices of this process, for hosts that are threads of it.

    Raises:
      ParameterError: If parameters do not fit the graph, or are not finite.
      HostError: If a host does not start.
      GraphError: If a node's parameters are a table in mapped files or at server processes, which no host can keep in its memory.
    """
    tables = {}
    for name, node in plan.graph.parameterised.items():
        if node.table is not None:
            tables[name] = _send_table(name, node.table)
    trained = optimizers(plan.graph, settings, tx)
    training = dict(trained.training)
    training |= {
        name: replace(training[name], table=table.without_rows()) for name, table in tables.items()
    }
    start = jax.tree.map(
        on_host,
        initial_params(plan.graph, params, settings.seed),
    )
    unread = start.pop(UNREAD, {})
    program = HostProgram(
        plan.graph,
        dict(plan.worker_of),
        plan.spaces,
        settings.fuse,
        hosts.host_of_space,
        start,
        training,
        stashed_nodes(plan.graph, settings),
    )
    together = Together(trained.groups, unread, devices[0])
    if hosts.kind == "threads":
        return start_threads(program, plan, hosts, devices, tables, together)
    return start_processes(program, plan, hosts, tables, together)


def _send_table(node: str, table: HostTable) -> TravellingTable:
    """Makes a node's table ready for its host. The whole table travels, so it must be in this process's memory.

    Raises:
      GraphError: If it is not.
    """
    if not isinstance(table, Table):
        raise _not_here(node, type(table).__name__)
    for setting, where in (("folder", "in mapped files"), ("processes", "at server processes")):
        if table.settings[setting] is not None:
            raise _not_here(node, f"one {where}")
    return TravellingTable.of(table)


def _not_here(node: str, got: str) -> GraphError:
    fix = "Make a `Table` without `folder` and `processes`: the host of the node keeps its rows. Or leave `hosts` out."
    return GraphError(f"node `{node}`, on hosts", "a table in this process's memory", got, fix)
