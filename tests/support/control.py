"""The control plane without kernels: a scheduler, instances, and what it says is to be done."""

import numpy as np

from ampjax.ir.instances import InstanceList
from ampjax.ir.state import INSTANCE
from ampjax.plan.planner import make_plan
from ampjax.sched.choosing.queue_views import Queue
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.deadlock import waiting
from ampjax.sched.diagnose.invariants import check as check_laws
from ampjax.sched.scheduler import Scheduler


def plan_for(
    graph,
    worker_of=None,
    spaces=(0,),
    fuse=False,
):
    """A plan with every node on worker 0, unless said otherwise."""
    homes = {n.name: 0 for n in graph.nodes.values() if n.kind != "Pump"} | dict(worker_of or {})
    return make_plan(graph, homes, spaces, fuse)


def scheduler_for(
    graph,
    worker_of=None,
    spaces=(0,),
    fuse=False,
    check=True,
    **settings,
):
    return Scheduler(
        plan_for(graph, worker_of, spaces, fuse), SchedulerSettings(**settings), check=check
    )


class WaitingQueue(Queue):
    """A queue in which messages of one row wait, without a scheduler."""

    def __init__(self, plan, q, max_rows=64):
        super().__init__(plan, q, lambda number: None)
        self.max_rows = max_rows

    def show(self, items, born):
        self.update(
            (
                self.under_way,
                items,
                items,
                self.max_rows,
                max(items, self.longest),
                0,
                born,
            )
        )


class Shown:
    """A dispatch with all that there is to know of it when it is decided; the rest is the dispatch's.

    Args:
      scheduler: What has decided.
      dispatch: The dispatch.

    Attributes:
      stage: The stage itself; None for parameter changes alone.
      states: `[n, width]`: its messages.
      in_rows, out_rows, sizes, edges, scatter: As an executor gets them.
    """

    def __init__(self, scheduler, dispatch):
        self.dispatch = dispatch
        self.stage = None
        self.changes = list(dispatch.changes)
        self.states = np.zeros(
            (0, scheduler.plan.layout.width),
            np.int64,
        )
        self.in_rows = []
        self.out_rows = []
        if dispatch.stage >= 0:
            contents = scheduler.contents
            rows = dispatch.rows
            self.stage = stage = scheduler.plan.stages[dispatch.stage]
            self.states = contents.states(dispatch)
            self.sizes = contents.sizes(dispatch)
            self.edges = contents.edges(dispatch)
            self.scatter = contents.scatter(dispatch)
            self.in_rows = rows[: len(stage.ports)]
            self.out_rows = rows[len(stage.ports) :]

    def __getattr__(self, name):
        return getattr(self.dispatch, name)

    def __repr__(self):
        return self.dispatch.describe(self.stage.name if self.stage else "")


def columns(graph, instances):
    """The pumped messages of all `instances`, as columns."""
    ragged = []
    for name, node in graph.pumps.items():
        if node.op.type.ragged:
            ragged.append(name)
    return InstanceList(instances, ragged).gather(np.arange(len(instances)))


def admit(scheduler, instances, ids=None, purpose="train", grows=False):
    """Pumps whole instances; returns their handles. With `grows` nobody knows beforehand that no more comes."""
    if ids is None:
        ids = np.arange(len(instances))
    else:
        ids = np.asarray(ids)
    handles = scheduler.open(ids, purpose, grows=grows)
    scheduler.pump(handles, columns(scheduler.plan.graph, instances))
    scheduler.close(handles)
    return handles


def step(scheduler, worker=0):
    """The worker's next action, done at once."""
    dispatch = scheduler.next(worker)
    if dispatch is None:
        return None
    shown = Shown(scheduler, dispatch)
    scheduler.done(dispatch)
    return shown


def drain(scheduler):
    """Everything that can be done, worker by worker in turn; the actions in order."""
    actions = []
    while (
        found := [d for w in range(scheduler.plan.workers) if (d := step(scheduler, w)) is not None]
    ) != []:
        actions += found
    return actions


def tell(dispatch):
    """An action in words: `forward f0 [0, 1]` with the instances in it, and the updates that follow."""
    changes = [
        f"{type(c).__name__} {getattr(c, 'node', getattr(c, 'group', ''))}"
        for c in dispatch.changes
    ]
    what = (
        []
        if dispatch.stage is None
        else [f"{dispatch.direction} {dispatch.stage.name} {instances_of(dispatch)}"]
    )
    return "; ".join(what + changes)


def instances_of(dispatch):
    return dispatch.states[:, INSTANCE].tolist()


def field(dispatch, graph, name):
    """A state field of the messages in a dispatch."""
    return dispatch.states[:, graph.layout.column(name)].tolist()


def assert_empty(scheduler):
    """Law 1: nothing is left."""
    s = scheduler.snapshot()
    check_laws(s)
    assert scheduler.idle and not scheduler.can_move()
    assert waiting(s) == []
    assert scheduler.tables.slots_in_use == 0
