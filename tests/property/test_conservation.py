"""Law 1: every message that a node emits is answered by exactly one backward message of the same state, and nothing is left."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY, examples
from support.laws import (
    GRAPHS,
    SIZES,
    Engine,
    assert_empty,
    assert_gradients,
    cases,
    random_one,
    replayed,
    schedules,
    start,
    wanted,
)

from ampjax.ir.state import HANDLE
from ampjax.plan.stage_kinds import LOSS, SINK
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD, INFER

ANSWERS_AT_ONCE = (LOSS, SINK)
"""Stages without outputs: what arrives there is answered in the dispatch that takes it."""

control = st.tuples(GRAPHS, schedules())
"""Control alone has no kernels, so any graph will do."""


def messages(engine, direction):
    """How often each message, `(stage, its state)`, was dispatched in a direction."""
    count = Counter()
    for d in engine.dispatches:
        if d.direction == direction:
            assert len(d.states) == d.n_messages
            states = d.states.copy()
            states[:, HANDLE] = 0  # handles are used again; the instance's number is not
            count.update((d.stage.name, d.stage.kind, *map(int, state)) for state in states)
    return count


def without(count, kinds):
    result = {}
    for key, n in count.items():
        if key[1] not in kinds:
            result[key] = n
    return result


def assert_conserved(engine):
    forward = messages(engine, FORWARD)
    backward = messages(engine, BACKWARD)
    assert set(forward.values()) <= {1}, "two messages of one state at one node"
    assert without(forward, ANSWERS_AT_ONCE) == backward
    for name, stats in engine.scheduler.counts.read().stages.items():
        kind = next(stage.kind for stage in engine.plan.stages if stage.name == name)
        assert stats.backward == (0 if kind in ANSWERS_AT_ONCE else stats.forward), name
    assert_empty(engine)


@settings(max_examples=examples(300))
@given(control)
def test_each_message_is_answered_once(case):
    seed, schedule = case
    with replayed("run_control", seed, schedule):
        assert_conserved(
            Engine(random_one(seed).graph, None, schedule).run(random_one(seed).instances)
        )


@pytest.mark.nightly
@settings(max_examples=examples(150))
@given(control)
def test_inference_takes_the_same_messages_as_training_and_keeps_none(case):
    seed, schedule = case
    graph = random_one(seed).graph
    data = random_one(seed).instances
    with replayed("run_control", seed, schedule):
        training = Engine(graph, None, schedule).run(data)
        inference = Engine(graph, None, schedule).run(data, train=False)
        assert without(messages(training, FORWARD), [SINK]) == without(
            messages(inference, INFER), [SINK]
        )
        assert not messages(inference, FORWARD) and not messages(inference, BACKWARD)
        assert_empty(inference)


@pytest.mark.nightly
@settings(max_examples=examples(60))
@given(cases(6 if NIGHTLY else 3, sizes=SIZES))
def test_training_and_inference_in_flight_together(case):
    """Inference in the middle of it changes no gradient, and finds the same loss."""
    seed, schedule = case
    case = random_one(seed)
    want = wanted(seed)
    with replayed("assert_together", seed, schedule):
        engine = Engine(case.graph, start(seed), schedule)
        engine.run(case.instances, also=[(case.instances, False)])
        assert_conserved(engine)
        inferred = sum(sums.loss for sums in engine.executor.losses.take(False))
        assert abs(inferred - want.loss) <= 1e-5 * (abs(want.loss) or 1)
        assert_gradients(engine, want)
