"""The asyncio driver: several workers in one loop, errors with their place, cancellation, loops that already run."""

import asyncio
import collections
import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs
from support.engines import engine, spread

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.controller import LoopInstances, LoopSource
from ampjax.drivers.run import DriverLoop
from ampjax.engine.timing.compilation_count import compilations
from ampjax.errors import DeadlockError, MessageError
from ampjax.plan.passes import Pass
from ampjax.sched.diagnose.invariants import check
from ampjax.trace.instruments import Instrument
from ampjax.trace.trace import Trace

pytestmark = pytest.mark.slow


def within(turns, coroutine):
    """A coroutine's result; an error if it has not ended after so many turns of the event loop."""

    async def main():
        task = asyncio.create_task(coroutine)
        for _ in range(turns):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        task.cancel()
        raise AssertionError(f"still waiting after {turns} turns of the event loop")

    return asyncio.run(main())


def test_a_run_ends_with_everything_done():
    e = engine(graphs.fan_out(), fuse=False, interval=2)
    ended = []
    e.wall(
        graphs.chain_data(3),
        progress=lambda n, train: ended.append((n, train)),
    )
    assert ended == [(3, True)] and e.scheduler.idle
    check(e.scheduler.snapshot())


@pytest.mark.nightly
@pytest.mark.parametrize("run_ahead", [1, 32, 1000])
def test_run_ahead_changes_nothing_but_time(run_ahead):
    """Routing depends on issued dispatches only."""
    e = engine(
        graphs.chain(2),
        {"f1": 1},
        (0, 1),
        interval=2,
        fuse=False,
        max_dispatch_size=1,
    )
    e.wall(graphs.chain_data(30), run_ahead=run_ahead)
    f = engine(
        graphs.chain(2),
        {"f1": 1},
        (0, 1),
        interval=2,
        fuse=False,
        max_dispatch_size=1,
    )
    f.wall(graphs.chain_data(30))
    assert {n: float(p) for n, p in e.executor.store.params.items()} == {
        n: float(p) for n, p in f.executor.store.params.items()
    }


def test_training_and_inference_sources_run_at_the_same_time():
    e = engine(graphs.chain(1))
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources(graphs.chain_data(4)) + e.sources(graphs.chain_data(3), train=False),
    )
    asyncio.run(AsyncioDriver(loop).run())
    stats = e.scheduler.counts.read().stages["f0+loss"]
    assert (stats.forward, stats.infer) == (4, 3)
    assert set(e.metrics(True)) == set(e.metrics(False)) == {"loss"}


@pytest.mark.nightly
@pytest.mark.parametrize("every", [1, 2, 1000])
def test_a_trace_has_every_dispatch(every):
    e = engine(graphs.chain(2), fuse=False)
    trace = Trace(every=every)
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources(graphs.chain_data(3)),
    )
    asyncio.run(AsyncioDriver(loop, trace=trace).run())
    assert [(s.node, s.kind, s.instances) for s in trace] == [
        ("f0", "forward", (0, 1, 2)),
        ("f1", "forward", (0, 1, 2)),
        ("loss", "forward", (0, 1, 2)),
        ("f1", "backward", (0, 1, 2)),
        ("f0", "backward", (0, 1, 2)),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("every", [1, 4])
def test_a_trace_of_several_workers_and_their_updates(every):
    """Workers donate what others have written, so a trace waits on copies; an update has a slice of its own."""
    data = graphs.rnn_data([3, 1, 4, 2] * 4)
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        workers=2,
        min_update_interval=2,
        max_dispatch_size=2,
    )
    trainer.warm_up(data, progress=False)  # compiles every size that a schedule can bring
    trace = Trace(every=every)
    trainer.accumulate(data, trace=trace)
    stats = trainer.statistics
    kinds = collections.Counter(s.kind for s in trace)
    assert kinds["update"] > 0
    assert sum(kinds[kind] for kind in ("forward", "backward", "transfer")) == stats.dispatches
    before = compilations()
    trainer.accumulate(data, trace=Trace(every=every))
    assert compilations() == before
    for worker in (0, 1):
        own = sorted((s.start_ns, s.end_ns) for s in trace if s.worker == worker)
        assert own
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(own))


# A controller's loop on several workers


def test_messages_of_a_controllers_loop_wake_the_worker_that_can_use_them():
    """A worker that finds nothing to do lets the loops pump on; what they pump may be for a worker that is waiting."""
    with ag.Graph() as g:
        a, b, c = (ag.pump(name) for name in "abc")
        ag.loss("loss", lambda x: x, worker=1)(
            ag.npt("add", lambda a, b, c: a + b + c)(
                a,
                b,
                c,
            )
        )
    e = engine(
        g,
        {"loss": 1},
        (0, 0),
        fuse=False,
    )

    def controller(example):
        for name in "abc":
            yield {name: np.float32(example)}

    source = LoopSource(
        e.scheduler,
        Pass(
            LoopInstances(controller, [1, 2, 3]),
            np.arange(3),
        ),
    )
    loop = DriverLoop(e.scheduler, None, [source])
    within(200, AsyncioDriver(loop).run())
    assert e.scheduler.idle and source.exhausted


