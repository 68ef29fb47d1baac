"""Traces of runs on hosts whose clocks are not the driver's; hosts are threads here."""

import itertools
import threading
import time
import types

import numpy as np
import optax
import pytest
from support.hosted import fails_once, pipeline, trainer
from support.traces import assert_agree

import ampjax as amp
from ampjax.drivers.hosted_timer import _add
from ampjax.engine.timing.measured import MeasuredHost
from ampjax.errors import HostError
from ampjax.hosts import host as hosts
from ampjax.sched.decisions.parameter_changes import Merge, Update

N = 20
DATA = [{"x": np.float32(i)} for i in range(N)]


@pytest.fixture(scope="module")
def there():
    """`a` on one host, `b` and the loss on the other, one message a dispatch."""
    options = {
        "affinity": {"a": 0, "b": 1, "loss": 1},
        "fuse": False,
        "max_dispatch_size": 1,
    }
    made = trainer(
        pipeline(),
        optax.sgd(0.1),
        2,
        2,
        **options,
        min_update_interval=3,
        max_active_keys=4,
    )
    yield made
    made.close()


@pytest.fixture
def odd_clocks(monkeypatch):
    """Host 0's clock is three hours late and slow, host 1's an hour early and fast."""
    clocks = {"ampjax host 0": (-3, 0.999), "ampjax host 1": (1, 1.002)}

    def now_ns():
        hours, speed = clocks[threading.current_thread().name]
        return int(time.perf_counter_ns() * speed) + hours * 3_600_000_000_000

    monkeypatch.setattr(hosts, "now_ns", now_ns)


@pytest.mark.nightly
@pytest.mark.parametrize("every", [1, 8])
def test_one_event_a_dispatch_in_order_by_the_drivers_clock(there, odd_clocks, every, tmp_path):
    trace = amp.Trace(every=every)
    there.fit(
        DATA,
        epochs=2,
        progress=False,
        trace=trace,
        record=tmp_path / "recording",
    )
    assert_agree(trace, tmp_path / "recording", there.plan)
    assert {name: host.workers for name, host in trace.hosts.items()} == {
        "host0": (0,),
        "host1": (1,),
    }
    assert len(trace.runs) == 2
    assert any(w.reason == "rows" for w in trace.waits)
    trace.to_jsonl(tmp_path / "trace.jsonl")
    assert amp.Trace.from_jsonl(tmp_path / "trace.jsonl") == trace


def test_what_happens_on_two_hosts_is_in_the_order_of_cause_and_effect(there, odd_clocks):
    """An instance goes through `a` on one host, to the other, through `b` and the loss there, and back."""
    trace = amp.Trace(every=1)
    there.fit(DATA, epochs=1, progress=False, trace=trace)
    error = sum(host.error_ns for host in trace.hosts.values())
    assert error < 50_000_000, "or this test says nothing; the clocks are hours apart"
    for i in range(N):
        way = sorted(
            (s for s in trace if s.instances == (i,)),
            key=lambda s: (s.start_ns, s.end_ns),
        )
        kinds = []
        for s in way:
            kinds.append(
                (
                    s.node if s.kind != "transfer" else "",
                    s.kind,
                )
            )
        forth = [
            ("a", "forward"),
            ("", "transfer"),
            ("b", "forward"),
            ("loss", "forward"),
        ]
        assert kinds == [*forth, ("b", "backward"), ("", "transfer"), ("a", "backward")]
        assert all(
            after.start_ns >= before.end_ns - error for before, after in itertools.pairwise(way)
        )


def test_bytes_between_hosts_add_up_over_runs(there):
    once = amp.Trace()
    twice = amp.Trace()
    for trace in (once, twice, twice):
        there.fit(DATA, epochs=1, progress=False, trace=trace)
    names = "driver", "host0", "host1"
    assert set(once.traffic) == {(one, other) for one in names for other in names if one != other}
    between = [("host0", "host1"), ("host1", "host0")]
    for ends in between:  # a message for each instance, with a float in it
        assert once.traffic[ends] == twice.traffic[ends] / 2
        assert once.traffic[ends] % N == 0
        assert 4 < once.traffic[ends] / N < 100


