"""Makes the executor of a trainer whose workers are on hosts, and starts these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax

from ampjax.devices.allreduce import Device
from ampjax.errors import GraphError
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import Hosts
from ampjax.hosts.in_processes import start_processes
from ampjax.hosts.in_threads import start_threads
from ampjax.hosts.make_host import HostProgram
from ampjax.plan.planner import Plan
from ampjax.train.assemble import node_training, scheduler_settings
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings


def with_workers(settings: Settings, hosts: Hosts) -> Settings:
    """Settings with a worker for each memory space at least.

    Args:
      settings: The settings.
      hosts: Where workers are.
    """
    return settings if settings.workers >= hosts.n_spaces else replace(settings, workers=hosts.n_spaces)


def start_hosts(
    plan: Plan,
    settings: Settings,
    tx: optax.GradientTransformation | None,
    params: Mapping[str, Any],
    hosts: Hosts,
    devices: Sequence[Device],
) -> HostedExecutor:
    """Starts hosts, and makes the executor that lets them carry launches out.

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
      GraphError: If a node's parameters are a table in this process's memory.
    """
    for name, node in plan.graph.parameterised.items():
        if node.table is not None:
            fix = "Leave `hosts` out, or use `amp.nn.Embed`."
            raise GraphError(f"node `{name}`, on hosts", "parameters on a device", "a table in this process", fix)
    program = HostProgram(
        plan.graph,
        dict(plan.worker_of),
        plan.spaces,
        settings.fuse,
        hosts.host_of_space,
        jax.tree.map(np.asarray, initial_params(plan.graph, params, settings.seed)),
        node_training(plan.graph, settings, tx),
        scheduler_settings(plan.graph, settings).stashed,
    )
    if hosts.kind == "threads":
        return start_threads(program, plan, hosts, devices)
    return start_processes(program, plan, hosts)
