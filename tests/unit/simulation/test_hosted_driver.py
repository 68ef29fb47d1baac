"""A host that is a serial resource, and cores that it shares with devices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import assert_empty, scheduler_for
from support.engines import Told

import ampjax as amp
from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.run import DriverLoop
from ampjax.errors import DeadlockError, SettingsError
from ampjax.ir.instances import InstanceList
from ampjax.plan.passes import Pass
from ampjax.simulation.cluster_cost import ClusterCost, LinkTimes
from ampjax.simulation.hosted_driver import HostedDriver
from ampjax.simulation.profile import Profile
from ampjax.simulation.profile_cost import HostedCost
from ampjax.simulation.shared_cores import Cores
from ampjax.trace.trace import Trace
from ampjax.train.assemble import plan_for
from ampjax.train.settings import settings_from

MANY = 100.0


def test_devices_and_host_work_at_once_where_there_are_cores():
    cores = Cores(2, MANY)
    cores.issue(0, 50)
    cores.issue(1, 30)
    cores.work(40)
    assert cores.now_ns == 40
    assert [cores.count_jobs(d) for d in (0, 1)] == [1, 0]
    cores.wait()
    assert cores.now_ns == 50 and not cores.busy


def test_who_shares_cores_takes_longer():
    """Three at work on two cores have two thirds of one each."""
    cores = Cores(2, 2)
    cores.issue(0, 20)
    cores.issue(1, 20)
    cores.work(20)
    assert cores.now_ns == pytest.approx(30)
    alone = Cores(1, 2)
    alone.issue(0, 20)
    alone.work(20)
    assert alone.now_ns == 20


def test_a_device_works_in_order():
    cores = Cores(1, MANY)
    for ns in (10, 20, 30):
        cores.issue(0, ns)
    ends = []
    while cores.busy:
        cores.wait()
        ends.append(cores.now_ns)
    assert ends == [10, 30, 60]


def test_a_job_waits_for_what_another_device_was_given_before():
    cores = Cores(2, MANY)
    cores.issue(0, 100)
    cores.issue(1, 10, after=0)
    cores.issue(0, 100)
    cores.wait()
    assert cores.now_ns == 100
    cores.wait()
    assert cores.now_ns == 110


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 50),
            st.integers(0, 50),
        ),
        max_size=30,
    ),
    st.sampled_from([1.0, 2.0, MANY]),
)
@settings(max_examples=60)
def test_no_work_is_lost_and_none_is_done_faster_than_the_cores_allow(jobs, n_cores):
    """Between the longest of host and devices and the sum of all over the cores, and never longer than one after the other."""
    cores = Cores(3, n_cores)
    work = [0, 0, 0, 0]
    for device, host_ns, device_ns in jobs:
        cores.work(host_ns)
        cores.issue(device, device_ns)
        work[3] += host_ns
        work[device] += device_ns
    while cores.busy:
        cores.wait()
    least = max(*work, sum(work) / n_cores)
    assert least - 1e-6 <= cores.now_ns <= sum(work) + 1e-6


def profile(host_ns, device_ns):
    """Every stage of a chain of two takes so long of host and device."""
    names = []
    for stage in ("f0", "f1+loss", "f0+f1+loss"):
        for way in ("forward", "backward"):
            names.append(f"{way} {stage}")
    names += ["forward f0→1", "backward f0→1", "forward feed x→0", "forward feed label→1"]
    total = {}
    for name in [*names, "update f0", "update f1"]:
        total[name] = {1: float(host_ns + device_ns)}
    issue = {name: {1: float(host_ns)} for name in total}
    kernels = {name: {1: float(device_ns)} for name in total}
    return Profile(
        total,
        kernels,
        issue,
        {name: {1: 0.0} for name in total},
    )


def simulated(host_ns, device_ns, workers, cores=MANY):
    return amp.simulate(
        graphs.chain(2),
        graphs.chain_data(40),
        cost=lambda plan: HostedCost(plan, profile(host_ns, device_ns), cores),
        workers=workers,
        max_dispatch_size=1,
        max_active_keys=8,
        min_update_interval=1 << 30,
    )


def test_a_slow_host_gains_nothing_from_a_second_device():
    one = simulated(100, 1, 1)
    two = simulated(100, 1, 2)
    assert one.seconds == pytest.approx(one.stats.dispatches * 100e-9, rel=0.02)
    assert two.seconds == pytest.approx(two.stats.dispatches * 100e-9, rel=0.02)


def test_a_fast_host_keeps_both_devices_busy_if_they_have_a_core_each():
    one = simulated(1, 1000, 1)
    two = simulated(1, 1000, 2)
    shared = simulated(1, 1000, 2, cores=1)
    assert one.seconds == pytest.approx(one.stats.dispatches * 1000e-9, rel=0.02)
    assert two.seconds < 0.8 * shared.seconds
    assert shared.seconds == pytest.approx(shared.stats.dispatches * 1001e-9, rel=0.02)


def on_hosts(
    link,
    host_ns=100,
    device_ns=1000,
    workers=2,
    cores=MANY,
):
    return amp.simulate(
        graphs.chain(2),
        graphs.chain_data(40),
        cost=lambda plan: ClusterCost(
            plan,
            profile(host_ns, device_ns),
            cores,
            link,
        ),
        workers=workers,
        max_dispatch_size=1,
        max_active_keys=8,
        min_update_interval=1 << 30,
    )


FREE = LinkTimes(0, 0, 0, 0)


def test_a_host_issues_and_computes_by_itself():
    """So a slow issue, which holds up all devices of one machine, is shared by the hosts."""
    here = simulated(1000, 1, 2)
    there = on_hosts(FREE, 1000, 1)
    assert there.seconds < 0.7 * here.seconds
    alone = on_hosts(FREE, 1000, 1, workers=1)
    assert alone.seconds == pytest.approx(alone.stats.dispatches * 1001e-9, rel=0.02)


def test_a_slow_driver_sets_the_pace_of_all_hosts():
    slow = on_hosts(LinkTimes(50_000, 0, 0, 0))
    assert slow.seconds == pytest.approx(slow.stats.dispatches * 50_000e-9, rel=0.05)


def test_rows_that_cross_take_time_at_both_ends():
    """A chain of two on two hosts: 40 instances cross forth and back, 3 floats each."""
    wide = on_hosts(LinkTimes(0, 0, 10_000, 1_000), cores=1)
    free = on_hosts(FREE, cores=1)
    kernels = 40 * 2 * (1000e-9)  # what copying would take in one process
    bytes_of_a_row = next(stage.crossing_bytes for stage in _plan().stages if stage.crossing_bytes)
    crossings = 40 * 2 * 2 * (10_000 + 1_000 * bytes_of_a_row) * 1e-9
    assert wide.seconds - free.seconds == pytest.approx(crossings - kernels, rel=0.02)


def _plan():
    settings = settings_from({"workers": 2})
    return plan_for(graphs.chain(2), settings, None, range(2))


@pytest.mark.parametrize(
    "wrong",
    [-1.0, float("nan"), float("inf")],
)
def test_times_of_a_link_that_are_none(wrong):
    with pytest.raises(
        SettingsError, match="LinkTimes: expected numbers of nanoseconds of at least 0"
    ):
        LinkTimes(byte_ns=wrong)


@pytest.mark.parametrize(
    "spaces",
    [(0,), (0, 1)],
)
def test_a_round_that_is_not_full_is_updated_at_the_end_of_the_data(spaces):
    s = scheduler_for(
        graphs.chain(2),
        {"f1": spaces[-1], "loss": spaces[-1]},
        spaces,
        True,
        flush_every=4,
        max_active_keys=4,
    )
    data = InstanceList(graphs.chain_data(10))
    issued = []
    loop = DriverLoop(
        s,
        None,
        [InstanceSource(s, Pass(data, np.arange(10)))],
        [Told(s, issued.append)],
    )
    HostedDriver(
        loop,
        HostedCost(s.plan, profile(1, 1), 2),
    ).run()
    assert sorted(change.node for dispatch in issued for change in dispatch.changes) == 3 * [
        "f0"
    ] + 3 * ["f1"]
    assert_empty(s)


def test_what_a_hosted_machine_can_not_do_is_told():
    with pytest.raises(SettingsError, match="simulate, `trace`: expected none with a `HostedCost`"):
        amp.simulate(
            graphs.chain(1),
            graphs.chain_data(1),
            cost=lambda plan: HostedCost(plan, profile(1, 1), 1),
            trace=Trace(),
        )
    with pytest.raises(DeadlockError):
        amp.simulate(
            graphs.chain(1),
            [{"x": 1.0}],
            cost=lambda plan: HostedCost(plan, profile(1, 1), 1),
        )
