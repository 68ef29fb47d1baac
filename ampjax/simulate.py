"""Runs a graph on machines that one need not own: the real scheduler, in virtual time, against a cost model (AMPNet, Appendix C)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from ampjax.engine.cost import Cost, FlopsCost
from ampjax.engine.executor import Executor, NodeTraining
from ampjax.engine.loop import Loop
from ampjax.engine.source import Source
from ampjax.engine.trace import Trace, scaled
from ampjax.engine.virtual_driver import VirtualDriver
from ampjax.errors import GraphError, SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances
from ampjax.params import initial_params
from ampjax.sched.affinity import assign
from ampjax.sched.plan import Plan, make_plan
from ampjax.sched.policy import find_policy
from ampjax.sched.scheduler import Scheduler, SchedulerSettings
from ampjax.sched.stats import Statistics
from ampjax.settings import Settings


@dataclass(frozen=True)
class Simulation:
    """What a simulated run came to.

    Args:
      instances: Instances that went through.
      seconds: Virtual time that passed.
      stats: What the scheduler counted.
      trace: Where each worker's time went, if a trace was asked for.
      metrics: Loss and metrics; empty without numerics.
      params: Parameters after the run, by node name; empty without numerics.
    """

    instances: int
    seconds: float
    stats: Statistics
    trace: Trace | None
    metrics: Mapping[str, float]
    params: Mapping[str, Any]

    @property
    def per_s(self) -> float:
        """Instances per virtual second; infinite where nothing took any time."""
        return self.instances / self.seconds if self.seconds else float("inf")

    def __repr__(self) -> str:
        time, unit = scaled(1e9 * self.seconds)
        return f"Simulation({self.instances} instances in {time:.4g} {unit}: {self.per_s:,.0f}/s; {self.stats.messages} messages, {self.stats.updates} updates)"


def simulate(
    graph: Graph,
    data: Instances | Sequence[Any],
    *,
    cost: Callable[[Plan], Cost] = FlopsCost,
    numerics: bool = False,
    tx: optax.GradientTransformation | None = None,
    params: Mapping[str, Any] | None = None,
    train: bool = True,
    trace: Trace | None = None,
    **options: Any,
) -> Simulation:
    """One pass over some instances in virtual time, each worker with a device of its own.

    Args:
      graph: A closed graph.
      data: The instances, taken in order.
      cost: Makes the cost model from the plan: for example `functools.partial(FlopsCost, flops=1e12, latency_ns=500)`. By default
        the paper's hypothetical device of 10^12 operations a second.
      numerics: Whether the kernels run too, so that metrics and parameters come out; else only control flows.
      tx: With numerics: the optax transform of every parameterised node that has none of its own; by default `optax.adam(1e-3)`.
      params: With numerics: parameters by node name; nodes that are left out are initialised from the seed.
      train: False runs inference.
      trace: Filled with where each worker's time goes.
      **options: The settings of the run, as for `Trainer`: see `Settings`. `memory_limit` and `run_ahead` mean nothing here.

    Returns:
      Time, throughput, counts.

    Raises:
      GraphError: If the graph is not closed.
      SettingsError: If a setting is outside what it can be, or there is no instance.
      DeadlockError: If nothing can move.
    """
    if not graph.closed:
        raise GraphError(
            "simulate",
            "a closed graph",
            "one that is still being built",
            "Leave the `with amp.Graph()` block first.",
        )
    s = _settings(options)
    ragged = [name for name, node in graph.pumps.items() if node.outputs[0].type.ragged]
    instances = data if isinstance(data, Instances) else InstanceList(data, ragged)
    if not len(instances):
        raise SettingsError("simulate, data", "at least one instance", "none", "Pass a data set that is not empty.")
    plan = make_plan(graph, assign(graph, s.workers, s.affinity, s.seed), range(s.workers), s.fuse)
    nodes = graph.parameterised
    stashed = tuple(n for n, node in nodes.items() if (node.options.weights or s.weights) == "stashed")
    intervals = {n: node.options.min_update_interval or s.min_update_interval for n, node in nodes.items()}
    scheduler = Scheduler(
        plan,
        SchedulerSettings(
            s.in_flight, s.max_dispatch_size, intervals, stashed, find_policy(s.policy), s.flush_every, s.sync_rule
        ),
        s.check,
    )
    executor = _executor(plan, s, tx, params or {}, stashed) if numerics else None
    loop = Loop(scheduler, executor, [Source(scheduler, executor, instances, np.arange(len(instances)), train)])
    seconds = VirtualDriver(loop, cost(plan), trace).run() / 1e9
    return Simulation(
        len(instances),
        seconds,
        scheduler.stats,
        trace,
        executor.take_metrics(train) if executor is not None else {},
        jax.tree.map(np.array, executor.params) if executor is not None else {},
    )


def _settings(options: dict[str, Any]) -> Settings:
    for name in options:
        if name not in Settings.__dataclass_fields__:
            raise SettingsError(
                f"setting `{name}`",
                f"one of {sorted(Settings.__dataclass_fields__)}",
                "an unknown setting",
                "Check its spelling.",
            )
    return Settings(**options)


def _executor(
    plan: Plan,
    s: Settings,
    tx: optax.GradientTransformation | None,
    params: Mapping[str, Any],
    stashed: tuple[str, ...],
) -> Executor:
    """An executor with as many memory spaces as workers, on the devices that there are, in turn."""
    default = tx if tx is not None else optax.adam(1e-3)
    training = {
        n: NodeTraining(node.options.tx or default, node.options.gradient or s.gradient)
        for n, node in plan.graph.parameterised.items()
    }
    available = jax.devices()
    devices = [available[w % len(available)] for w in range(s.workers)]
    return Executor(plan, initial_params(plan.graph, params, s.seed), training, devices, stashed, s.seed)
