"""Makes a plan, the scheduler's settings and an executor from a graph and settings; used by the trainer and the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax

from ampjax.devices.allreduce import Device
from ampjax.engine.executor import Executor
from ampjax.errors import GraphError, SettingsError
from ampjax.ir.graph import Graph
from ampjax.plan.affinity import HostWorkers, assign
from ampjax.plan.device_packing import DeviceMemory
from ampjax.plan.node_memory import bytes_of, kept_bytes
from ampjax.plan.planner import Plan, make_plan
from ampjax.sched.decisions.parameter_changes import ReplicaSync
from ampjax.sched.decisions.policy import find_policy
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.train.initial_params import initial_params
from ampjax.train.optimizers.node_optimizers import Optimizers, optimizers_of
from ampjax.train.settings import Settings


def require_closed(
    where: str,
    graph: Graph,
    by_messages: bool = True,
) -> None:
    """Checks that a graph can be run.

    Args:
      where: What an error calls the caller.
      graph: The graph.
      by_messages: Whether it is to pass messages.

    Raises:
      GraphError: If it is no graph, still being built, or has no messages where it is to pass some.
    """
    if not isinstance(graph, Graph):
        is_compiled = isinstance(getattr(graph, "graph", None), Graph)
        fix = (
            "Pass its `.graph`."
            if is_compiled
            else "Pass the graph first, then the optax transform."
        )
        raise GraphError(
            f"{where}, `graph`", "an `amp.graphs.Graph`", f"{type(graph).__name__}", fix
        )
    if not graph.closed:
        raise GraphError(
            where,
            "a closed graph",
            "one that is still being built",
            "Leave the `with amp.graphs.Graph()` block first.",
        )
    if graph.batches_only and by_messages:
        raise GraphError(
            f"{where}, `graph`",
            "a graph that passes messages",
            "one that was compiled with `messages=False`, for `mode='batch'` alone",
            "Train with `mode='batch'`, or compile without `messages=False`.",
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
            "setting `tx`",
            "an optax transform",
            f"{type(tx).__name__}",
            "Pass for example `optax.adam(1e-3)`.",
        )


def scheduler_settings(
    graph: Graph, settings: Settings, tx: optax.GradientTransformation | None = None
) -> SchedulerSettings:
    """Makes the scheduler's settings. A node's own options win over the common settings.

    Args:
      graph: A closed graph.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.

    Raises:
      SettingsError: If `max_staleness`, `drop_staler_than` or `exact_staleness` names a node that has no parameters of its own, or the first
        and the last do not go together.
    """
    s = settings
    nodes = graph.parameterised
    return SchedulerSettings(
        max_active_keys=s.in_flight,
        min_admission=min(s.min_admission, s.in_flight),
        max_dispatch_size=s.dispatch_limit,
        intervals={
            n: node.options.min_update_interval or s.min_update_interval
            for n, node in nodes.items()
        },
        budgets=_budgets_of(graph, s),
        stalest=_by_node(graph, "drop_staler_than", s.drop_staler_than),
        stashed=stashed_nodes(graph, s),
        estimated=_find_estimated(graph, s),
        policy=find_policy(s.policy),
        flush_every=s.flush_every,
        joint=optimizers(graph, s, tx).joint,
        # Copies of a node that are updated together stay equal.
        sync=s.sync_rule if s.flush_every is None else ReplicaSync("none"),
    )


def stashed_nodes(graph: Graph, settings: Settings) -> tuple[str, ...]:
    """The nodes whose adjoint uses the forward pass's parameters.

    Args:
      graph: A closed graph.
      settings: The common settings.
    """
    return _with_weights("stashed", graph, settings)


def _with_weights(
    weights: str,
    graph: Graph,
    settings: Settings,
) -> tuple[str, ...]:
    """Lists the nodes whose adjoint uses such parameters. Nodes with a table do not: a look-up's gradient does not depend on the rows."""
    nodes = graph.parameterised.items()
    result = []
    for n, node in nodes:
        if (node.options.weights or settings.weights) == weights and node.table is None:
            result.append(n)
    return tuple(result)


def _find_estimated(graph: Graph, settings: Settings) -> tuple[str, ...]:
    """Lists the nodes whose adjoint uses an estimate of the forward pass's parameters; in rounds the estimates are the current parameters."""
    return _with_weights("estimated", graph, settings) if settings.flush_every is None else ()


