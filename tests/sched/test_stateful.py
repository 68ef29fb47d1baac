"""A state machine over the scheduler: instances come, actions are taken and ended in any order that a driver may choose."""

from collections import deque

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import graphs
from support.control import assert_empty, columns, plan_for

from ampjax.ir.state import INSTANCE
from ampjax.sched.dispatch import Update
from ampjax.sched.policy import POLICIES
from ampjax.sched.scheduler import Scheduler, SchedulerSettings

CASES = {
    "chain": (graphs.chain(3), lambda n: graphs.chain_data(n + 1)[-1]),
    "rnn": (graphs.rnn(), graphs.rnn_instance),
    "diamond": (graphs.diamond(), lambda n: graphs.chain_data(n + 1)[-1]),
    "fan-out": (graphs.fan_out(), lambda n: graphs.chain_data(n + 1)[-1]),
    "flatmap": (graphs.flat(), lambda n: graphs.flat_instance(n - 1)),
    "group": (graphs.grouping(), lambda n: graphs.grouping_instance(n - 1)),
    "repeat": (graphs.repeating(), lambda n: graphs.repeating_instance(n - 1)),
    "molecule": (
        graphs.molecule(),
        lambda n: graphs.molecule_instance(n, [(i, (i + 1) % n, i % 2) for i in range(n - 1)]),
    ),
}
WORKERS = 3


class SchedulerMachine(RuleBasedStateMachine):
    """Training and inference instances at once, on three workers, with dispatches under way on each.

    A worker ends its dispatches in the order of issue, as a device does; across workers any order goes.
    """

    @initialize(
        name=st.sampled_from(sorted(CASES)),
        policy=st.sampled_from(sorted(POLICIES)),
        max_dispatch_size=st.sampled_from([1, 2, 64]),
        interval=st.integers(1, 5),
        homes=st.lists(st.integers(0, WORKERS - 1), min_size=12, max_size=12),
        spaces=st.sampled_from([(0, 0, 0), (0, 1, 2), (0, 1, 0)]),
        flush_every=st.sampled_from([None, None, 1, 3]),
        min_admission=st.integers(1, 4),
        fuse=st.booleans(),
        stashed=st.booleans(),
    )
    def start(
        self, name, policy, max_dispatch_size, interval, homes, spaces, flush_every, min_admission, fuse, stashed
    ):
        self.graph, self.make = CASES[name]
        nodes = [n.name for n in self.graph.nodes.values() if n.kind != "Pump"]
        plan = plan_for(self.graph, dict(zip(nodes, homes * 2, strict=False)), spaces, fuse)
        parameterised = tuple(self.graph.parameterised)
        config = SchedulerSettings(
            max_active_keys=4,
            min_admission=min_admission,
            max_dispatch_size=max_dispatch_size,
            intervals=dict.fromkeys(parameterised, interval),
            stashed=parameterised if stashed else (),
            policy=POLICIES[policy],
            flush_every=flush_every,
            capacity=4,
        )
        self.scheduler = Scheduler(plan, config, check=True)
        self.under_way = [deque() for _ in range(WORKERS)]
        self.admitted, self.ended, self.next_id = {True: set(), False: set()}, {True: set(), False: set()}, 0
        self.interval, self.local = interval, flush_every is None
        self.rows = dict.fromkeys(parameterised, 0)
        self.open_slots = []

    @precondition(lambda self: self.scheduler.room(True) or self.scheduler.room(False))
    @rule(size=st.integers(1, 4), n=st.integers(1, 3), train=st.booleans(), close=st.booleans())
    def admit(self, size, n, train, close):
        n = min(n, self.scheduler.room(train))
        if not n:
            return
        ids = np.arange(self.next_id, self.next_id + n)
        self.next_id += n
        self.admitted[train] |= set(ids.tolist())
        slots = self.scheduler.open(ids, "train" if train else "both")
        feeds = self.scheduler.pump(slots, columns(self.graph, [self.make(size + i) for i in range(n)]))
        assert sorted({f.pump for f in feeds}) == sorted({f.pump for f in feeds} & set(self.graph.pumps))
        if close:
            self.scheduler.close(slots)
        else:
            self.open_slots.append(slots)  # the controller may still pump

    @precondition(lambda self: self.open_slots)
    @rule()
    def close(self):
        self.scheduler.close(self.open_slots.pop(0))

    @rule(worker=st.integers(0, WORKERS - 1))
    def issue(self, worker):
        could = self.scheduler.can_move_on(worker)
        dispatch = self.scheduler.next(worker)
        assert (dispatch is not None) == could
        if dispatch is None:
            return
        assert dispatch.worker == worker
        self.under_way[worker].append(dispatch)
        self.check(dispatch)

    def check(self, dispatch):
        """Law 4, and that a dispatch is what it says."""
        train = self.admitted[dispatch.direction != "infer"]
        assert set(dispatch.states[:, INSTANCE].tolist()) <= train
        if dispatch.stage is not None:
            counted = dispatch.direction == "backward" or (dispatch.stage.kind, dispatch.direction) == (
                "loss",
                "forward",
            )
            for node in dispatch.stage.params if counted else ():
                self.rows[node] += dispatch.rows_at(node)  # edges, for a node within a chain
            if dispatch.direction != "backward":
                for rows in dispatch.out_rows:
                    assert len(set(rows.tolist())) == len(rows) and 0 not in rows
        for change in dispatch.changes:
            if isinstance(change, Update):
                assert change.count == self.rows[change.node]
                assert change.count >= self.interval or not self.local
                self.rows[change.node] = 0

    @precondition(lambda self: any(self.under_way))
    @rule(data=st.data())
    def done(self, data):
        worker = data.draw(st.sampled_from([w for w in range(WORKERS) if self.under_way[w]]))
        self.scheduler.done(self.under_way[worker].popleft())

    @invariant()
    def instances_end_once(self):
        if not hasattr(self, "scheduler"):
            return
        for instance, train in self.scheduler.finished:
            assert instance in self.admitted[train] and instance not in self.ended[train]
            self.ended[train].add(instance)
        for train in (True, False):
            assert len(self.admitted[train]) - len(self.ended[train]) == self.scheduler.in_flight[train] <= 4

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        while self.open_slots:
            self.close()
        moved = True
        while moved:
            moved = False
            for worker in range(WORKERS):
                while (dispatch := self.scheduler.next(worker)) is not None:
                    self.check(dispatch)
                    self.under_way[worker].append(dispatch)
                while self.under_way[worker]:
                    self.scheduler.done(self.under_way[worker].popleft())
                    moved = True
            if not moved:
                self.scheduler.end_of_data()
                moved = self.scheduler.can_move
        self.instances_end_once()
        assert self.ended == self.admitted
        assert_empty(self.scheduler)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
