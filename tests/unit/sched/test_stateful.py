"""Any order of events: training and inference at once, dispatches under way on several workers, controllers that pump later, everything forgotten now and then; laws hold after each."""

from collections import deque

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import graphs
from support.control import columns, plan_for

from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.invariants import check
from ampjax.sched.scheduler import Scheduler

CASES = {
    "chain": (
        graphs.chain(2),
        lambda n: graphs.chain_data(n + 1)[-1],
    ),
    "rnn": (graphs.rnn(), lambda n: graphs.rnn_instance(n)),
    "fan-out": (
        graphs.fan_out(),
        lambda n: graphs.chain_data(n + 1)[-1],
    ),
    "flatmap": (graphs.flat(), lambda n: graphs.flat_instance(n - 1)),
    "group": (graphs.grouping(), lambda n: graphs.grouping_instance(n - 1)),
    "molecule": (
        graphs.molecule(),
        lambda n: graphs.molecule_instance(
            n,
            [(i, (i + 1) % n, i % 2) for i in range(n - 1)],
        ),
    ),
}
WORKERS = 3


class IntegerMachine(RuleBasedStateMachine):
    """A worker ends its dispatches in the order of issue, as a device does; across workers any order goes."""

    @initialize(
        name=st.sampled_from(sorted(CASES)),
        policy=st.sampled_from(sorted(POLICIES)),
        max_dispatch_size=st.sampled_from([1, 2, 64]),
        interval=st.integers(1, 5),
        homes=st.lists(
            st.integers(0, WORKERS - 1),
            min_size=12,
            max_size=12,
        ),
        flush_every=st.sampled_from([None, None, 3]),
        fuse=st.booleans(),
        stashed=st.booleans(),
    )
    def start(
        self,
        name,
        policy,
        max_dispatch_size,
        interval,
        homes,
        flush_every,
        fuse,
        stashed,
    ):
        self.graph, self.make = CASES[name]
        nodes = []
        for n in self.graph.nodes.values():
            if n.kind != "Pump":
                nodes.append(n.name)
        plan = plan_for(
            self.graph,
            dict(zip(nodes, homes * 2, strict=False)),
            (0, 1, 2),
            fuse,
        )
        parameterised = tuple(self.graph.parameterised)
        chosen = SchedulerSettings(
            max_active_keys=4,
            max_dispatch_size=max_dispatch_size,
            intervals=dict.fromkeys(parameterised, interval),
            stashed=parameterised if stashed else (),
            policy=POLICIES[policy],
            flush_every=flush_every,
            capacity=4,
            program_bytes=2000,
        )
        self.scheduler = Scheduler(plan, chosen, check=True)
        self.under_way = [deque() for _ in range(WORKERS)]
        self.admitted = {True: set(), False: set()}
        self.ended = {True: set(), False: set()}
        self.next_id = 0
        self.open_handles = []

    @precondition(
        lambda self: self.scheduler.admission.room(True) or self.scheduler.admission.room(False)
    )
    @rule(
        size=st.integers(1, 4),
        n=st.integers(1, 3),
        train=st.booleans(),
        close=st.booleans(),
        grows=st.booleans(),
    )
    def admit(self, size, n, train, close, grows):
        n = min(n, self.scheduler.admission.room(train))
        if not n:
            return
        ids = np.arange(self.next_id, self.next_id + n)
        self.next_id += n
        self.admitted[train] |= set(ids.tolist())
        handles = self.scheduler.open(ids, "train" if train else "both", grows=grows)
        self.scheduler.pump(
            handles,
            columns(
                self.graph,
                [self.make(size + i) for i in range(n)],
            ),
        )
        if close:
            self.scheduler.close(handles)
        else:
            self.open_handles.append(handles)

    @precondition(lambda self: self.open_handles)
    @rule()
    def close(self):
        self.scheduler.close(self.open_handles.pop(0))

    @rule(worker=st.integers(0, WORKERS - 1))
    def issue(self, worker):
        could = self.scheduler.can_move(worker)
        dispatch = self.scheduler.next(worker)
        assert (dispatch is not None) == could
        if dispatch is not None:
            self.under_way[worker].append(dispatch)

    @precondition(lambda self: any(self.under_way))
    @rule(data=st.data())
    def done(self, data):
        worker = data.draw(st.sampled_from([w for w in range(WORKERS) if self.under_way[w]]))
        self.scheduler.done(self.under_way[worker].popleft())

    @precondition(lambda self: not any(self.under_way))
    @rule(
        worker=st.integers(0, WORKERS - 1),
        most=st.integers(1, 9),
    )
    def ahead(self, worker, most):
        self.scheduler.ahead(worker, most)

    @rule()
    def flush(self):
        self.scheduler.rounds.flush()

    @precondition(lambda self: self.next_id > 3)
    @rule()
    def abandon(self):
        counts = self.scheduler.updates.counts
        self.scheduler.abandon()
        assert self.scheduler.idle and self.scheduler.updates.counts == counts
        check(self.scheduler.snapshot())
        for own in self.under_way:
            own.clear()
        self.open_handles.clear()
        for train in (True, False):
            self.ended[train] |= self.admitted[train]

    @invariant()
    def instances_end_once(self):
        if not hasattr(self, "scheduler"):
            return
        for instance, train in self.scheduler.admission.take_ended():
            assert instance in self.admitted[train] and instance not in self.ended[train]
            self.ended[train].add(instance)
        for train in (True, False):
            assert (
                len(self.admitted[train]) - len(self.ended[train])
                == self.scheduler.admission.in_flight[train]
                <= 4
            )

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        while self.open_handles:
            self.close()
        moved = True
        while moved:
            moved = False
            for worker in range(WORKERS):
                while (dispatch := self.scheduler.next(worker)) is not None:
                    self.under_way[worker].append(dispatch)
                while self.under_way[worker]:
                    self.scheduler.done(self.under_way[worker].popleft())
                    moved = True
            if not moved:
                self.scheduler.rounds.end_of_data()
                moved = self.scheduler.can_move()
        self.instances_end_once()
        assert (
            self.ended == self.admitted
            and self.scheduler.idle
            and self.scheduler.tables.slots_in_use == 0
        )


TestIntegers = IntegerMachine.TestCase
TestIntegers.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
