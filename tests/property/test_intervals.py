"""Law 4: no node updates with fewer gradient rows than its `min_update_interval`, except at a flush that was asked for."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.laws import (
    GRAPHS_THAT_SHARE,
    Engine,
    Schedule,
    frozen,
    gives_gradients,
    random_one,
    replayed,
    rows_at,
    schedules,
    updated,
)

import ampjax.graphs as ag
from ampjax.ir.state import INSTANCE
from ampjax.sched.decisions.parameter_changes import Update, updates_in


def check(seed, schedule):
    """Runs a case without payloads and checks every update; returns the engine."""
    case = random_one(seed)
    interval = schedule.settings.min_update_interval
    engine = Engine(case.graph, None, schedule)

    def watch(dispatch):
        for change in dispatch.changes:
            assert isinstance(change, Update) and change.count >= interval, change
        assert all(count < interval for count in engine.gradient_rows.values()), (
            "an update is overdue"
        )

    engine.watchers.append(watch)
    with replayed("test_intervals.check", seed, schedule):
        engine.run(case.instances)
        left = Counter(engine.gradient_rows)
        assert updated(engine) + left == +rows_at(engine)
    return engine


@settings(max_examples=examples(300))
@given(GRAPHS_THAT_SHARE, schedules(), st.integers(1, 30))
def test_no_update_comes_too_early_or_too_late(seed, schedule, interval):
    check(
        seed, replace(schedule, settings=replace(schedule.settings, min_update_interval=interval))
    )


@settings(max_examples=examples(100))
@given(GRAPHS_THAT_SHARE, schedules(), st.integers(1, 30))
def test_a_flush_takes_what_is_there(seed, schedule, interval):
    engine = check(
        seed, replace(schedule, settings=replace(schedule.settings, min_update_interval=interval))
    )
    held = {}
    for node, count in engine.gradient_rows.items():
        if count:
            held[node] = count
    engine.scheduler.rounds.flush()
    engine.watchers.clear()
    before = len(engine.dispatches)
    engine.run([])
    flushed = []
    for d in engine.dispatches[before:]:
        for change in d.changes:
            flushed.append(change)
    assert {change.node: change.count for change in flushed} == held
    assert set(engine.gradient_rows.values()) <= {0}


@pytest.mark.nightly
@settings(max_examples=examples(200))
@given(GRAPHS_THAT_SHARE, schedules(), st.sampled_from(["pipeline", "sync"]))
def test_the_controller_updates_between_rounds_only(seed, schedule, mode):
    """Figures 1a and 1b: nodes wait for the controller, which waits until the round's instances have all ended."""
    schedule = replace(
        schedule, settings=replace(schedule.settings, mode=mode, min_update_interval=1)
    )
    case = random_one(seed)
    engine = Engine(case.graph, None, schedule)
    every = schedule.settings.flush_every
    with replayed("run_control", seed, schedule):
        engine.run(case.instances)
        assert updated(engine) == +rows_at(engine)
        assert set(engine.gradient_rows.values()) <= {0}
        for node in case.graph.parameterised:
            made_of = filter(
                None, between_updates(engine, node)
            )  # rounds that bring a node no gradient update it, too
            rounds = [{i // every for i in instances} for instances in made_of]
            assert all(len(numbers) == 1 for numbers in rounds), (node, rounds)
            assert [*map(min, rounds)] == sorted({min(numbers) for numbers in rounds})


def between_updates(engine, node):
    """The instances whose gradients each update of a node is made of, in order."""
    parts = []
    now = set()
    for d in engine.dispatches:
        if gives_gradients(d) and node in d.stage.params:
            # a ragged message may have none
            if d.sizes is None:
                rows = np.ones(len(d.states), int)
            else:
                rows = d.sizes
            now |= set(d.states[rows > 0, INSTANCE].tolist())
        if any(update.node == node for change in d.changes for update in updates_in(change)):
            assert d.stage is None, "the controller's updates come by themselves"
            parts = [*parts, now]
            now = set()
    return parts


@pytest.mark.parametrize("mode", ["pipeline", "sync"])
def test_instances_that_reach_no_node_count_in_a_round(mode):
    with ag.Graph() as graph:
        x = ag.flatmap(
            ag.pump("x", fields=("n",)),
            lambda s: s.n,
            lambda s, i: s.replace(i=i),
        )
        ag.loss("loss", lambda x: x * x)(
            ag.ppt(
                "scale",
                lambda p, x: p * x,
                params=np.float32(1),
            )(x)
        )
    data = []
    for n in (0, 0, 2, 0, 1, 0):
        data.append(
            {
                "x": ag.messages(
                    np.ones(1),
                    n=n,
                )
            }
        )
    engine = Engine(
        graph,
        None,
        Schedule(frozen(mode=mode, max_active_keys=2, max_dispatch_size=1)),
    )
    engine.run(data)
    wanted = {
        "sync": [
            (0, 1),
            (0, 1),
            (2, 1),
            (0, 1),
            (1, 1),
            (0, 1),
        ],
        "pipeline": [(0, 2), (2, 2), (1, 2)],
    }
    assert [(update.count, update.examples) for update in engine.updates()] == wanted[mode]
