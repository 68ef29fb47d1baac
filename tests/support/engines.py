"""Engines made by hand: a scheduler and an executor, run by one of the two drivers."""

import asyncio
from dataclasses import dataclass

import jax
import numpy as np
import optax

from ampjax.engine.asyncio_driver import AsyncioDriver
from ampjax.engine.executor import Executor, NodeTraining
from ampjax.engine.loop import Loop
from ampjax.engine.metrics import metrics_of
from ampjax.engine.source import Source
from ampjax.engine.virtual_driver import VirtualDriver
from ampjax.ir.instances import InstanceList
from ampjax.params import initial_params
from ampjax.sched.passes import Pass
from ampjax.sched.plan import make_plan
from ampjax.sched.scheduler import Scheduler, SchedulerSettings

NEVER = 1 << 40
"""An interval that no run reaches: gradients stay in the accumulators."""


@dataclass
class Engine:
    graph: object
    plan: object
    scheduler: Scheduler
    executor: Executor

    def sources(self, instances, train=True, guard=None):
        ragged = [name for name, node in self.graph.pumps.items() if node.op.type.ragged]
        data = instances if hasattr(instances, "gather") else InstanceList(instances, ragged)
        of = Pass(data, np.arange(len(data)), "train" if train else "both")
        return [Source(self.scheduler, of, guard)]

    def virtual(self, instances, train=True, cost=lambda d: 1 + d.n_rows, on_dispatch=None):
        """A run in virtual time; returns what `VirtualDriver.run` does."""
        loop = Loop(self.scheduler, self.executor, self.sources(instances, train), on_dispatch=on_dispatch)
        return VirtualDriver(loop, cost).run()

    async def wall_async(self, instances, train=True, progress=None, run_ahead=64):
        await AsyncioDriver(
            Loop(self.scheduler, self.executor, self.sources(instances, train), progress), run_ahead
        ).run()

    def wall(self, *args, **options):
        asyncio.run(self.wall_async(*args, **options))

    @property
    def gradients(self):
        return jax.tree.map(np.asarray, self.executor.accumulators)

    def metrics(self, train=True):
        return metrics_of(self.executor.take_sums(train))

    def outputs(self):
        """The rows that arrived at sinks, by instance (for messages that are alone in their instance)."""
        found = {}
        for _, states, rows, dispatch in self.executor.outputs:
            for state, row in zip(states, np.asarray(rows)[: dispatch.n_rows], strict=True):
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
    **settings,
):
    """A scheduler and an executor; `homes` are the nodes' workers (0 by default), `spaces` the workers' devices."""
    worker_of = {n.name: 0 for n in graph.nodes.values() if n.kind != "Pump"} | dict(homes or {})
    plan = make_plan(graph, worker_of, spaces, fuse)
    nodes = list(graph.parameterised)
    stashed = settings.get("stashed", ())
    devices = jax.devices()[: max(spaces) + 1]
    training = {n: NodeTraining(tx or optax.sgd(0.1), gradient) for n in nodes}
    executor = Executor(plan, initial_params(graph, params or {}, 0), training, devices, stashed, seed)
    config = SchedulerSettings(**{"intervals": dict.fromkeys(nodes, interval), **settings})
    return Engine(graph, plan, Scheduler(plan, config, check=True), executor)


def spread(graph, n):
    """Every node on the next worker."""
    names = [node.name for node in graph.nodes.values() if node.kind != "Pump"]
    return {name: i % n for i, name in enumerate(names)}
