"""Virtual time: the real scheduler and real numerics, bit for bit the same every time (law 7)."""

import hashlib
import itertools
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.control import tell
from support.engines import engine, spread
from support.frozen import shortest_queue

from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.cost import FlopsCost
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.errors import DeadlockError
from ampjax.ir.instances import InstanceList
from ampjax.plan.passes import Pass
from ampjax.sched.decisions.policy import one_forward_one_backward
from ampjax.trace.trace import Trace


def run(seed):
    """A digest of the schedule and of the parameters of an asynchronous run on three devices with odd costs."""
    g = graphs.rnn()
    rng = np.random.default_rng(seed)
    homes = {"concat1": 1, "linear1": 1, "tanh": 1}
    e = engine(
        g,
        homes,
        (0, 1),
        interval=2,
        tx=optax.adam(1e-2),
        max_active_keys=4,
        max_dispatch_size=2,
    )
    data = graphs.rnn_data(rng.integers(1, 5, 8).tolist())
    said = []
    took = e.virtual(
        data,
        cost=lambda d: 3 + 7 * d.worker + d.n_rows * d.n_rows,
        on_dispatch=lambda d: said.append(tell(d)),
    )
    digest = hashlib.sha256("\n".join([*said, str(took)]).encode())
    for leaf in jax.tree.leaves(e.executor.store.params):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


@pytest.mark.nightly
@pytest.mark.slow
def test_one_seed_gives_one_schedule_and_the_same_bits():
    assert run(0) == run(0) != run(1)


@pytest.mark.nightly
@pytest.mark.slow
def test_also_in_another_process_with_another_hash_seed():
    here = os.path.dirname(__file__)
    code = f"import sys; sys.path[:0] = [{os.path.join(here, '..', '..')!r}, {here!r}]; import test_virtual_driver as t; print(t.run(0))"
    paths = os.pathsep.join(sys.path)
    env = {**os.environ, "PYTHONHASHSEED": "4711", "JAX_NUM_CPU_DEVICES": "4", "PYTHONPATH": paths}
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == [run(0)]


def control_only(graph, homes=None, spaces=(0,), **settings):
    e = engine(graph, homes, spaces, **settings)
    e.executor = None
    return e


def test_time_is_the_sum_of_costs_on_one_worker():
    e = control_only(graphs.chain(2), fuse=False)
    assert (
        e.virtual(
            graphs.chain_data(3),
            cost=lambda d: 10 * d.n_rows + 1,
        )
        == 5 * 31
    )


def test_workers_run_at_the_same_time():
    """Two branches of the same cost on two workers take half as long as on one."""
    times = []
    for worker in (0, 1):
        e = control_only(
            graphs.fan_out(2),
            {"b1": worker},
            (0, 0),
            fuse=False,
        )
        branches = []
        for stage in e.plan.stages:
            if stage.name in ("b0", "b1"):
                branches.append(stage.number)
        times.append(
            e.virtual(
                graphs.chain_data(1),
                cost=lambda d, own=branches: 100 * (d.stage in own),
            )
        )
    assert times == [400, 200]


def test_a_worker_starts_when_its_last_dispatch_has_ended():
    e = control_only(
        graphs.chain(3),
        {"f1": 1},
        (0, 0),
        fuse=False,
        max_dispatch_size=1,
    )
    trace = Trace()
    loop = DriverLoop(
        e.scheduler,
        None,
        [
            InstanceSource(
                e.scheduler,
                Pass(InstanceList(graphs.chain_data(4)), np.arange(4)),
            )
        ],
    )
    driver = VirtualDriver(loop, lambda d: 5, trace)
    assert driver.run() == driver.now_ns
    for worker in (0, 1):
        slices = sorted((s.start_ns, s.end_ns) for s in trace if s.worker == worker)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(slices))
    assert trace.busy_fraction()[0] <= 1.0 and len(trace) == 4 * 7


