"""Staleness budgets: no gradient that goes into an update is staler than `max_staleness`, every gradient goes into one, and nothing ever waits for ever."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import admit, drain, scheduler_for, step
from support.effort import examples
from support.laws import (
    GRAPHS_THAT_SHARE,
    Engine,
    gives_gradients,
    random_one,
    replayed,
    rows_at,
    schedule_of,
    schedules,
    updated,
)

from ampjax.sched.decisions.dispatch import FORWARD
from ampjax.sched.decisions.parameter_changes import Average, Merge, ReplicaSync, Update, nodes_of
from ampjax.sched.decisions.policy import wavefront
from ampjax.sched.layout import columns as c


class Versions:
    """Counts staleness anew, from nothing but the order of dispatches and their parameter changes."""

    def __init__(self, graph):
        self.versions = dict.fromkeys(graph.parameterised, 0)
        self.seen = {}
        meet = set()
        for name, node in graph.parameterised.items():
            if node.options.replica_of:
                meet.add(name)
        self.meet = meet
        self.stalest = Counter()
        self.since = Counter()
        self.most_since = 0

    def __call__(self, d):
        if d.stage is not None:
            keys = []
            for state in d.states.tolist():
                keys.append((d.stage.number, *state))
            if d.direction == FORWARD and d.stage.outputs:
                self.seen |= {key: dict(self.versions) for key in keys}
            elif gives_gradients(d):
                for key in keys:
                    seen = self.seen.pop(key) if d.stage.outputs else self.versions
                    for node in d.stage.params:
                        self.stalest[node] = max(
                            self.stalest[node], self.versions[node] - seen[node]
                        )
        for change in d.changes:
            if isinstance(change, Update | Average | Merge):
                for node in nodes_of(change):
                    self.versions[node] += 1
                    self.since[node] = self.since[node] + 1 if isinstance(change, Update) else 0
                    self.most_since = max(
                        self.most_since,
                        self.since[node] * (node in self.meet),
                    )


def run(seed, schedule, budget):
    """Runs a case without payloads; returns the engine, and what has been counted anew."""
    schedule = replace(schedule, settings=replace(schedule.settings, max_staleness=budget))
    engine = Engine(random_one(seed).graph, None, schedule)
    counted = Versions(engine.graph)
    engine.watchers.append(counted)
    return engine.run(random_one(seed).instances), counted


@settings(max_examples=examples(300))
@given(
    GRAPHS_THAT_SHARE,
    schedules(),
    st.integers(1, 9),
    st.integers(0, 4),
)
def test_no_gradient_is_staler_than_its_budget(seed, schedule, interval, budget):
    """The laws that `check=True` finds anew after every event are kept too: what the counters of versions hold is among them."""
    schedule = replace(schedule, settings=replace(schedule.settings, min_update_interval=interval))
    with replayed("property.test_budgets.run", seed, schedule, budget):
        engine, counted = run(seed, schedule, budget)
        statistics = engine.scheduler.counts.read()
        assert max(counted.stalest.values(), default=0) == statistics.staleness_max <= budget
        assert all(update.count >= interval for update in engine.updates())
        assert all(count < interval for count in engine.gradient_rows.values()), (
            "an update is held back for ever"
        )
        assert updated(engine) + Counter(engine.gradient_rows) == +rows_at(engine)


@pytest.mark.nightly
@settings(max_examples=examples(60))
@given(GRAPHS_THAT_SHARE, schedules(min_update_interval=2), st.data())
def test_nodes_have_budgets_of_their_own(seed, schedule, data):
    names = list(random_one(seed).graph.parameterised)
    budgets = data.draw(
        st.dictionaries(
            st.sampled_from(names),
            st.integers(0, 2),
        )
        if names
        else st.just({})
    )
    with replayed("property.test_budgets.run", seed, schedule, budgets):
        engine, counted = run(seed, schedule, budgets)
        nodes = engine.scheduler.counts.read().nodes
        for name in names:
            assert counted.stalest[name] == nodes[name].staleness_max
            assert name not in budgets or counted.stalest[name] <= budgets[name]
            assert name in budgets or nodes[name].held_updates == 0


@pytest.mark.nightly
@settings(max_examples=examples(100))
@given(GRAPHS_THAT_SHARE, schedules(min_update_interval=3))
def test_a_budget_that_nothing_exceeds_changes_nothing(seed, schedule):
    with replayed("property.test_budgets.run", seed, schedule, None):
        free, _ = run(seed, schedule, None)
        most = free.scheduler.counts.read().staleness_max
        bounded, _ = run(seed, schedule, most)
        assert schedule_of(bounded) == schedule_of(free)
        assert repr(bounded.scheduler.counts.read()) == repr(free.scheduler.counts.read())


@pytest.mark.nightly
@settings(max_examples=examples(60))
@given(
    GRAPHS_THAT_SHARE,
    schedules(),
    st.sampled_from(["pipeline", "sync"]),
    st.integers(0, 2),
)
def test_where_the_controller_updates_budgets_change_nothing(seed, schedule, mode, budget):
    schedule = replace(
        schedule, settings=replace(schedule.settings, mode=mode, min_update_interval=1)
    )
    with replayed("property.test_budgets.run", seed, schedule, budget):
        assert schedule_of(run(seed, schedule, budget)[0]) == schedule_of(
            run(seed, schedule, None)[0]
        )


@pytest.mark.nightly
@settings(max_examples=examples(90))
@given(
    schedules(min_update_interval=1),
    st.sampled_from(["every_k", "message"]),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_replicas_meet_within_their_budgets(schedule, rule, every, budget):
    """A meeting makes new versions, so it is put off while it would make gradients too stale; but it comes."""
    options = {"max_staleness": budget, "replica_sync": (rule, every)}
    schedule = replace(schedule, settings=replace(schedule.settings, **options))
    engine = Engine(graphs.replicated_chain(), None, schedule)
    counted = Versions(engine.graph)
    engine.watchers.append(counted)
    engine.run(graphs.chain_data(40))
    nodes = engine.scheduler.counts.read().nodes
    assert (
        max(counted.stalest.values())
        == max(node.staleness_max for node in nodes.values())
        <= budget
    )
    assert counted.versions == engine.scheduler.updates.versions
    # After `every` updates of one it is due, or begins: the others' next updates follow, and what is in flight by then ends.
    assert counted.most_since <= every + 3 + 2 * schedule.settings.max_active_keys


# What the scheduler does

IN_STEP = {
    "intervals": {"f0": 1},
    "budgets": {"f0": 0},
    "policy": wavefront,
    "max_dispatch_size": 1,
    "max_active_keys": 3,
}
"""One message in a dispatch, all of them forth before the first comes back."""


def test_an_update_is_held_until_what_saw_the_oldest_version_has_answered():
    """One message at a time, forward first: with budget 0 all gradients of version 0 go into one update."""
    s = scheduler_for(graphs.chain(1), **IN_STEP)
    admit(s, graphs.chain_data(3))
    done = drain(s)
    assert [change for d in done for change in d.changes] == [Update("f0", 3, 0.0)]
    node = s.counts.read().nodes["f0"]
    assert node.updates == 1
    assert node.held_updates == 1
    assert node.staleness_max == 0
    first, last = [k for k, d in enumerate(done) if d.direction == "backward"][::2]
    assert node.held_for == last - first
    assert f"1 held back, {last - first} dispatches in all" in repr(s.counts.read())


def test_no_training_instance_is_admitted_while_an_update_is_held():
    s = scheduler_for(graphs.chain(1), **IN_STEP)
    admit(s, graphs.chain_data(3))
    rooms = []
    while (d := step(s)) is not None:
        s.admission.take_ended()
        rooms.append(
            (
                d.direction,
                s.admission.room(),
                s.admission.room(train=False),
            )
        )
    back = [rooms for direction, *rooms in rooms if direction == "backward"]
    assert back == [[0, 3], [0, 3], [3, 3]], (
        "one instance ended after another, and nobody could enter before the update"
    )
    assert s.counts.read().closed_for >= 2
    assert "no instance admitted during" in repr(s.counts.read())


def test_what_is_abandoned_makes_the_updates_that_were_held():
    s = scheduler_for(graphs.chain(1), **IN_STEP)
    admit(s, graphs.chain_data(3))
    while not s.counts.read().nodes["f0"].held_updates:
        step(s)
    due = []
    for d in s.abandon():
        for change in d.changes:
            due.append(change)
    assert due == [Update("f0", 1, 0.0)]
    assert s.updates.counts == {"f0": 0}
    assert not s.tables.t.nodes[:, c.AWAITED :].any()
    assert s.admission.room() == 3
    admit(s, graphs.chain_data(2))
    assert [change for d in drain(s) for change in d.changes] == [Update("f0", 2, 0.0)]


def test_messages_that_are_inferred_are_not_waited_for():
    s = scheduler_for(
        graphs.chain(1),
        intervals={"f0": 1},
        budgets={"f0": 0},
        max_dispatch_size=1,
    )
    admit(s, graphs.chain_data(2), purpose="both")
    drain(s)
    assert not s.tables.t.nodes[:, c.AWAITED :].any()
    admit(s, graphs.chain_data(1))
    assert [change for d in drain(s) for change in d.changes] == [Update("f0", 1, 0.0)]


def test_a_meeting_that_was_put_off_comes_when_nothing_is_in_flight():
    """Two replicas with budget 0 and one message each in flight: neither can update while the other one's is under way, nor meet."""
    graph = graphs.replicated_chain()
    copies = [name for name in graph.parameterised if name != "after"]
    budgets = dict.fromkeys(copies, 0)
    options = {
        "intervals": dict.fromkeys(graph.parameterised, 1),
        "sync": ReplicaSync("every_k", 1),
    }
    s = scheduler_for(
        graph,
        budgets=budgets,
        max_dispatch_size=1,
        max_active_keys=3,
        **options,
    )
    admit(s, graphs.chain_data(3))
    changes = []
    for d in drain(s):
        for change in d.changes:
            changes.append(change)
    assert [type(change).__name__ for change in changes if "after" not in str(change)][
        -1
    ] == "Average"
    assert s.updates.versions[copies[0]] == 1 + sum(
        isinstance(change, Average) for change in changes
    )
