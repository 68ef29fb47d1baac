"""Times that are worked out, against devices whose times are known."""

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.engines import engine

from ampjax.drivers import sampling_timer
from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.run import Loop
from ampjax.drivers.sampling_timer import (
    APART,
    CREDIT_NS,
    EACH,
    SHARE,
    Costs,
    Issued,
    SamplingTimer,
    Timing,
    place_in_time,
)
from ampjax.drivers.tracer import Note
from ampjax.plan.stage_kinds import ROWS
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.parameter_changes import Update
from ampjax.trace.trace import Trace

KERNELS, CHANGES = {"a": 100, "b": 40}, 30
STAGES = {name: Stage(i, ROWS, (), 0, 0) for i, name in enumerate("abc")}


def device(work, every, cost=lambda name, i: KERNELS[name]):
    """What a device that runs in order does, and what a host sees of it.

    Args:
      work: For each dispatch the stage, whether it changes parameters, and how long the host takes before it issues it.
      every: One dispatch in so many is timed.
      cost: The kernels' time.

    Returns:
      The issues, and the true times of each.
    """
    now = free = 0
    issues, truth = [], []
    for i, (name, changes, pause) in enumerate(work):
        now += pause
        note = Note(0, STAGES[name], "forward", np.array([i]), 8, [Update("w", 1)] * changes)
        timed, waited = i % every == 0, free > now
        if timed:
            now = max(now, free)
        idle, start = now, max(now, free)
        between = start + cost(name, i)
        free = between + CHANGES * changes
        timing = Timing(idle, waited, (between - start, free - between)) if timed else None
        issues.append(Issued(note, idle, between if timed else idle, timing))
        truth.append((start, between, between, free))
        if timed:
            now = free
    return issues, truth


work = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 250)), min_size=1, max_size=40)


@settings(max_examples=50)
@given(work, st.integers(1, 9))
def test_times_are_exact_where_a_stage_always_takes_the_same(work, every):
    first = [work for work in itertools.product("ab", (True, False), [0]) for _ in range(every)]  # each is timed once
    issues, truth = device(first + work, every)
    found = np.array([times for _, times in place_in_time(issues, Costs(issues), truth[-1][3])])
    np.testing.assert_allclose(found, truth, atol=3)


@settings(max_examples=50)
@given(work, st.integers(1, 9), st.lists(st.integers(1, 400), min_size=40, max_size=40))
def test_whatever_the_device_does_the_order_is_kept_and_timed_dispatches_are_exact(work, every, costs):
    issues, truth = device(work, every, lambda name, i: costs[i])
    placed = place_in_time(issues, Costs(issues), truth[-1][3])
    assert [issue for issue, _ in placed] == issues
    edges = [edge for _, times in placed for edge in times]
    assert edges == sorted(edges) and edges[-1] <= truth[-1][3]
    for (issue, times), true in zip(placed, truth, strict=True):
        assert times[0] >= issue.start_ns
        if issue.timing is not None:
            assert times == true


@settings(max_examples=30)
@given(st.integers(2, 8), st.floats(0.3, 3.0))
def test_a_device_that_changes_its_pace_is_followed(every, pace):
    """Where it is never idle, what lies between two timed dispatches ends when the second one starts."""
    issues, truth = device([("a", False, 1)] * 40, every, lambda name, i: int(100 * (pace if i >= 16 else 1)))
    placed = place_in_time(issues, Costs(issues), truth[-1][3])
    ends = [times[3] for _, times in placed]
    for before in range(every - 1, 39, every):  # the next one is timed
        assert ends[before] == pytest.approx(truth[before][3], abs=every)  # each time is cut to whole nanoseconds


def test_the_time_of_a_compilation_is_no_other_dispatchs():
    issues, _ = device([("a", False, 0)] * 3, 1, lambda name, i: 10**6 if i == 0 else 100)
    assert issues[0].timing is not None
    issues[0] = issues[0]._replace(timing=issues[0].timing._replace(compiled=True))
    assert Costs(issues).of(issues[0]) == (100, 0.0)


def test_a_size_that_was_never_timed_takes_its_neighbours_time():
    issues, _ = device([("a", False, 0), ("b", False, 0)], 1)
    costs = Costs(issues)
    other = Issued(Note(0, STAGES["a"], "forward", np.array([1]), 4096), 0, 0)
    assert costs.of(other) == (KERNELS["a"], 0.0)
    assert costs.of(Issued(Note(0, STAGES["c"], "forward", np.array([1]), 8), 0, 0)) == (KERNELS["b"], 0.0), (
        "what is usual"
    )
    assert Costs([]).of(other) == (0.0, 0.0)


@pytest.mark.parametrize("changes", [False, True])
def test_what_was_never_timed_with_changes_takes_the_kernels_time_without_and_the_other_way_round(changes):
    issues, _ = device([("a", changes, 0)], 1)
    note = Note(0, STAGES["a"], "forward", np.array([1]), 8, [Update("w", 1)] * (not changes))
    assert Costs(issues).of(Issued(note, 0, 0)) == (KERNELS["a"], 0.0)