def test_an_update_has_a_slice_of_its_own():
    e = control_only(
        graphs.chain(1),
        fuse=False,
        intervals={"f0": 3},
    )
    trace = Trace()
    loop = DriverLoop(
        e.scheduler,
        None,
        e.sources(graphs.chain_data(3)),
    )
    VirtualDriver(
        loop,
        lambda d: 10 + 4 * len(d.changes),
        trace,
    ).run()
    assert [(s.node, s.kind, s.start_ns, s.end_ns) for s in trace] == [
        ("f0", "forward", 0, 10),
        ("loss", "forward", 10, 20),
        ("f0", "backward", 20, 30),
        ("f0", "update", 30, 34),
    ]


def test_time_goes_on_from_run_to_run():
    e = control_only(graphs.chain(1))
    driver = VirtualDriver(
        DriverLoop(
            e.scheduler,
            None,
            e.sources(graphs.chain_data(1)),
        ),
        lambda d: 7,
    )
    assert driver.run() == 7
    driver._loop.sources = e.sources(graphs.chain_data(1))
    assert driver.run() == 7 and driver.now_ns == 14


def test_no_more_instances_in_flight_than_allowed():
    e = control_only(graphs.rnn(), max_active_keys=3)
    e.virtual(graphs.rnn_data([3, 1, 4, 1, 5, 9, 2]))
    assert e.scheduler.counts.read().most_in_flight == 3


def test_a_standstill_is_a_deadlock_error():
    e = control_only(graphs.chain(1))
    text = r"before instance 0 is admitted: expected messages that all find their partners, got some that wait for ever: node `f0\+loss` has State\(instance=0\) on port x and waits for the same key on port label\."
    with pytest.raises(DeadlockError, match=text):
        e.virtual([{"x": np.float32(1)}])


def trained(way):
    """What a run comes to, of two workers and with kernels, if dispatches are decided `way`: the schedule, the time, the parameters."""
    g = graphs.rnn()
    e = engine(
        g,
        {"concat1": 1, "linear1": 1},
        (0, 1),
        interval=2,
        tx=optax.adam(1e-2),
        check=False,
        max_active_keys=4,
    )
    said = []
    cost = FlopsCost(e.plan, flops=1e8, latency_ns=50)
    loop = e.loop(
        graphs.rnn_data([3, 1, 4, 1, 5, 2]),
        on_dispatch=lambda d: said.append(tell(d)),
    )
    driver = VirtualDriver(loop, cost if way == "by table" else lambda dispatch: cost(dispatch))
    assert loop.advances
    took = driver.run()
    return (
        said,
        took,
        jax.tree.map(
            np.asarray,
            e.executor.store.params,
        ),
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_kernels_run_in_the_same_order_where_many_dispatches_are_decided_in_one_call():
    said, took, params = trained("by table")
    others, also, theirs = trained("one by one")
    assert said == others and took == also and len(said) > 30
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, params, theirs)))


def test_where_a_table_tells_costs_no_dispatch_has_a_call_of_its_own(monkeypatch):
    """The scheduler is asked for many at once; nobody needs a dispatch as an object."""
    e = engine(graphs.rnn(), check=False, max_active_keys=4)
    monkeypatch.setattr(e.scheduler, "next", None)
    monkeypatch.setattr(e.scheduler, "ahead", None)
    loop = DriverLoop(
        e.scheduler,
        None,
        e.sources(graphs.rnn_data([3, 1, 4, 1, 5])),
    )
    monkeypatch.setattr(loop.queue, "add", None)
    assert VirtualDriver(loop, FlopsCost(e.plan)).run() > 0
    assert e.scheduler.counts.read().dispatches > 10


@pytest.mark.parametrize("policy", [one_forward_one_backward, shortest_queue])
def test_a_policy_that_waits_does_so_in_virtual_time(policy):
    """Ours where a table tells costs; a user's, which must be asked, one dispatch at a time."""
    times = []
    for check in (False, True):  # with checks after every event there is no table
        e = engine(
            graphs.chain(3),
            spread(graphs.chain(3), 2),
            (0, 0),
            check=check,
            policy=policy,
            fuse=False,
        )
        e.executor = None
        loop = DriverLoop(
            e.scheduler,
            None,
            e.sources(graphs.chain_data(9)),
        )
        assert loop.advances is (policy is one_forward_one_backward and not check)
        times.append(
            (
                VirtualDriver(loop, FlopsCost(e.plan, other_ns=7)).run(),
                repr(e.scheduler.counts.read()),
            )
        )
    assert times[0] == times[1]
