"""The session, which all runs of a trainer share: the plan, the scheduler, the executor, and the position in training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax

from ampjax.devices.allreduce import Device
from ampjax.devices.memory_budget import payload_budget
from ampjax.drivers.controller import ControllerLoop
from ampjax.drivers.cost import Cost
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.errors import SettingsError
from ampjax.hosts.hosts import Hosts
from ampjax.ir.graph import Graph
from ampjax.numerics.check import warn_of_wrong_numbers
from ampjax.plan.passes import Pass
from ampjax.plan.planner import Plan
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.scheduler import Scheduler
from ampjax.train.assemble import make_executor, optimizers, plan_for, scheduler_settings
from ampjax.train.batch_training.batch_data import BatchData
from ampjax.train.batch_training.batch_function import BatchFunction
from ampjax.train.batch_training.batch_passes import BatchPasses
from ampjax.train.batch_training.batch_preparation import BatchPreparation
from ampjax.train.batch_training.batch_programs import BatchPrograms
from ampjax.train.batch_training.refusals import batch_function
from ampjax.train.checkpoints.position import Position
from ampjax.train.grouping import Orders
from ampjax.train.hosted import start_hosts, with_workers
from ampjax.train.optimizers.node_optimizers import form_of
from ampjax.train.preparation import Preparation
from ampjax.train.runs.pace import RealTime, VirtualTime
from ampjax.train.runs.pass_runner import PassRunner
from ampjax.train.settings import Settings
from ampjax.train.training_data import AnyInstances, Data, as_data
from ampjax.utils.compilation_cache import use_compilation_cache


@dataclass(frozen=True, eq=False)
class Session:
    """A graph and everything that its runs need: made once for a trainer.

    Args:
      settings: How the graph is trained.
      controller: A user-written controller, or None.
      plan: Its stages, and the worker of each.
      scheduler: Decides what runs next.
      executor: Holds parameters and payloads, and computes.
      orders: Draws the order of instances.
      preparation: Sizes memory and compiles kernels before data run.
      passes: Runs passes over data: through messages, or by whole batches.
      position: How far training has come.
      operations: Tells by which operations each optimizer makes updates, so that a checkpoint knows its optimizers.
    """

    settings: Settings
    controller: ControllerLoop | None
    plan: Plan
    scheduler: Scheduler
    executor: AnyExecutor
    orders: Orders
    preparation: Preparation | BatchPreparation
    passes: PassRunner | BatchPasses
    position: Position
    operations: Callable[[], Mapping[str, str]]

    @property
    def row_seeds(self) -> RowSeeds:
        """The seeds of the random numbers of bodies in this epoch."""
        return RowSeeds(
            self.settings.seed,
            self.position.epochs,
        )

    def instances(
        self,
        data: Data,
        name: str = "data",
        labels: bool = True,
    ) -> AnyInstances:
        """Makes data ready to be run.

        Args:
          data: What the user passed.
          name: What an error calls it.
          labels: Whether what losses need must be there.

        Raises:
          SettingsError: If they are neither a data set nor a sequence, are empty, or lack what losses need.
        """
        return as_data(
            self.plan.graph,
            self.controller,
            data,
            name,
            labels,
        )

    def train_and_valid(
        self, train: Data, valid: Data | None
    ) -> tuple[AnyInstances, AnyInstances | None]:
        """Makes training and validation data ready to be run.

        Args:
          train: Training data.
          valid: Validation data, or None.

        Raises:
          SettingsError: If one is neither a data set nor a sequence, or is empty.
        """
        data = self.instances(
            train,
            "training data",
        )
        return data, None if valid is None else self.instances(valid, "validation data")

    def training_pass(
        self,
        data: AnyInstances,
        ids: np.ndarray,
        may_update: bool = True,
    ) -> Pass:
        """Describes a pass that trains.

        Args:
          data: The instances.
          ids: `[n]`: which of them, in order.
          may_update: False keeps all parameters as they are.
        """
        return Pass(
            data,
            ids,
            may_update=may_update,
            seeds=self.row_seeds,
        )

    def inference_pass(self, data: AnyInstances, purpose: str) -> Pass:
        """Describes a pass over all instances without training.

        Args:
          data: The instances.
          purpose: `losses` or `sinks`: what is computed.
        """
        return Pass(
            data,
            self.orders.evaluation_order(data),
            purpose,
        )


def make_session(
    graph: Graph,
    settings: Settings,
    tx: optax.GradientTransformation | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    controller: ControllerLoop | None = None,
    devices: Sequence[Device] | None = None,
    cost: Callable[[Plan], Cost] | None = None,
    hosts: Hosts | None = None,
) -> Session:
    """Plans a graph, places its parameters on devices, and makes everything that its runs need.

    Args:
      graph: A closed graph.
      settings: How it is trained.
      tx: The optax transform of nodes without one of their own; None for `optax.adam(1e-3)`.
      params: Parameters by node name; the others are initialised from the seed.
      controller: A user-written controller, which pumps messages for the examples that are passed as data; or None.
      devices: The devices of the workers, in turn; None for `jax.devices()`.
      cost: Makes the cost model of a simulated machine from the plan; None runs in real time.
      hosts: Where workers are; None for this process.

    Raises:
      SettingsError: If a placement is wrong, or needs more memory than devices have.
      ParameterError: If parameters do not fit the graph, or are not finite.
      HostError: If a host does not start.

    Warns:
      NumericsWarning: Once in a process, if its kernels compute wrong numbers.
    """
    use_compilation_cache()
    if cost is not None and not callable(cost):
        fix = (
            "Pass for example `ampjax.simulation.FlopsCost`, or a function that makes a cost model."
        )
        raise SettingsError("setting `cost`", "a function of the plan", type(cost).__name__, fix)
    if settings.mode == "batch":
        function = batch_function(
            graph,
            settings,
            controller=controller,
            cost=cost,
            hosts=hosts,
        )
    else:
        function = None
    s = settings if hosts is None else with_workers(settings, hosts)
    control = scheduler_settings(graph, s, tx)
    available = _available(devices)
    used = available[: min(s.workers, len(available))]
    if function is not None and devices is not None and len(available) > 1:
        fix = "Give one, or train with `mode='pipeline'`, or call `compiled.batched` under `jax.shard_map`."
        raise SettingsError("mode='batch', `devices`", "one", f"{len(available)}", fix)
    warn_of_wrong_numbers("Trainer", used)
    plan, executor = _plan_and_place(graph, s, tx, params or {}, hosts, used)
    scheduler = Scheduler(plan, control, s.check)
    orders = Orders(s.group_by_size)
    position = Position(s.seed)
    memory_limit = payload_budget(used) if s.memory_limit is None else s.memory_limit
    preparation = Preparation(
        plan,
        s,
        scheduler,
        executor,
        orders,
        memory_limit,
    )
    if cost is None:
        pace = RealTime(s.run_ahead)
    else:
        pace = VirtualTime(cost(plan), position)
    passes = PassRunner(
        scheduler,
        executor,
        pace,
        preparation.guard,
    )
    session = Session(
        s,
        controller,
        plan,
        scheduler,
        executor,
        orders,
        preparation,
        passes,
        position,
        functools.cache(lambda: optimizers(graph, s, tx).operations(graph)),
    )
    return session if function is None else _by_batches(session, function, executor.store)


def _plan_and_place(
    graph: Graph,
    settings: Settings,
    tx: optax.GradientTransformation | None,
    params: Mapping[str, Any],
    hosts: Hosts | None,
    devices: Sequence[Device],
) -> tuple[Plan, AnyExecutor]:
    """Plans a graph, and makes the executor, with parameters on devices of this process or of the hosts."""
    if hosts is None:
        plan = plan_for(
            graph,
            settings,
            tx,
            [worker % len(devices) for worker in range(settings.workers)],
        )
        return plan, make_executor(plan, settings, tx, params, devices)
    plan = plan_for(
        graph,
        settings,
        tx,
        hosts.space_of_workers(settings.workers),
        hosts.workers_of_names(settings.workers),
    )
    return plan, start_hosts(plan, settings, tx, params, hosts, devices)


def _by_batches(
    session: Session,
    function: BatchFunction,
    store: Any,
) -> Session:
    """A session whose passes are computed by whole batches; what belongs to messages in it stands still."""
    graph = session.plan.graph
    store.accumulators.clear()  # gradients are used where they are computed
    names = {}
    for name, node in graph.parameterised.items():
        names[node.role] = name
    programs = BatchPrograms(
        function,
        store,
        form_of(graph),
        names,
    )
    data = BatchData(
        function,
        programs,
        session.settings,
        session.orders,
    )
    return replace(
        session,
        preparation=BatchPreparation(data),
        passes=BatchPasses(programs, data, session.scheduler.counts, session.passes.statistics),
    )


def _available(devices: Sequence[Device] | None) -> list[Device]:
    """The devices that workers may have.

    Raises:
      SettingsError: If some were given that are none.
    """
    if devices is None:
        return jax.devices()
    if (
        not isinstance(devices, Sequence)
        or not devices
        or not all(isinstance(each, jax.Device) for each in devices)
    ):
        fix = "Pass for example `jax.devices()[:2]`."
        raise SettingsError(
            "setting `devices`", "a list of JAX's devices, at least one", f"{devices!r:.80}", fix
        )
    return list(devices)