def test_no_more_is_kept_than_asked_for(there):
    trace = amp.Trace(max_slices=6)
    there.fit(DATA, epochs=1, progress=False, trace=trace)
    assert 0 < len(trace) <= 6
    assert trace.n_dropped >= there.statistics.dispatches - 6


def test_a_run_that_fails_leaves_a_trace_without_times_and_the_next_is_traced(
    there, monkeypatch, tmp_path
):
    trace = amp.Trace()
    with monkeypatch.context() as patched:
        fails_once(patched, 1, 3)
        with pytest.raises(HostError, match="a body's own mistake"):
            there.fit(DATA, epochs=1, progress=False, trace=trace)
    assert not len(trace)
    assert trace.n_dropped > 0
    assert len(trace.runs) == 1
    assert not trace.hosts
    trace = amp.Trace()
    there.fit(
        DATA,
        epochs=1,
        progress=False,
        trace=trace,
        record=tmp_path / "recording",
    )
    assert_agree(trace, tmp_path / "recording", there.plan)


@pytest.mark.nightly
def test_workers_that_share_a_memory_space_wait_for_their_own_rows():
    """Workers 1 and 2 have nothing to do: no gradient comes back to the one, none goes forth from the other."""
    places = {
        "workers": 4,
        "affinity": {"a": 0, "b": 3, "loss": 3},
        "fuse": False,
    }
    there = trainer(
        pipeline(),
        optax.sgd(0.1),
        2,
        2,
        **places,
    )
    trace = amp.Trace()
    there.fit(DATA, epochs=1, progress=False, trace=trace)
    assert {wait.worker for wait in trace.waits if wait.reason == "rows"} == {0, 3}
    there.close()


@pytest.mark.parametrize("is_written_between", [True, False])
def test_rows_that_are_written_between_a_dispatchs_parameter_changes_overlap_none_of_these(
    is_written_between,
):
    """A host makes an update, waits for the rows of dispatch 1, and makes the group's mean: both changes are of dispatch 2."""
    layer, rows = (
        types.SimpleNamespace(
            name=name, number=number, kind=types.SimpleNamespace(is_transfer=number == 1)
        )
        for number, name in enumerate(["layer", "rows"])
    )
    changes = Update("layer", 4), Merge("group", ("layer", "other"))
    told = {
        1: (
            0,
            rows,
            "forward",
            np.array([5]),
            1,
            (),
        ),
        2: (0, layer, "backward", np.array([4]), 1, changes),
    }
    timed = [
        (
            2,
            0,
            1,
            100,
            120,
            1,
            100,
            1,
            20,
            10,
            0,
        ),
        (
            2,
            -1,
            1,
            150,
            150,
            1,
            150,
            1,
            0,
            30,
            0,
        ),
    ]
    at, place = (140, 1) if is_written_between else (190, 2)
    timed.insert(
        place,
        (
            1,
            1,
            0,
            at,
            at,
            1,
            at,
            1,
            5,
            0,
            0,
        ),
    )
    launches = np.array(timed, np.int64)
    waits = np.zeros((0, 3), np.int64)
    measured = MeasuredHost(
        "host",
        "here",
        (0,),
        0,
        0,
        launches,
        waits,
        500,
        0,
        {},
        0,
    )
    trace = amp.Trace()
    _add(told, [measured], 50, trace)
    found = []
    for s in trace:
        found.append((s.node, s.kind, s.start_ns, s.end_ns))
    if is_written_between:
        wanted = [
            ("rows", "transfer", 140, 145),
            ("layer", "update", 150, 180),
        ]
    else:
        wanted = [
            ("layer", "update", 120, 180),
            ("rows", "transfer", 190, 195),
        ]
    assert found == [("layer", "backward", 100, 120), *wanted]
