"""Which calls of a run are measured."""

import asyncio
import itertools

import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import rnn, rnn_data

import ampjax as amp
from ampjax.engine.timing.compilation_count import compilations
from ampjax.ir.instances import InstanceList
from ampjax.plan.ladders import narrow_ladder
from ampjax.sched.decisions.packs import MOST_COALESCED
from ampjax.sched.scheduler import Scheduler
from ampjax.simulation.calls import APART, Calls, few_sizes
from ampjax.simulation.measuring import (
    calls_of,
    driver_ns,
    host_ns,
    loop_over,
    rehearse,
    training_times,
)

sizes = st.sets(st.integers(1, 1000), min_size=1)


@given(sizes)
def test_few_sizes_are_far_apart_and_hold_the_least_and_the_largest(seen):
    found = sorted(few_sizes([("a", n, False) for n in seen])["a"])
    assert set(found) <= seen
    assert {min(seen), max(seen)} <= set(found)
    assert len(found) <= 2 or all(
        small * APART <= large for small, large in itertools.pairwise(found)
    )
    inner = []
    for n in seen:
        if found[0] * APART <= n and n * APART <= found[-1]:
            inner.append(n)
    assert not inner or all(any(c < APART * n and n < APART * c for c in found) for n in inner)


def test_calls_are_made_a_few_times_each():
    calls = Calls(most=2, sizes={"a": {4}})
    asked = [
        ("a", 4, False),
        ("a", 4, False),
        ("a", 4, False),
        ("a", 4, True),
        ("a", 1, False),
        ("b", 4, False),
    ]
    assert [calls.want(*call) for call in asked] == [True, True, False, True, False, False]
    assert calls.seen["a", 4, False] == 3
    assert calls.seen["b", 4, False] == 1
    assert all(Calls().want(*call) for call in asked)


def test_what_is_called_before_each_call_can_end_the_run():
    def end():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        Calls(check=end).want("a", 1, False)


@pytest.fixture(scope="module")
def run():
    """A recurrent network whose sequences differ in length, so that dispatches have many sizes."""
    settings = {
        "max_active_keys": 100,
        "max_dispatch_size": 100,
        "min_update_interval": 8,
        "policy": "largest",
    }
    trainer = amp.Trainer(rnn(), optax.sgd(0.1), **settings)
    data = InstanceList(rnn_data([1 + n % 9 for n in range(100)]))
    return (
        Scheduler(trainer.plan, trainer.session.scheduler.settings),
        trainer.session.executor,
        data,
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_nothing_is_compiled_but_what_is_measured(run):
    scheduler, executor, data = run
    seen = calls_of(scheduler, executor, data).seen  # updates are made, and compiled
    before = compilations()
    assert calls_of(scheduler, executor, data).seen == seen and compilations() == before
    few = few_sizes(seen)
    assert sum(map(len, few.values())) < len({(key, size) for key, size, _ in seen})
    tables = next(training_times(scheduler, executor, data, most=2, sizes=few))
    for table in tables:
        for key, of_key in table.get("kernels", {}).items():
            if not key.startswith("update"):
                assert {narrow_ladder(rows) for rows in of_key} <= few[key]
                assert sum(map(len, of_key.values())) <= 2 * len(few[key]) * (1 + MOST_COALESCED)
    assert {
        key for table in tables for key in table.get("issue", {}) if not key.startswith("update")
    } == set(few)
    compiled = compilations()
    rehearse(scheduler, executor, data, 0, lambda: None)
    assert compilations() > compiled, "a rehearsal compiles all sizes"
    compiled = compilations()
    rehearse(scheduler, executor, data, 0, lambda: None)
    assert compilations() == compiled


@pytest.mark.nightly
@pytest.mark.slow
def test_a_drivers_thread_does_more_than_calls_and_decisions(run):
    """Nanoseconds of processor time, so what is sure is only that there are some."""
    scheduler, executor, data = run
    loop = loop_over(scheduler, executor, data)
    assert asyncio.run(driver_ns(loop, 64)) > 0 and loop.is_finished()
    measured = {
        "issue": {"forward a": {1: [30.0, 50.0]}},
        "control": {"forward a": {1: [5.0, 15.0]}},
    }
    assert host_ns(measured) == 50.0 and host_ns({}) == 0.0
