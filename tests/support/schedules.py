"""What a scheduler decides, dispatch by dispatch."""

import heapq

import numpy as np

from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import DispatchRates
from ampjax.sched.scheduler import Scheduler
from ampjax.sched.virtual_time import VirtualClock


class Scheduled:
    """A scheduler over a data set that is unfolded beforehand, `wave` instances together; 0 for none."""

    def __init__(
        self,
        plan,
        settings,
        data,
        train=True,
        wave=256,
        check=False,
    ):
        self.scheduler = Scheduler(plan, settings, check)
        self._data = data
        self._train = train
        self._purpose = "train" if train else "both"
        for start in range(
            0,
            len(data) if wave else 0,
            wave or 1,
        ):
            ids = np.arange(start, min(start + wave, len(data)))
            self.scheduler.admission.foresee(
                ids,
                data.gather(ids),
                self._purpose,
            )

    def admit(self, ids):
        handles = self.scheduler.open(ids, self._purpose)
        self.feeds = self.scheduler.pump(
            handles,
            self._data.gather(ids),
        )
        self.scheduler.close(handles)

    def tell(self, d):
        states = self.scheduler.admission.programs.store.states(d.lines).tolist()
        states = [(i, *state) for i, state in zip(d.ids.tolist(), states, strict=True)]
        return (
            d.number,
            d.worker,
            d.stage,
            d.direction,
            states,
            d.n_rows,
            [str(change) for change in d.changes],
        )


def at_once(side, n, workers=1):
    """Yields what is decided if every dispatch is done as soon as it has been decided, as on the clock."""
    s = side.scheduler
    left = np.arange(n)
    moved = True
    while moved:
        left, moved = admit(side, left)
        for worker in range(workers):
            while (d := s.next(worker)) is not None:
                yield side.tell(d)
                s.done(d)
                left, _ = admit(side, left)
                moved = True
        moved = moved or (not len(left) and s.rounds.end_of_data())
    assert s.idle, "something can't move"


def in_virtual_time(side, n, workers=1):
    """Yields what is decided if a dispatch takes as long as its rows say: those of several workers end in turn."""
    s = side.scheduler
    left = np.arange(n)
    now = 0
    idle = set(range(workers))
    under_way = []
    while True:
        left, moved = admit(side, left)
        for worker in sorted(idle):
            d = s.next(worker)
            if d is not None:
                told = side.tell(d)
                yield told
                heapq.heappush(
                    under_way,
                    (
                        now + 3 + told[5] + 2 * told[2] % 5,
                        told[0],
                        worker,
                        d,
                    ),
                )
                idle.remove(worker)
        if not under_way:
            if not moved and (len(left) or not s.rounds.end_of_data()):
                break
            continue
        now, _, worker, d = heapq.heappop(under_way)
        s.done(d)
        idle.add(worker)
    assert s.idle and not len(left), "something can't move"


def by_table(side, n, workers=1):
    """The same, where the scheduler adds up itself what dispatches take, and time goes on over several of them in one call."""
    s = side.scheduler
    left = np.arange(n)
    assert s.decides_alone
    queues = []
    for q in range(3 * len(s.plan.stages)):
        queues.append((q, 1, 3 + 2 * (q // 3) % 5, 0, 0))
    terms = np.array([(c.OF_INPUT, 1.0)] * len(queues))
    updates = np.zeros(len(s.plan.graph.parameterised))
    time = VirtualClock(
        DispatchRates(
            np.array(queues, float),
            terms,
            updates,
            np.array([1e9, np.inf]),
        ),
        workers,
    )
    left, _ = admit(side, left)
    while True:
        found = s.advance(time, 5)
        yield from map(side.tell, found or ())
        left, moved = admit(side, left)
        if found is None:
            if not moved and (len(left) or not s.rounds.end_of_data()):
                break
            time.ask_all()
    assert s.idle and not len(left), "something can't move"


def admit(side, left):
    """Lets in as many of the instances `left` as there is room for; gives the others, and whether there was any."""
    s = side.scheduler
    s.admission.take_ended()
    n = min(s.admission.room(side._train), len(left))
    if n:
        side.admit(left[:n])
    return left[n:], n > 0


def planned(graph, workers=1, fuse=True):
    """A plan whose workers have memory spaces of their own."""
    return make_plan(
        graph,
        assign(graph, workers),
        tuple(range(workers)),
        fuse,
    )


def settings_for(graph, interval=7, **options):
    return SchedulerSettings(intervals=dict.fromkeys(graph.parameterised, interval), **options)


def assert_nothing_is_left(scheduler):
    """Law 1: every message has been answered, every slot and every range is free."""
    assert scheduler.idle and scheduler.tables.slots_in_use == 0
    t = scheduler.tables.t
    assert len(t.vacant) == len(t.instances)
    assert not t.active[:, c.N_ACTIVE].any()
    assert (
        not t.live[: t.clock[c.LIVE_TOP], [c.N_MISSING, c.N_OWED]].clip(min=0).any()
    )  # inputs that are missing, gradients that are owed


def first_difference(one, other):
    """Where two schedules differ first, in words; None where they are the same."""
    for k, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"dispatch {k}:\n  {a}\n  {b}"
    return None if len(one) == len(other) else f"{len(one)} dispatches and {len(other)}"
