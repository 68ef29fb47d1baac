"""Runs a graph on simulated machines: the real scheduler, in virtual time, against a cost model (AMPNet, Appendix C)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import numpy as np
import optax

from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.cost import Cost, FlopsCost
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.engine.executor import Executor
from ampjax.engine.memory.loss_metrics import metrics_of
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances
from ampjax.plan.passes import Pass
from ampjax.plan.planner import Plan
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.decisions.dispatch import FORWARD
from ampjax.sched.diagnose.statistics import Statistics
from ampjax.sched.scheduler import Scheduler
from ampjax.simulation.calls import Calls
from ampjax.simulation.cluster_cost import ClusterCost
from ampjax.simulation.hosted_driver import HostedDriver
from ampjax.simulation.measuring import (
    Measure,
    driver_ns,
    host_ns,
    loop_over,
    measure_devices,
    measure_host,
    measured_pass,
    training_times,
)
from ampjax.simulation.profile import Measured, Profile, medians
from ampjax.simulation.profile_cost import HostedCost
from ampjax.trace.trace import Trace, scale_time
from ampjax.train.assemble import (
    make_executor,
    plan_for,
    require_closed,
    require_transform,
    scheduler_settings,
)
from ampjax.train.settings import Settings, require_messages, settings_from
from ampjax.train.training_data import as_instances
from ampjax.utils.blocking import blocking


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated run.

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
        time, unit = scale_time(1e9 * self.seconds)
        return f"Simulation({self.instances} instances in {time:.4g} {unit}: {self.per_s:,.0f}/s; {self.stats.messages} messages, {self.stats.updates} updates)"


def simulate(
    graph: Graph,
    data: Instances | Sequence[Any],
    *,
    cost: Callable[[Plan], Cost | HostedCost | ClusterCost] = FlopsCost,
    numerics: bool = False,
    tx: optax.GradientTransformation | None = None,
    params: Mapping[str, Any] | None = None,
    train: bool = True,
    trace: Trace | None = None,
    **options: Any,
) -> Simulation:
    """Runs one pass over some instances in virtual time; each worker has a device of its own.

    Args:
      graph: A closed graph.
      data: The instances, taken in order.
      cost: Makes the cost model from the plan: for example `functools.partial(FlopsCost, flops=1e12, latency_ns=500)`. By default
        the paper's hypothetical device of 10^12 operations a second. A `HostedCost` models a machine like this one, whose one host thread
        decides and issues for all workers; a `ClusterCost` models several hosts, for which one driver decides.
      numerics: Whether the kernels run too, so that there are metrics and parameters; else only control runs.
      tx: The optax transform of every parameterised node that has none of its own; by default `optax.adam(1e-3)`. Without numerics it
        only matters for `device_memory`.
      params: With numerics: parameters by node name; nodes that are left out are initialised from the seed.
      train: False runs inference: for the losses, or for the sinks if there is no loss.
      trace: Gets a record of each worker's time; not with a `HostedCost` or a `ClusterCost`.
      **options: The settings of the run, as for `Trainer`: see `Settings`. `memory_limit` has no effect here, and `run_ahead` only with a
        `HostedCost` or a `ClusterCost`.

    Returns:
      Time, throughput and counts.

    Raises:
      GraphError: If the graph is not closed.
      SettingsError: If a setting is outside what it can be, nodes don't fit into `device_memory`, or there is no instance.
      DeadlockError: If nothing can move.
    """
    require_closed("simulate", graph)
    require_transform(tx)
    s = settings_from(options)
    require_messages("simulate", s)
    instances = as_instances(graph, data)
    plan = plan_for(graph, s, tx, range(s.workers))
    scheduler = Scheduler(plan, scheduler_settings(graph, s, tx), s.check)
    inference = "losses" if any(stage.kind.starts_backward for stage in plan.stages) else "sinks"
    purpose = "train" if train else inference
    whole = Pass(
        instances,
        np.arange(len(instances)),
        purpose,
        seeds=RowSeeds(s.seed),
    )
    if numerics:
        executor = _executor(plan, s, tx, params)
    else:
        executor = None
    loop = DriverLoop(scheduler, executor, [InstanceSource(scheduler, whole)])
    seconds = _driver(loop, cost(plan), trace, s).run() / 1e9
    return Simulation(
        len(instances),
        seconds,
        scheduler.counts.read(),
        trace,
        metrics_of(
            executor.losses.take(train),
            len(instances),
        )
        if executor is not None
        else {},
        jax.tree.map(
            np.array,
            executor.store.all_params,
        )
        if executor is not None
        else {},
    )


def profile(
    graph: Graph,
    data: Instances | Sequence[Any],
    *,
    passes: int = 3,
    tx: optax.GradientTransformation | None = None,
    **options: Any,
) -> Profile:
    """Measures the time of each kernel on this machine, and the host's time to issue kernels, to simulate machines like this one.

    A first training pass compiles. Then `passes` passes run one dispatch at a time, to measure the devices, and as many with the host ahead of
    the devices, to measure the host. If kernels can make updates, all this is done once with such updates and once without. As many passes run as a trainer
    runs them, to see what the host's thread does besides.

    Args:
      graph: A closed graph.
      data: Some instances, more than are in flight at once, so that dispatches of all sizes occur.
      passes: The number of passes of each kind.
      tx: As for `simulate`.
      **options: The settings that the simulation will have.

    Returns:
      The profile. Give `simulate` a cost `lambda plan: ProfileCost(plan, profile)`.

    Raises:
      GraphError: If the graph is not closed.
      SettingsError: If a setting is outside what it can be, or there is no instance.
    """
    require_closed("profile", graph)
    require_transform(tx)
    s = settings_from(options)
    require_messages("profile", s)
    instances = as_instances(graph, data)
    plan = plan_for(graph, s, tx, range(s.workers))
    scheduler = Scheduler(plan, scheduler_settings(graph, s, tx), s.check)
    executor = _executor(plan, s, tx, None)

    times = training_times(scheduler, executor, instances, s.seed)
    tables = [table for tables in islice(times, passes) for table in tables]
    # What the driver does between calls and decisions is not in the parts: a run is measured, the first one compiles what is left.
    driven = []
    for _ in range(passes + 1):
        driven.append(
            blocking(driver_ns(loop_over(scheduler, executor, instances, seed=s.seed), s.run_ahead))
        )
    parts = statistics.median(
        host_ns(table) for table in tables if "control" in table and "issue" in table
    )
    only_seen = set()
    for stage in plan.stages:
        if not stage.trains and not stage.kind.is_sink:
            only_seen.add(f"{FORWARD} {stage.name}")

    def list_predicted(measure: Measure) -> Measured:
        """The stages that only predictions run; all others have the times of training."""
        measured = measured_pass(
            scheduler,
            executor,
            instances,
            measure,
            False,
            Calls(),
            purpose="sinks",
            seed=s.seed,
        )
        result = {}
        for part, times in measured.items():
            result[part] = {key: t for key, t in times.items() if key in only_seen}
        return result

    if only_seen:
        list_predicted(measure_host)
        tables += [
            list_predicted(measure)
            for _ in range(passes)
            for measure in (measure_devices, measure_host)
        ]
    return medians(tables).with_control(max(0.0, statistics.median(driven[1:]) - parts))


def _driver(
    loop: DriverLoop,
    cost: Cost | HostedCost | ClusterCost,
    trace: Trace | None,
    s: Settings,
) -> VirtualDriver | HostedDriver:
    if not isinstance(cost, HostedCost | ClusterCost):
        return VirtualDriver(loop, cost, trace)
    if trace is not None:
        raise SettingsError(
            "simulate, `trace`",
            f"none with a `{type(cost).__name__}`",
            "a trace",
            "Trace a real run.",
        )
    return HostedDriver(loop, cost, s.run_ahead)


def _executor(
    plan: Plan,
    s: Settings,
    tx: optax.GradientTransformation | None,
    params: Mapping[str, Any] | None,
) -> Executor:
    devices = jax.devices()
    return make_executor(
        plan,
        s,
        tx,
        params or {},
        [devices[worker % len(devices)] for worker in range(s.workers)],
    )
