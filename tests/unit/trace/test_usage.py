"""Where workers' time went."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs, runs
from support.engines import engine

import ampjax.graphs as ag
from ampjax.drivers.controller import LoopInstances, LoopSource
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.plan.passes import Pass
from ampjax.sched.decisions.policy import backward_first
from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import KINDS, REASONS, Slice
from ampjax.trace.usage import HOST, USES, spans, usage

pieces = st.tuples(
    st.integers(0, 1),
    st.integers(0, 40),
    st.integers(0, 12),
)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(pieces, st.sampled_from(KINDS)),
        max_size=8,
    ),
    st.lists(
        st.tuples(pieces, st.sampled_from(REASONS)),
        max_size=8,
    ),
    st.lists(
        st.integers(0, 50),
        min_size=2,
        max_size=2,
        unique=True,
    ),
)
def test_every_moment_of_a_run_counts_once(slices, waits, run):
    """Against a count of moments: the slice that began first, else the wait that did, else the host."""
    trace = Trace(Slice(w, "a", kind, start, start + n) for (w, start, n), kind in slices)
    for (w, start, n), reason in waits:
        trace.add_wait(w, reason, start, start + n)
    trace.runs.append((min(run), max(run)))
    expected = {}
    for worker in {s.worker for s in trace} | {w.worker for w in trace.waits}:
        expected[worker] = dict.fromkeys(USES, 0)
    for worker, moment in itertools.product(
        expected,
        range(min(run), max(run)),
    ):
        own = []
        for s in trace:
            if s.worker == worker:
                own.append((s.start_ns, s.end_ns, s.kind))
        idle = []
        for w in trace.waits:
            if w.worker == worker:
                idle.append((w.start_ns, w.end_ns, w.reason))
        now = [[p for p in sorted(found) if p[0] <= moment < p[1]] for found in (own, idle)]
        expected[worker][(now[0] or now[1] or [(0, 0, HOST)])[0][2]] += 1
    found = usage(trace)
    total = max(run) - min(run)
    assert all(sum(own.values()) == total for own in found.values())
    for (
        worker,
        own,
    ) in found.items():  # of several that overlap the order chooses, so kinds are added up
        busy = sum(expected[worker][kind] for kind in KINDS)
        assert sum(own.get(kind, 0) for kind in KINDS) == busy
        assert own.get(HOST, 0) == expected[worker][HOST]
    for worker in found:
        mine = []
        for w, start, end, _ in spans(trace):
            if w == worker:
                mine.append((start, end))
        assert all(a[1] == b[0] for a, b in itertools.pairwise(mine))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["sync", "pipeline", "async"])
@pytest.mark.parametrize("model", [runs.rnn, runs.trees])
def test_in_virtual_time_nothing_is_the_hosts(model, mode):
    _, trace = model(mode)
    start, end = trace.runs[0]
    times = usage(trace)
    assert set(times) == {0, 1}
    assert all(sum(own.values()) == end - start and HOST not in own for own in times.values())


def test_synchronous_workers_are_throttled_more_than_asynchronous_ones():
    part = {}
    for mode in ("sync", "async"):
        own = usage(runs.trees(mode)[1])[0]
        part[mode] = own.get("throttled", 0) / sum(own.values())
    assert part["sync"] > 2 * part["async"]


# The reasons, one by one


def control_only(*args, **settings):
    e = engine(*args, **settings)
    e.executor = None
    return e


def reasons(e, sources, cost=lambda d: 5):
    """Why each worker waited, in order of time."""
    trace = Trace()
    VirtualDriver(
        DriverLoop(e.scheduler, None, sources),
        cost,
        trace,
    ).run()
    result = []
    for w in trace.waits:
        result.append((w.worker, w.reason, w.start_ns, w.end_ns))
    return result


def test_a_worker_is_throttled_while_other_instances_are_outside_and_starved_when_none_are():
    e = control_only(
        graphs.chain(2),
        {"f0": 0, "f1": 1, "loss": 1},
        (0, 0),
        fuse=False,
        max_active_keys=1,
    )
    waits = reasons(e, e.sources(graphs.chain_data(2)))
    assert [(reason, start, end) for worker, reason, start, end in waits if worker == 0] == [
        ("throttled", 5, 20),
        ("starved", 30, 45),
    ]


def test_a_message_without_its_partner_waits_for_a_join():
    with ag.Graph() as g:
        a = ag.pump("a")
        b = ag.npt(
            "slow",
            lambda b: b,
            worker=0,
        )(ag.pump("b"))
        ag.loss("loss", lambda a, b: a + b, worker=1)(
            a,
            b,
        )
    e = control_only(
        g,
        {"slow": 0, "loss": 1},
        (0, 0),
        fuse=False,
    )
    assert (1, "join", 0, 5) in reasons(
        e,
        e.sources(
            [
                {
                    "a": np.float32(1),
                    "b": np.float32(2),
                }
            ]
        ),
    )


def test_a_policy_may_want_to_wait():
    def patient(queues, now):
        chosen = backward_first(queues, now)
        return None if chosen.stage.name == "f1" and chosen.items < 2 else chosen

    e = control_only(
        graphs.chain(2),
        {"f0": 0, "f1": 1},
        (0, 0),
        fuse=False,
        max_dispatch_size=1,
        policy=patient,
    )
    assert (1, "policy", 5, 10) in reasons(e, e.sources(graphs.chain_data(2)))


def test_a_stage_without_room_for_its_result_waits_for_memory():
    limits = {(0, (), "float32"): 2}  # one row, beside that which padding writes to
    e = control_only(
        graphs.chain(1),
        {"f0": 0, "loss": 1},
        (0, 0),
        fuse=False,
        capacity=2,
        limits=limits,
    )
    assert (0, "memory", 5, 10) in reasons(e, e.sources(graphs.chain_data(2)))


def test_a_controllers_loop_that_runs_on_does_not_throttle():
    e = control_only(
        graphs.chain(1),
        {"f0": 0},
        (0,),
        fuse=False,
    )

    def controller(example):
        yield example

    source = LoopSource(
        e.scheduler,
        Pass(
            LoopInstances(controller, graphs.chain_data(2)),
            np.arange(2),
        ),
    )
    assert {reason for _, reason, *_ in reasons(e, [source])} <= {"starved", "join"}
