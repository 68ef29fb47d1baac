"""Estimated weights: a backward dispatch is told how many versions ago its messages went forth, in the mean, under every schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.effort import examples
from support.laws import GRAPHS_THAT_SHARE, Engine, random_one, replayed, schedules

from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD
from ampjax.sched.decisions.parameter_changes import Average, Merge, Update, nodes_of


class Ages:
    """Compares what dispatches are told with versions that are counted anew, from the order of dispatches and their parameter changes."""

    def __init__(self, graph):
        self.versions = dict.fromkeys(graph.parameterised, 0)
        self.seen = {}
        self.told = []

    def __call__(self, d):
        if d.stage is None:
            keys = []
        else:
            keys = []
            for state in d.states.tolist():
                keys.append((d.stage.number, *state))
        if keys and d.direction == FORWARD and d.stage.outputs:
            self.seen |= {key: dict(self.versions) for key in keys}
        elif keys and d.direction == BACKWARD:
            seen = [self.seen.pop(key) for key in keys]
            ages = []
            for node in d.stage.params:
                ages.append(np.mean([self.versions[node] - one[node] for one in seen]))
            assert (d.staleness or (0.0,) * len(ages)) == pytest.approx(ages)
            self.told += ages
        else:
            assert d.staleness is None
        for change in d.changes:
            if isinstance(change, Update | Average | Merge):
                for node in nodes_of(change):
                    self.versions[node] += 1


def run(seed, schedule):
    """A case whose nodes all estimate their weights, without payloads."""
    engine = Engine(random_one(seed).graph, None, schedule)
    ages = Ages(engine.graph)
    engine.watchers.append(ages)
    engine.run(random_one(seed).instances)
    return engine, ages


@settings(max_examples=examples(150))
@given(
    GRAPHS_THAT_SHARE,
    schedules(weights="estimated"),
    st.integers(1, 5),
    st.sampled_from(["async", "pipeline"]),
)
def test_dispatches_know_how_stale_their_messages_are(seed, schedule, interval, mode):
    schedule = replace(
        schedule, settings=replace(schedule.settings, min_update_interval=interval, mode=mode)
    )
    with replayed("property.test_estimated_weights.run", seed, schedule):
        engine, ages = run(seed, schedule)
        assert max(ages.told, default=0) <= engine.scheduler.counts.read().staleness_max


@settings(max_examples=examples(30))
@given(
    schedules(weights="estimated", min_update_interval=1),
    st.sampled_from(["every_k", "message"]),
    st.integers(1, 3),
)
def test_meetings_of_replicas_count_as_versions(schedule, rule, every):
    schedule = replace(
        schedule,
        settings=replace(schedule.settings, replica_sync=(rule, every)),
    )
    engine = Engine(graphs.replicated_chain(), None, schedule)
    engine.watchers.append(Ages(engine.graph))
    engine.run(graphs.chain_data(30))
