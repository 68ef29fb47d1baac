"""What a scheduler decides, dispatch by dispatch: the one that routes messages and the one of integers, driven alike."""

import hashlib
import heapq
from collections import Counter
from contextlib import suppress

import numpy as np

from ampjax.ir.state import INSTANCE, SLOT
from ampjax.sched.affinity import assign
from ampjax.sched.plan import make_plan
from ampjax.sched.scheduler import Scheduler
from ampjax.sched.settings import SchedulerSettings
from ampjax.sched.stages import Leaf
from ampjax.schedule import columns as c
from ampjax.schedule.scheduler import IntegerScheduler


class Routing:
    """`sched.Scheduler` over a data set.

    Args:
      plan: The plan.
      settings: Its settings.
      data: The instances.
      train: False for inference.
    """

    def __init__(self, plan, settings, data, train=True):
        self.scheduler, self._data, self._train = Scheduler(plan, settings), data, train
        builder = self.scheduler._builder

        def collectable(queue, limit):
            """A collect takes what has come together only; that of integers takes whatever waits, as all other stages do (decision 22)."""
            states = np.concatenate([chunk.states for chunk in queue.contents()])
            rows = np.cumsum(builder._collected(queue.stage, states))
            return max(1, int(np.searchsorted(rows, limit, side="right")))

        builder._collectable = collectable

    def admit(self, ids):
        slots = self.scheduler.open(ids, "train" if self._train else "both")
        self.feeds = self.scheduler.pump(slots, self._data.gather(ids))
        self.scheduler.close(slots)

    def tell(self, d):
        stage = -1 if d.stage is None else d.stage.number
        states = [(state[INSTANCE], *state[SLOT + 1 :]) for state in d.states.tolist()]
        return d.number, d.worker, stage, d.direction, states, d.n_rows, [str(change) for change in d.changes]


class Integers:
    """`schedule.IntegerScheduler` over a data set that is unfolded beforehand, `wave` instances together; 0 for none."""

    def __init__(self, plan, settings, data, train=True, wave=256, check=False):
        self.scheduler, self._data, self._train = IntegerScheduler(plan, settings, check), data, train
        self._purpose = "train" if train else "both"
        for start in range(0, len(data) if wave else 0, wave or 1):
            ids = np.arange(start, min(start + wave, len(data)))
            self.scheduler.foresee(ids, data.gather(ids), self._purpose)

    def admit(self, ids):
        slots = self.scheduler.open(ids, self._purpose)
        self.feeds = self.scheduler.pump(slots, self._data.gather(ids))
        self.scheduler.close(slots)

    def tell(self, d):
        states = self.scheduler.store.states(d.lines).tolist()
        states = [(i, *state) for i, state in zip(d.ids.tolist(), states, strict=True)]
        return d.number, d.worker, d.stage, d.direction, states, d.n_rows, [str(change) for change in d.changes]


def at_once(side, n, workers=1):
    """Yields what is decided if every dispatch is done as soon as it has been decided, as on the clock."""
    s, left = side.scheduler, np.arange(n)
    moved = True
    while moved:
        left, moved = admit(side, left)
        for worker in range(workers):
            while (d := s.next(worker)) is not None:
                yield side.tell(d)
                s.done(d)
                left, _ = admit(side, left)
                moved = True
        moved = moved or (not len(left) and s.end_of_data())
    assert s.idle, "something can't move"


def in_virtual_time(side, n, workers=1):
    """Yields what is decided if a dispatch takes as long as its rows say: those of several workers end in turn."""
    s, left, now = side.scheduler, np.arange(n), 0
    idle, under_way = set(range(workers)), []
    while True:
        left, moved = admit(side, left)
        for worker in sorted(idle):
            d = s.next(worker)
            if d is not None:
                told = side.tell(d)
                yield told
                heapq.heappush(under_way, (now + 3 + told[5] + 2 * told[2] % 5, told[0], worker, d))
                idle.remove(worker)
        if not under_way:
            if not moved and (len(left) or not s.end_of_data()):
                break
            continue
        now, _, worker, d = heapq.heappop(under_way)
        s.done(d)
        idle.add(worker)
    assert s.idle and not len(left), "something can't move"


def admit(side, left):
    """Lets in as many of the instances `left` as there is room for; gives the others, and whether there was any."""
    s = side.scheduler
    s.finished
    n = min(s.room(side._train), len(left))
    if n:
        side.admit(left[:n])
    return left[n:], n > 0


def planned(graph, workers=1, fuse=True):
    """A plan whose workers have memory spaces of their own."""
    return make_plan(graph, assign(graph, workers), tuple(range(workers)), fuse)


def settings_for(graph, interval=7, **options):
    return SchedulerSettings(intervals=dict.fromkeys(graph.parameterised, interval), **options)


def assert_same(plan, settings, data, train=True, drive=at_once, wave=256, unless_ways_meet=False):
    """The same dispatches, in the same order, of the same messages in the same order, with the same updates.

    Where two ways lead to one port, and that is let pass, at least the same messages.
    """
    one_side = Routing(plan, settings, data, train)
    one = list(drive(one_side, len(data), plan.workers))
    side = Integers(plan, settings, data, train, wave)
    other = list(drive(side, len(data), plan.workers))
    difference = first_difference(one, other)
    if drive is until_it_stands:
        assert difference is None and side.scheduler.idle == one_side.scheduler.idle, difference
        return
    if difference is not None and unless_ways_meet and ways_meet(plan):
        assert messages_of(one) == messages_of(other)
    else:
        assert difference is None, difference
    assert one
    assert_nothing_is_left(side.scheduler)


def until_it_stands(side, n, workers):
    """As `at_once`, and nothing is said if it ends too early."""
    with suppress(AssertionError):
        yield from at_once(side, n, workers)


def assert_nothing_is_left(scheduler):
    """Law 1: every message has been answered, every slot and every range is free."""
    assert scheduler.idle and scheduler.slots_in_use == 0
    t = scheduler._t
    assert len(t.vacant) == len(t.instances) and not t.active[:, c.N_ACTIVE].any()
    assert (
        not t.live[: t.clock[c.LIVE_TOP], [c.NEED, c.LEFT]].clip(min=0).any()
    )  # inputs that are missing, gradients that are owed


def digest(told):
    """A number for a whole schedule."""
    return hashlib.blake2b(repr(list(told)).encode(), digest_size=8).hexdigest()


def ways_meet(plan):
    """Whether messages of one producer can come to one port by two ways, as where a phi follows a cond.

    The router takes a dispatch's messages way by way, the scheduler of integers port by port (decision 22): there the order of messages may differ.
    """

    def ports(targets, on_the_way):
        for target in targets:
            if isinstance(target, Leaf):
                yield target
            elif id(target) not in on_the_way:
                for output in target.targets:
                    yield from ports(output, on_the_way | {id(target)})

    routes = [*plan.pumps.values(), *(route for stage in plan.stages for route in stage.routes)]
    found = [list(ports(route, frozenset())) for route in routes]
    return any(len(own) > len(set(own)) for own in found)


def messages_of(told):
    """How often each message is in a dispatch of each stage in each direction."""
    return Counter((stage, direction, state) for _, _, stage, direction, states, *_ in told for state in states)


def first_difference(one, other):
    """Where two schedules differ first, in words; None where they are the same."""
    for k, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"dispatch {k}:\n  {a}\n  {b}"
    return None if len(one) == len(other) else f"{len(one)} dispatches and {len(other)}"
