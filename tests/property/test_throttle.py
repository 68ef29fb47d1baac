"""Law 5: never more than `max_active_keys` instances in flight, and no fewer than there is room for."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.laws import GRAPHS, Engine, random_one, replayed, schedules


@settings(max_examples=examples(300))
@given(
    GRAPHS,
    schedules(),
    st.sampled_from(["async", "pipeline", "sync"]),
    st.booleans(),
)
def test_never_more_in_flight_than_allowed(seed, schedule, mode, inference_too):
    schedule = replace(schedule, settings=replace(schedule.settings, mode=mode))
    case = random_one(seed)
    limit = 1 if mode == "sync" else schedule.settings.max_active_keys
    engine = Engine(case.graph, None, schedule)
    most = {True: 0, False: 0}

    def watch(dispatch):
        for train, count in engine.scheduler.admission.in_flight.items():
            assert count <= limit
            most[train] = max(most[train], count)

    engine.watchers.append(watch)
    with replayed("run_control", seed, schedule):
        engine.run(
            case.instances,
            also=[(case.instances, False)] if inference_too else [],
        )
        if any(d.stage is not None and d.direction != "infer" for d in engine.dispatches):
            assert (
                most[True]
                <= engine.scheduler.counts.read().most_in_flight
                <= limit * (1 + inference_too)
            )
        if len(case.data) >= limit and mode != "sync":
            assert engine.scheduler.counts.read().most_in_flight >= limit, (
                "the first instances are admitted together"
            )
