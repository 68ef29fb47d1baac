"""Makes a plan, the scheduler's settings and an executor from a graph and settings; the trainer and the simulator share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optax

from ampjax.devices.allreduce import Device
from ampjax.engine.executor import Executor
from ampjax.engine.parameters import NodeTraining
from ampjax.errors import GraphError, SettingsError
from ampjax.ir.graph import Graph
from ampjax.plan.affinity import assign
from ampjax.plan.device_packing import Memory
from ampjax.plan.node_memory import kept_bytes
from ampjax.plan.planner import Plan, make_plan
from ampjax.sched.decisions.policy import find_policy
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings


def require_closed(where: str, graph: Graph) -> None:
    """Checks that a graph can be run.

    Args:
      where: What an error calls the caller.
      graph: The graph.

    Raises:
      GraphError: If it is no graph, or still being built.
    """
    if not isinstance(graph, Graph):
        fix = "Pass the graph first, then the optax transform."
        raise GraphError(f"{where}, `graph`", "an `amp.Graph`", f"{type(graph).__name__}", fix)
    if not graph.closed:
        raise GraphError(
            where, "a closed graph", "one that is still being built", "Leave the `with amp.Graph()` block first."
        )


def require_transform(tx: Any) -> None:
    """Checks an optimizer.

    Args:
      tx: What the user passed.

    Raises:
      SettingsError: If it is no optax transform.
    """
    if tx is not None and not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise SettingsError(
            "setting `tx`", "an optax transform", f"{type(tx).__name__}", "Pass for example `optax.adam(1e-3)`."
        )


def scheduler_settings(graph: Graph, settings: Settings) -> SchedulerSettings:
    """Makes the scheduler's settings. A node's own options win over the common settings.

    Args:
      graph: A closed graph.
      settings: The common settings.

    Raises:
      SettingsError: If `max_staleness` names a node that has no parameters of its own.
    """
    s, nodes = settings, graph.parameterised
    return SchedulerSettings(
        max_active_keys=s.in_flight,
        min_admission=min(s.min_admission, s.in_flight),
        max_dispatch_size=s.max_dispatch_size,
        intervals={n: node.options.min_update_interval or s.min_update_interval for n, node in nodes.items()},
        budgets=budgets_of(graph, s.max_staleness),
        stashed=tuple(n for n, node in nodes.items() if (node.options.weights or s.weights) == "stashed"),
        policy=find_policy(s.policy),
        flush_every=s.flush_every,
        sync=s.sync_rule,
    )


def budgets_of(graph: Graph, max_staleness: int | Mapping[str, int] | None) -> dict[str, int]:
    """Gives each node its budget.

    Args:
      graph: A closed graph.
      max_staleness: Versions for all nodes, or by node; None for no budget.

    Returns:
      Versions by node, of those that have a budget.

    Raises:
      SettingsError: If a node is named that has no parameters of its own.
    """
    nodes = graph.parameterised
    if max_staleness is None:
        return {}
    if not isinstance(max_staleness, Mapping):
        return dict.fromkeys(nodes, max_staleness)
    for name in max_staleness:
        if name not in nodes:
            node = graph.nodes.get(name)
            shares = None if node is None or node.params_name == name else node.params_name
            got = "no node of the graph" if node is None else "a node without parameters of its own"
            fix = f"Name `{shares}`, whose parameters it uses." if shares in nodes else "Name one of these."
            raise SettingsError("setting `max_staleness`", f"names among {list(nodes)}", f"{name!r}, {got}", fix)
    return dict(max_staleness)


def plan_for(
    graph: Graph, settings: Settings, tx: optax.GradientTransformation | None, device_of: Sequence[int]
) -> Plan:
    """Places a graph's nodes on workers and cuts it into stages.

    Args:
      graph: A closed graph.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.
      device_of: The device of each worker.

    Raises:
      SettingsError: If a placement is wrong, or needs more memory than devices have.
    """
    s, limit = settings, settings.device_memory
    memory = None if limit is None else Memory(limit, kept_bytes(graph, tx), device_of)
    return make_plan(graph, assign(graph, s.workers, s.affinity, s.seed, memory=memory), device_of, s.fuse)


def node_training(graph: Graph, settings: Settings, tx: optax.GradientTransformation | None) -> dict[str, NodeTraining]:
    """How each node is trained: as its own options say, or else as the settings say.

    Args:
      graph: A closed graph.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.
    """
    default = tx if tx is not None else optax.adam(1e-3)
    return {
        name: NodeTraining(node.options.tx or default, node.options.gradient or settings.gradient, node.table)
        for name, node in graph.parameterised.items()
    }


def make_executor(
    plan: Plan,
    settings: Settings,
    tx: optax.GradientTransformation | None,
    params: Mapping[str, Any],
    devices: Sequence[Device],
) -> Executor:
    """Makes an executor.

    Args:
      plan: The plan.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.
      params: Parameters by node name; the others are initialised from the seed.
      devices: The device of each memory space.

    Raises:
      ParameterError: If parameters do not fit the graph, or are not finite.
    """
    training = node_training(plan.graph, settings, tx)
    start = initial_params(plan.graph, params, settings.seed)
    return Executor(plan, start, training, devices, scheduler_settings(plan.graph, settings).stashed)
