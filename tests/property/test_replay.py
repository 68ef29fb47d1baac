"""Law 7: whatever interleaving a run had, its recording gives it again: the same dispatches, and the same gradients bit for bit."""

import random
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.laws import (
    GRAPHS,
    Costs,
    Engine,
    Schedule,
    frozen,
    random_one,
    replayed,
    run_control,
    schedules,
    start,
)

from ampjax.errors import ReplayError
from ampjax.sched.decisions.policy import balanced
from ampjax.trace.journal import FINISHED, Journal
from ampjax.trace.recording import Recorder

costs = st.builds(
    Costs,
    st.integers(0, 99),
    st.sampled_from([1, 2, 100]),
)


class Moody:
    """A policy that nobody can foresee: any ready queue, or none, from a seed that is another in each object."""

    __name__ = "moody"

    def __init__(self):
        self.seed = random.random()

    def __call__(self, queues, now):
        return random.Random(f"{self.seed} {now} {queues}").choice([None, *queues])


def dispatches(engine):
    """Every dispatch in words, with the messages in it, in order."""
    return [f"{d!r} {d.states.tolist()} {d.in_rows} {d.out_rows}" for d in engine.dispatches]


def recorded(folder, seed, schedule, params=None):
    """A run of a case, and the same schedule with its recording in place of a clock."""
    case = random_one(seed)
    file = str(folder / "run.trace")
    engine = Engine(case.graph, params, schedule)
    recorder = Recorder(file, {})
    engine.journal = Journal(recorder.take, engine.scheduler.contents.messages_of)
    engine.run(case.instances)
    recorder.close(FINISHED)
    return engine, replace(schedule, recording=file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recordings")


@settings(max_examples=examples(40))
@given(
    GRAPHS,
    schedules(),
    costs,
    st.sampled_from([None, "max_staleness", "drop_staler_than"]),
    st.integers(0, 1),
)
def test_the_schedule_of_a_recording(folder, seed, schedule, costs, setting, limit):
    """Many workers in virtual time, whose dispatches end in any order: the clock is not needed again."""
    options = {"min_update_interval": 2, setting: limit}
    if setting is None:
        settings = schedule.settings
    else:
        settings = replace(schedule.settings, **options)
    engine, again = recorded(
        folder,
        seed,
        replace(schedule, settings=settings, costs=costs),
    )
    with replayed("run_control", seed, again):
        assert dispatches(run_control(seed, again)) == dispatches(engine)


@settings(max_examples=examples(8))
@given(
    st.integers(0, 1),
    schedules(sizes=(1,)),
    st.booleans(),
)
def test_a_schedule_that_can_not_be_had_twice(folder, seed, schedule, moody):
    """On the wall clock, with a policy that throws dice."""
    if moody:
        schedule = replace(
            schedule,
            settings=replace(schedule.settings, policy=Moody()),
        )
    engine, again = recorded(folder, seed, schedule, start(seed))
    repeated = Engine(
        random_one(seed).graph,
        start(seed),
        again,
    ).run(random_one(seed).instances)
    assert dispatches(repeated) == dispatches(engine)
    same = jax.tree.map(np.array_equal, repeated.gradients, engine.gradients)
    assert all(jax.tree.leaves(same)) and repeated.loss == engine.loss


SEVERAL = frozen(workers=2, max_active_keys=3, max_dispatch_size=2, affinity="paper")


def test_a_failure_on_the_clock_prints_the_line_that_replays_it():
    schedule = Schedule(replace(SEVERAL, policy=Moody()))
    with pytest.raises(AssertionError) as caught, replayed("run_control", 3, schedule):
        engine = run_control(3, schedule)
        raise AssertionError("found in a random test")
    (line,) = caught.value.__notes__
    file = re.search(r"'([^']*\.trace)'", line).group(1)
    assert line.startswith("replay: from support.laws import *; run_control(3, Schedule(frozen(")
    assert dispatches(run_control(3, Schedule(SEVERAL, recording=file))) == dispatches(engine)


def test_what_is_deterministic_needs_no_recording():
    with (
        pytest.raises(AssertionError) as caught,
        replayed("run_control", 3, Schedule(SEVERAL, costs=Costs(1))),
    ):
        run_control(3, Schedule(SEVERAL, costs=Costs(1)))
        raise AssertionError
    assert ".trace" not in caught.value.__notes__[0]


def test_another_case_departs(folder):
    _, again = recorded(
        folder,
        3,
        Schedule(SEVERAL, costs=Costs(1)),
    )
    with pytest.raises(ReplayError, match="Replay with the graph, data, optimizer"):
        run_control(4, again)


@pytest.mark.nightly
def test_a_recorded_choice_wins_over_the_policy(folder):
    engine, again = recorded(
        folder,
        3,
        Schedule(replace(SEVERAL, policy=Moody())),
    )
    again = replace(again, settings=replace(SEVERAL, policy=balanced))
    assert dispatches(run_control(3, again)) == dispatches(engine)