# Decisions ahead of issue


def sum_of_inputs():
    """A node whose gradient is the sum of what has come in."""
    with ag.Graph() as g:
        ag.loss("loss", lambda x: x)(
            ag.ppt(
                "f",
                graphs.times,
                params=graphs.one(),
            )(ag.pump("x"))
        )
    return g


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_payload_does_not_take_the_place_of_one_that_is_still_to_be_read(in_flight):
    """An instance ends for the scheduler before its kernels are issued; the next one's payload gets the same slot."""
    e = engine(sum_of_inputs(), max_active_keys=in_flight)
    e.wall([{"x": np.float32(2**i)} for i in range(12)])
    assert e.gradients["f"] == 2**12 - 1
    assert e.scheduler.counts.read().most_in_flight == in_flight


@pytest.mark.parametrize("stops_at", [3, 9, 18])
def test_what_was_decided_before_a_mistake_can_be_carried_out(stops_at):
    """So nodes have accumulated as many gradient rows as they have counted."""

    def policy(queues, now):
        if now >= stops_at:
            raise ZeroDivisionError("a mistake in the policy")
        return queues[0]

    e = engine(sum_of_inputs(), max_active_keys=2, policy=policy)
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources([{"x": np.float32(1)}] * 40),
    )
    with pytest.raises(ZeroDivisionError, match="in the policy"):
        asyncio.run(AsyncioDriver(loop).run())
    loop.queue.carry_out()
    assert not loop.queue.undone
    assert e.gradients["f"] == e.scheduler.updates.counts["f"] > 0


@pytest.mark.parametrize("stops_at", [3, 9, 18])
def test_a_dispatch_that_could_not_be_told_of_counts_as_decided(stops_at):
    """A recording whose disk is full must not leave gradients counted that nobody has accumulated."""

    class FullDisk(Instrument):
        def decided(self, dispatch):
            if dispatch.number == stops_at:
                raise OSError("no space left")

    e = engine(sum_of_inputs(), max_active_keys=2)
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources([{"x": np.float32(1)}] * 40),
        [FullDisk()],
    )
    with pytest.raises(OSError, match="no space"):
        asyncio.run(AsyncioDriver(loop).run())
    loop.queue.abandon()
    assert e.gradients["f"] == e.scheduler.updates.counts["f"] > 0


def test_nothing_is_issued_after_a_mistake():
    """The way back of what was not computed would bring what lies in its rows from before."""
    e = engine(graphs.chain(3), fuse=False, max_active_keys=2)
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources(graphs.chain_data(6)),
    )
    run = e.executor.run
    issued = []

    def fails(launches):
        issued.append(launches[0].number)
        if e.plan.stages[launches[0].stage].name == "f1":
            raise MemoryError
        return run(launches)

    e.executor.run = fails
    with pytest.raises(MemoryError) as failure:
        asyncio.run(AsyncioDriver(loop).run())
    loop.queue.carry_out()
    assert issued == [1, 2]
    assert [d.number for d in loop.queue.undone][:2] == [2, 3]
    assert "dispatch 3" not in "".join(failure.value.__notes__), (
        "the story ends with the dispatch that failed"
    )


