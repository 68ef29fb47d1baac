"""Engines made by hand: a scheduler and an executor, run by one of the two drivers."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import jax
import numpy as np
import optax
from support.control import Shown

from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.engine.executor import Executor
from ampjax.engine.memory.loss_metrics import metrics_of
from ampjax.engine.parameters import NodeTraining
from ampjax.ir.instances import InstanceList
from ampjax.plan.passes import Pass
from ampjax.plan.planner import make_plan
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.instruments import Instrument
from ampjax.train.initial_params import initial_params

NEVER = 1 << 40
"""An interval that no run reaches: gradients stay in the accumulators."""


class Told(Instrument):
    """Tells functions of dispatches before they are issued, and of instances that have ended: how many of each kind of pass.

    Args:
      scheduler: What decides.
      on_dispatch: `on_dispatch(shown)`: a `control.Shown`.
      progress: `progress(n, train)`.
    """

    def __init__(self, scheduler, on_dispatch=None, progress=None):
        self._scheduler = scheduler
        self._on_dispatch = on_dispatch
        self._progress = progress
        self._shown = {}

    def decided(self, dispatch):
        if self._on_dispatch:
            self._shown[dispatch.number] = Shown(self._scheduler, dispatch)

    def before_kernels(self, dispatches):
        for dispatch in dispatches if self._on_dispatch else ():
            self._on_dispatch(self._shown.pop(dispatch.number))

    def settled(self, ended, admitted):
        for train, n in Counter(train for _, train in ended).items() if self._progress else ():
            self._progress(n, train)


@dataclass
class Engine:
    graph: object
    plan: object
    scheduler: Scheduler
    executor: Executor
    seeds: RowSeeds
    loops: list = field(default_factory=list)
    n_run: Counter = field(
        default_factory=Counter
    )  # instances, by whether they were trained on, since `metrics` was called

    def sources(self, instances, train=True, guard=None):
        ragged = []
        for name, node in self.graph.pumps.items():
            if node.op.type.ragged:
                ragged.append(name)
        data = instances if hasattr(instances, "gather") else InstanceList(instances, ragged)
        self.n_run[train] += len(data)
        of = Pass(
            data,
            np.arange(len(data)),
            "train" if train else "both",
            seeds=self.seeds,
        )
        return [InstanceSource(self.scheduler, of, guard)]

    def virtual(
        self,
        instances,
        train=True,
        cost=lambda d: 1 + d.n_rows,
        on_dispatch=None,
    ):
        """A run in virtual time; returns what `VirtualDriver.run` does."""
        return VirtualDriver(self.loop(instances, train, on_dispatch), cost).run()

    def loop(self, instances, train=True, on_dispatch=None, progress=None):
        """A run that has not begun; what sinks get in it is among what has `arrived`."""
        loop = DriverLoop(
            self.scheduler,
            self.executor,
            self.sources(instances, train),
            [Told(self.scheduler, on_dispatch, progress)],
        )
        self.loops.append(loop)
        return loop

    async def wall_async(
        self,
        instances,
        train=True,
        progress=None,
        run_ahead=64,
    ):
        await AsyncioDriver(self.loop(instances, train, progress=progress), run_ahead).run()

    def wall(self, *args, **options):
        asyncio.run(self.wall_async(*args, **options))

    @property
    def gradients(self):
        return jax.tree.map(np.asarray, self.executor.store.accumulators)

    def metrics(self, train=True):
        return metrics_of(
            self.executor.losses.take(train),
            self.n_run.pop(train, 0),
        )

    @property
    def arrived(self):
        """What has arrived at sinks (`issue_queue.Arrival`)."""
        result = []
        for loop in self.loops:
            for output in loop.queue.outputs:
                result.append(output)
        return result

    def outputs(self):
        """The rows that arrived at sinks, by instance (for messages that are alone in their instance)."""
        found = {}
        for arrival in self.arrived:
            for state, row in zip(
                arrival.states,
                np.asarray(arrival.rows)[: arrival.n_rows],
                strict=True,
            ):
                found[tuple(np.delete(state, 1).tolist())] = row
        return found


def engine(
    graph,
    homes=None,
    spaces=(0,),
    *,
    params=None,
    tx=None,
    interval=NEVER,
    fuse=True,
    gradient="sum",
    seed=0,
    check=True,
    **settings,
):
    """A scheduler and an executor; `homes` are the nodes' workers (0 by default), `spaces` the workers' devices."""
    worker_of = {n.name: 0 for n in graph.nodes.values() if n.kind != "Pump"} | dict(homes or {})
    plan = make_plan(graph, worker_of, spaces, fuse)
    nodes = list(graph.parameterised)
    stashed = settings.get("stashed", ())
    devices = jax.devices()[: max(spaces) + 1]
    training = {}
    for n in nodes:
        training[n] = NodeTraining(tx or optax.sgd(0.1), gradient)
    executor = Executor(
        plan,
        initial_params(graph, params or {}, 0),
        training,
        devices,
        stashed,
    )
    config = SchedulerSettings(**{"intervals": dict.fromkeys(nodes, interval), **settings})
    return Engine(
        graph,
        plan,
        Scheduler(plan, config, check),
        executor,
        RowSeeds(seed),
    )


def spread(graph, n):
    """Every node on the next worker."""
    names = []
    for node in graph.nodes.values():
        if node.kind != "Pump":
            names.append(node.name)
    return {name: i % n for i, name in enumerate(names)}
