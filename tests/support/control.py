"""The control plane without kernels: a scheduler, instances, and what it says is to be done."""

import numpy as np

from ampjax.ir.instances import InstanceList
from ampjax.ir.state import INSTANCE
from ampjax.sched.plan import make_plan
from ampjax.sched.scheduler import Scheduler, SchedulerSettings


def plan_for(graph, worker_of=None, spaces=(0,), fuse=False):
    """A plan with every node on worker 0, unless said otherwise."""
    homes = {n.name: 0 for n in graph.nodes.values() if n.kind != "Pump"} | dict(worker_of or {})
    return make_plan(graph, homes, spaces, fuse)


def scheduler_for(graph, worker_of=None, spaces=(0,), fuse=False, check=True, **settings):
    return Scheduler(plan_for(graph, worker_of, spaces, fuse), SchedulerSettings(**settings), check=check)


def columns(graph, instances):
    """The pumped messages of all `instances`, as columns."""
    ragged = [name for name, node in graph.pumps.items() if node.op.type.ragged]
    return InstanceList(instances, ragged).gather(np.arange(len(instances)))


def admit(scheduler, instances, ids=None, purpose="train"):
    """Pumps whole instances; returns their slots."""
    ids = np.arange(len(instances)) if ids is None else np.asarray(ids)
    slots = scheduler.open(ids, purpose)
    scheduler.pump(slots, columns(scheduler.plan.graph, instances))
    scheduler.close(slots)
    return slots


def step(scheduler, worker=0):
    """The worker's next action, done at once."""
    dispatch = scheduler.next(worker)
    if dispatch is not None:
        scheduler.done(dispatch)
    return dispatch


def drain(scheduler):
    """Everything that can be done, worker by worker in turn; the actions in order."""
    actions = []
    while (found := [d for w in range(scheduler.plan.workers) if (d := step(scheduler, w)) is not None]) != []:
        actions += found
    return actions


def tell(dispatch):
    """An action in words: `forward f0 [0, 1]` with the instances in it, and the updates that follow."""
    changes = [f"{type(c).__name__} {getattr(c, 'node', getattr(c, 'group', ''))}" for c in dispatch.changes]
    what = [] if dispatch.stage is None else [f"{dispatch.direction} {dispatch.stage.name} {instances_of(dispatch)}"]
    return "; ".join(what + changes)


def instances_of(dispatch):
    return dispatch.states[:, INSTANCE].tolist()


def field(dispatch, graph, name):
    """A state field of the messages in a dispatch."""
    return dispatch.states[:, graph.layout.column(name)].tolist()


def assert_empty(scheduler):
    """Law 1: nothing is left."""
    scheduler.check_invariants()
    assert scheduler.idle and not scheduler.can_move
    assert scheduler.waiting() == []
    assert {key: pool.used for key, pool in scheduler.pools.items() if pool.used} == {}