# What timing costs, with a host and a device whose times are known


class Machine:
    """Stands for the clock, the tracer and the executor of one worker."""

    def __init__(self, is_busy=False, n_to_compile=0):
        self.ns, self.is_busy, self.n_waits, self.trace, self.fences = 0, is_busy, 0, Trace(), self
        self.n_to_compile, self.compilations = n_to_compile, 0

    def clock(self):
        return self.ns

    def note_parts(self, dispatch):
        return 0, STAGES["a"], dispatch.direction, dispatch.ids, dispatch.n_rows, dispatch.changes

    def begin(self, dispatch):
        self.ns += 50_000
        return self.ns

    def run(self):
        self.ns += 50_000
        if self.compilations < self.n_to_compile:
            self.ns += 500_000_000
            self.compilations += 1

    def change(self):
        self.ns += 1_000

    def is_idle(self, worker):
        self.ns += 40_000
        return not self.is_busy

    def wait_for(self, worker):
        self.n_waits += 1
        self.ns += 150_000

    def pass_(self, watch, n):
        """Decides on dispatches and issues them, one after the other; gives how many were wanted first."""
        pack = np.zeros(3 * 8, np.int32)
        wanted = 0
        for number in range(1, n + 1):
            dispatch = Dispatch(number, 0, STAGES["a"].number, "forward", 8, 8, 0, pack)
            wanted += watch.decided(dispatch)
            watch.before_kernels([dispatch])
            self.run()
            watch.after_kernels([dispatch])
            self.change()
            watch.after_changes([dispatch])
        watch.carried_out()
        return wanted


@pytest.mark.parametrize("is_busy", [False, True])
def test_timing_takes_no_more_of_a_run_than_its_share(is_busy):
    """All of what it takes is counted: the question whether a device is idle, and the waiting."""
    machine = Machine(is_busy)
    watch = SamplingTimer(machine, machine, every=64)
    wanted = machine.pass_(watch, 40_000)
    without = 40_000 * 101_000
    assert machine.n_waits > 0 and 0 < machine.ns - without <= 1.3 * SHARE * machine.ns + CREDIT_NS
    assert wanted < 40_000 / APART, "batches are cut short by few"


def test_a_run_that_is_short_has_its_kinds_timed():
    machine = Machine()
    watch = SamplingTimer(machine, machine, every=64)
    machine.pass_(watch, 10)
    watch.finish()
    assert machine.n_waits == EACH, "an idle device is not waited for before"


def test_what_is_compiled_in_a_timed_dispatch_is_no_loss_and_it_is_timed_again(monkeypatch):
    machine = Machine(n_to_compile=3)
    monkeypatch.setattr(sampling_timer, "compilations", lambda: machine.compilations)
    watch = SamplingTimer(machine, machine, every=64)
    machine.pass_(watch, 400)
    assert machine.n_waits >= 3 + EACH
    assert machine.n_waits * 150_000 <= 1.3 * SHARE * 400 * 101_000 + CREDIT_NS


# On a real device


def traced(trace, n=40, **options):
    e = engine(graphs.chain(2), {"f0": 0, "f1": 1}, (0, 0), fuse=False, interval=3, max_dispatch_size=2, **options)
    asyncio.run(AsyncioDriver(Loop(e.scheduler, e.executor, e.sources(graphs.chain_data(n))), trace=trace).run())
    return e


def test_slices_of_a_worker_never_overlap_and_lie_within_the_run():
    trace = Trace(every=8)
    e = traced(trace)
    (begin, end), stats = trace.runs[0], e.scheduler.counts.read()
    assert sum(s.kind != "update" for s in trace) == stats.dispatches
    assert sum(s.kind == "update" for s in trace) > 0
    for worker in (0, 1):
        own = [s for s in trace if s.worker == worker]
        assert all(begin <= s.start_ns <= s.end_ns <= end for s in own)
        assert all(s.end_ns <= t.start_ns for s, t in itertools.pairwise(own))
    assert sum(s.messages for s in trace) == stats.messages


def test_no_more_is_kept_than_asked_for():
    trace = Trace(max_slices=10, every=8)
    e = traced(trace)
    kept = sum(s.kind != "update" for s in trace)
    assert len(trace) <= 10 and trace.n_dropped >= e.scheduler.counts.read().dispatches - kept


def test_a_run_that_fails_leaves_what_it_has_recorded():
    trace = Trace(every=8)
    e = engine(graphs.chain(1), fuse=False)

    def stop(dispatch):
        if dispatch.number == 3:
            raise KeyError("stop")

    loop = e.loop(graphs.chain_data(1), on_dispatch=stop)
    with pytest.raises(KeyError, match="stop"):
        asyncio.run(AsyncioDriver(loop, trace=trace).run())
    assert [s.node for s in trace] == ["f0", "loss"] and len(trace.runs) == 1