class Heads(Instrument):
    """Wants some dispatches to be issued by themselves."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.batches = [[]]

    def decided(self, dispatch):
        return dispatch.number in self.wanted

    def before_kernels(self, dispatches):
        self.batches[-1] += [dispatch.number for dispatch in dispatches]

    def carried_out(self):
        self.batches.append([])


def decided(watch_for, n=40):
    """A loop that can decide on dispatches, one after the other, and who watches it."""
    e = engine(graphs.chain(3), fuse=False)
    heads = Heads(watch_for)
    loop = DriverLoop(
        e.scheduler,
        e.executor,
        e.sources(graphs.chain_data(n)),
        [heads],
    )
    loop.settle()
    return e, loop, heads


def test_what_a_watch_wants_first_begins_those_that_are_issued_together():
    _, loop, heads = decided({3, 4, 9})
    for _ in range(12):
        loop.done(loop.decide(0))
    loop.queue.carry_out()
    loop.queue.carry_out()
    assert [batch for batch in heads.batches if batch] == [
        [1, 2],
        [3],
        [4, 5, 6, 7, 8],
        [9, 10, 11, 12],
    ]
    assert heads.batches[-2] != [], "nothing has been carried out where nothing had been decided"


def test_one_that_a_watch_wants_first_is_undone_too_if_what_comes_before_fails():
    e, loop, _ = decided({4})
    for _ in range(3):
        loop.done(loop.decide(0))

    def fails(launches):
        raise MemoryError

    e.executor.run = fails
    with pytest.raises(MemoryError):
        loop.decide(0)
    assert [dispatch.number for dispatch in loop.queue.undone] == [1, 2, 3, 4]


def test_payloads_that_are_put_off_are_copies():
    """A data set may fill the same buffer for each instance."""

    class Reused:
        buffer = np.zeros(1, np.float32)

        def __len__(self):
            return 12

        def gather(self, ids):
            self.buffer[:] = 2.0**ids
            return {
                "x": ag.Messages(
                    self.buffer,
                    np.zeros(1, np.int64),
                )
            }

    e = engine(sum_of_inputs(), max_active_keys=1)
    e.wall(Reused())
    assert e.gradients["f"] == 2**12 - 1


# Errors


class Broken:
    """A body that works while the graph is built and fails when its kernel is traced."""

    def __init__(self):
        self.armed = False

    def __call__(self, x):
        if self.armed:
            raise ZeroDivisionError("a mistake in the body")
        return x


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_body_says_where(workers):
    body = Broken()
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.npt("second", body)(
            ag.ppt(
                "first",
                graphs.times,
                params=graphs.one(),
            )(x)
        )
        ag.loss("loss", graphs.square)(y, label)
    body.armed = True
    e = engine(
        g,
        spread(g, workers),
        (0,) * workers,
        fuse=False,
    )
    with pytest.raises(ZeroDivisionError, match="a mistake in the body") as caught:
        e.wall(graphs.chain_data(2))
    worker = e.plan.worker_of["second"]
    note = "\n".join(caught.value.__notes__)
    assert (
        f"ampjax: in Dispatch 2 on worker {worker}: forward `second` (2 messages, 2 rows); first message State(instance=0); its story:"
        in note
    )
    assert "dispatch 1: forward `first` on worker" in note


def test_errors_of_state_functions_surface_as_they_are():
    with ag.Graph() as g:
        x = ag.ppt(
            "f",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x", fields=("t",)))
        a, b = ag.cond(
            x,
            lambda s: np.where(s.t == 77, 9, 0),
            name="way",
        )
        ag.sink("a", a)
        ag.sink("b", b)
    text = r"node `way`, condition: expected an output's number in \[0, 2\), got 9 for State\(instance=0, t=77\)"
    with pytest.raises(MessageError, match=text):
        engine(g).wall(
            [
                {
                    "x": ag.messages(
                        np.ones(1, np.float32),
                        t=77,
                    )
                }
            ]
        )


@pytest.mark.parametrize("workers", [1, 3])
def test_a_standstill_is_an_error_and_not_a_hang(workers):
    e = engine(
        graphs.chain(2),
        spread(graphs.chain(2), workers),
        (0,) * workers,
        fuse=False,
    )
    with pytest.raises(
        DeadlockError,
        match=r"node `loss` has State\(instance=0\) on port f1 and waits for the same key on port label",
    ):
        within(
            500,
            e.wall_async([{"x": np.float32(1)}]),
        )


def test_an_error_of_one_worker_ends_the_others():
    body = Broken()
    with ag.Graph() as g:
        x = ag.pump("x")
        ag.sink("ok", ag.npt("good", jnp.sin)(x))
        ag.sink(
            "end",
            ag.npt("bad", body, worker=1)(x),
        )
    body.armed = True
    e = engine(
        g,
        {"bad": 1},
        (0, 0),
        fuse=False,
    )

    async def main():
        before = asyncio.all_tasks()
        with pytest.raises(ZeroDivisionError):
            await e.wall_async([{"x": np.float32(i)} for i in range(5)])
        assert asyncio.all_tasks() == before

    asyncio.run(main())


# Cancellation


@pytest.mark.first_case
@pytest.mark.parametrize("workers", [1, 2])
def test_cancelling_leaves_an_engine_that_can_go_on(workers):
    e = engine(
        graphs.chain(2),
        spread(graphs.chain(2), workers),
        (0,) * workers,
        fuse=False,
        max_dispatch_size=1,
    )
    ended = []

    async def main():
        def progress(n, train):
            ended.append(n)
            if len(ended) == 40:
                task.cancel()

        task = asyncio.create_task(e.wall_async(graphs.chain_data(300), progress=progress))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert 40 <= len(ended) < 300
    e.loops[-1].queue.abandon()
    e.n_run.clear()
    held = {}
    for n in e.executor.store.params:
        held[n] = e.scheduler.updates.counts[n]
    e.wall(graphs.chain_data(5))
    assert {n: e.scheduler.updates.counts[n] - held[n] for n in held} == {"f0": 5, "f1": 5}
    assert e.metrics()["loss"] == pytest.approx(
        np.mean([(2.25 * i - 0.5) ** 2 for i in range(5)]),
        rel=1e-5,
    )


def test_it_runs_beside_other_tasks():
    """The loop is never blocked for long: another task gets its turns while a run is under way."""
    e = engine(graphs.chain(1), fuse=False, max_dispatch_size=1)
    turns = []

    async def ticker():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def main():
        other = asyncio.create_task(ticker())
        await e.wall_async(graphs.chain_data(100))
        other.cancel()

    asyncio.run(main())
    assert len(turns) >= 300 // 16
