"""Traces of runs on devices of this process."""

import asyncio
import itertools

import pytest
from support import graphs
from support.engines import engine

from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.run import DriverLoop
from ampjax.trace.trace import Trace


def traced(trace, n=40, **options):
    e = engine(
        graphs.chain(2),
        {"f0": 0, "f1": 1},
        (0, 0),
        fuse=False,
        interval=3,
        max_dispatch_size=2,
        **options,
    )
    asyncio.run(
        AsyncioDriver(
            DriverLoop(
                e.scheduler,
                e.executor,
                e.sources(graphs.chain_data(n)),
            ),
            trace=trace,
        ).run()
    )
    return e


def test_slices_of_a_worker_never_overlap_and_lie_within_the_run():
    trace = Trace(every=8)
    e = traced(trace)
    begin, end = trace.runs[0]
    stats = e.scheduler.counts.read()
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
    assert len(trace) <= 10
    assert trace.n_dropped >= e.scheduler.counts.read().dispatches - kept


def test_a_run_that_fails_leaves_what_it_has_recorded():
    trace = Trace(every=8)
    e = engine(graphs.chain(1), fuse=False)

    def stop(dispatch):
        if dispatch.number == 3:
            raise KeyError("stop")

    loop = e.loop(graphs.chain_data(1), on_dispatch=stop)
    with pytest.raises(KeyError, match="stop"):
        asyncio.run(AsyncioDriver(loop, trace=trace).run())
    assert [s.node for s in trace] == ["f0", "loss"]
    assert len(trace.runs) == 1
