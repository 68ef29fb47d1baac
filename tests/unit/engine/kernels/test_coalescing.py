"""Launches of one kernel, carried out in one call: which these are, and that they do what they do one by one."""

import asyncio
import time

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.engines import NEVER, engine

import ampjax.graphs as ag
from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.sampling_timer import SamplingTimer
from ampjax.drivers.tracer import Tracer
from ampjax.plan.ladders import ladder_for
from ampjax.sched.decisions.packs import MOST_COALESCED
from ampjax.trace.trace import Trace

pytestmark = pytest.mark.slow


def watched(e, monkeypatch):
    """The launches of every call of an executor, in order."""
    calls = []
    run = e.executor.run

    def noted(launches):
        calls.append(list(launches))
        return run(launches)

    monkeypatch.setattr(e.executor, "run", noted)
    return calls


@pytest.mark.nightly
@pytest.mark.parametrize("interval", [NEVER, 5, 1])
def test_a_loop_learns_the_same(monkeypatch, interval):
    lengths = [
        5,
        5,
        5,
        2,
        7,
        5,
        1,
        9,
        4,
    ]
    settings = {"interval": interval, "max_active_keys": 3, "tx": optax.adam(0.05)}
    one, many = (engine(graphs.rnn(), **settings) for _ in range(2))
    dispatches = []
    one.virtual(graphs.rnn_data(lengths), on_dispatch=dispatches.append)
    calls = watched(many, monkeypatch)
    many.wall(graphs.rnn_data(lengths))
    assert len([d for call in calls for d in call]) == len(dispatches)
    assert max(map(len, calls)) > 1, "nothing was called together"
    for before, after in (
        (one.executor.store.params, many.executor.store.params),
        (one.gradients, many.gradients),
    ):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
            before,
            after,
        )
    for name, value in one.metrics().items():
        assert many.metrics().get(name, value) == pytest.approx(value, rel=1e-5)


def test_what_is_called_together_has_one_kernel(monkeypatch):
    """One stage, one direction, one size; parameters change behind the last one only."""
    e = engine(graphs.rnn(), interval=7, max_active_keys=4)
    calls = watched(e, monkeypatch)
    e.wall(graphs.rnn_data([6, 6, 3, 6, 8, 2, 6, 6]))
    for call in calls:
        assert (
            len(
                {(d.stage, d.direction, ladder_for(e.plan.stages[d.stage])(d.n_rows)) for d in call}
            )
            == 1
        )
        assert not any(d.changes for d in call[:-1])
        assert len(call) <= MOST_COALESCED


def test_what_fails_is_undone_as_a_whole(monkeypatch):
    e = engine(graphs.rnn(), max_active_keys=2)
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources(graphs.rnn_data([8, 8])),
    )
    run = e.executor.run
    failed = []

    def fails(launches):
        if len(launches) > 2:
            failed.append([d.number for d in launches])
            raise MemoryError
        return run(launches)

    monkeypatch.setattr(e.executor, "run", fails)
    with pytest.raises(MemoryError):
        asyncio.run(AsyncioDriver(loop).run())
    assert failed
    assert [d.number for d in loop.queue.undone][: len(failed[0])] == failed[0]


def plus():
    """`loss(p + x)`: the gradient of each row is 1."""
    with ag.Graph() as g:
        x = ag.pump("x")
        y = ag.ppt(
            "f",
            lambda p, x: p + x,
            params=graphs.one(),
        )(x)
        ag.loss("loss", lambda y: y)(y)
    return g


ROWS = [{"x": np.float32(i)} for i in range(40)]


def failing(trace=None, change_at=None, run_at=None):
    """A run that fails at a parameter change, or at a call that brings gradients; what remains of it, and the loop."""
    e = engine(
        plus(),
        gradient="mean",
        interval=8,
        max_active_keys=40,
        max_dispatch_size=1,
        fuse=False,
    )
    loop = DriverLoop(e.scheduler, e.executor, e.sources(ROWS))
    change = e.executor.change
    run = e.executor.run
    counts = {"change": 0, "run": 0}

    def raises(name, at):
        counts[name] += 1
        if counts[name] == at:
            raise MemoryError

    def fails_to_change(what):
        raises("change", change_at)
        change(what)

    def fails_to_run(launches):
        if launches[0].direction == "backward":
            raises("run", run_at)
        return run(launches)

    e.executor.change = fails_to_change
    e.executor.run = fails_to_run
    with pytest.raises(MemoryError):
        asyncio.run(AsyncioDriver(loop, trace=trace).run())
    loop.queue.abandon()
    return e


@pytest.mark.first_case
@pytest.mark.parametrize(
    "how",
    [*({"change_at": n} for n in (1, 2)), *({"run_at": n} for n in (1, 2, 3))],
    ids=lambda how: "-".join(map(str, *how.items())),
)
@pytest.mark.parametrize("every", [None, 1000, 1])
def test_nodes_have_counted_what_they_have_accumulated(how, every):
    e = failing(None if every is None else Trace(every=every), **how)
    assert float(e.gradients["f"]) == e.scheduler.updates.counts["f"]


class Calls:
    """An executor that notes what it is asked to run."""

    is_remote = False
    n_hosts = 1

    def __init__(self):
        self.calls = []
        self.fences = self
        self.sinks = ()

    def can_coalesce(self, before, launch):
        return True

    def run(self, launches):
        self.calls.append([d.number for d in launches])
        return 0

    def is_idle(self, worker):
        return True

    def wait_for(self, worker):
        pass


def test_one_that_is_timed_is_called_alone():
    e = engine(graphs.rnn(), max_active_keys=2)
    calls = Calls()
    loop = DriverLoop(
        e.scheduler,
        calls,
        e.sources(graphs.rnn_data([4, 4])),
    )
    calls.feed = lambda feeds: None
    loop.instruments.add(
        SamplingTimer(
            Tracer(Trace(), loop, time.perf_counter_ns),
            calls,
            every=1000,
        )
    )
    loop.settle()
    for _ in range(4):
        loop.done(loop.decide(0))
    loop.queue.carry_out()
    (first, *rest) = calls.calls
    assert len(first) == 1 and len(rest[0]) > 1