def delays_of(graph: Graph, settings: Settings) -> dict[str, int]:
    """Gives each node its `exact_staleness`.

    Args:
      graph: A closed graph.
      settings: The common settings.

    Returns:
      Updates by node, of those for which it is set.

    Raises:
      SettingsError: If a node is named that has no parameters of its own, or one's parameters are a table.
    """
    delays = _by_node(graph, "exact_staleness", settings.exact_staleness)
    for name in delays:
        if graph.parameterised[name].table is not None:
            fix = "Name the nodes that are to have it, as in `exact_staleness={'linear': 2}`, or use `amp.nn.Embed`."
            got = f"`{name}`, whose rows a table updates"
            raise SettingsError(
                "setting `exact_staleness`", "nodes with parameters on a device", got, fix
            )
    return delays


def _budgets_of(graph: Graph, settings: Settings) -> dict[str, int]:
    """The budget of each node that has one. Where staleness is exact none may come by itself.

    Raises:
      SettingsError: As `scheduler_settings`.
    """
    budgets = _by_node(graph, "max_staleness", settings.max_staleness)
    delays = delays_of(graph, settings)
    for name, k in delays.items():
        if k > budgets.get(name, k):
            what = f"at most `max_staleness`, {budgets[name]} for `{name}`"
            raise SettingsError("setting `exact_staleness`", what, f"{k}", "Leave one of them out.")
    return {**budgets, **dict.fromkeys(delays, 0)}


def _by_node(
    graph: Graph,
    setting: str,
    value: int | Mapping[str, int] | None,
) -> dict[str, int]:
    """A setting in versions, by node.

    Raises:
      SettingsError: If a node is named that has no parameters of its own.
    """
    nodes = graph.parameterised
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(nodes, value)
    for name in value:
        if name not in nodes:
            node = graph.nodes.get(name)
            shares = None if node is None or node.params_name == name else node.params_name
            got = "no node of the graph" if node is None else "a node without parameters of its own"
            fix = (
                f"Name `{shares}`, whose parameters it uses."
                if shares in nodes
                else "Name one of these."
            )
            raise SettingsError(
                f"setting `{setting}`", f"names among {list(nodes)}", f"{name!r}, {got}", fix
            )
    return dict(value)


def plan_for(
    graph: Graph,
    settings: Settings,
    tx: optax.GradientTransformation | None,
    device_of: Sequence[int],
    hosts: HostWorkers | None = None,
) -> Plan:
    """Places a graph's nodes on workers and cuts the graph into stages.

    Args:
      graph: A closed graph.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.
      device_of: The device of each worker.
      hosts: The workers of each host, by its name.

    Raises:
      SettingsError: If a placement is wrong, or needs more memory than devices have.
    """
    s = settings
    limit = settings.device_memory
    if limit is None:
        memory = None
    else:
        memory = DeviceMemory(limit, _kept_bytes(graph, s, tx), device_of)
    placed = assign(
        graph,
        s.workers,
        s.affinity,
        s.seed,
        memory=memory,
        hosts=hosts,
    )
    return make_plan(graph, placed, device_of, s.fuse)


def _kept_bytes(
    graph: Graph, settings: Settings, tx: optax.GradientTransformation | None
) -> dict[str, int]:
    """Bytes that each node keeps on its device; the optimizer state of a joint group is with its first node."""
    trained = optimizers(graph, settings, tx)
    transforms = {}
    for name, own in trained.training.items():
        transforms[name] = own.tx or optax.identity()
    sizes = kept_bytes(graph, transforms=transforms)
    for group in trained.groups:
        bodies = {}
        for role, names in group.nodes.items():
            bodies[role] = graph.nodes[names[0]].op.body
        shapes = {}
        for role, body in bodies.items():
            shapes[role] = jax.eval_shape(
                body.init,
                jax.random.key(0),
            )
        unread = dict(graph.unread) if group.updates_unread else {}
        sizes[group.names[0]] += bytes_of(
            jax.eval_shape(
                group.transform.init,
                shapes,
                unread,
            )
        )
    return sizes


def optimizers(
    graph: Graph, settings: Settings, tx: optax.GradientTransformation | None
) -> Optimizers:
    """Tells how each node is trained: as its own options say, or else as the settings say.

    Args:
      graph: A closed graph.
      settings: The common settings.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.

    Raises:
      SettingsError: If a transform does not fit the parameters that it is to update.
    """
    return optimizers_of(
        graph,
        settings,
        tx,
        delays_of(graph, settings),
        frozenset(_find_estimated(graph, settings)),
    )


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
    trained = optimizers(plan.graph, settings, tx)
    start = initial_params(plan.graph, params, settings.seed)
    stashed = stashed_nodes(plan.graph, settings)
    return Executor(plan, start, trained.training, devices, stashed, trained.groups)
