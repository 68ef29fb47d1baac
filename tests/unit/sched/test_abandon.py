"""After an interrupt or an error: everything is given back, what nodes have counted stays, what was never carried out is taken back; the next run is like a first one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import plan_for
from support.models import model
from support.schedules import Scheduled, admit, at_once, first_difference

from ampjax.ir.instances import InstanceList
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.inflight import MessagesInFlight
from ampjax.sched.diagnose.invariants import check
from ampjax.sched.diagnose.story import story
from ampjax.sched.updates.counters import gradient_rows


def side_of(name, interval=9, **options):
    """A scheduler over a model's data."""
    graph, data = model(name)
    plan = make_plan(graph, assign(graph, 1))
    intervals = dict.fromkeys(graph.parameterised, interval)
    options = {"max_active_keys": 4, "max_dispatch_size": 5, **options}
    chosen = SchedulerSettings(intervals=intervals, **options)
    return Scheduled(plan, chosen, data)


def steps(side, n, left, done=None):
    """Up to `n` dispatches, of which the first `done` (all if it is None) are done; gives them."""
    found = []
    for k in range(n):
        left, _ = admit(side, left)
        d = side.scheduler.next(0)
        if d is None:
            break
        found.append(d)
        if done is None or k < done:
            side.scheduler.done(d)
    return found


def rest(side, n):
    return list(at_once(side, n))


@pytest.mark.parametrize(
    "name", ["sequences", "trees", "questions, edge by edge", "tagger", "pondering", "experts"]
)
@pytest.mark.parametrize(
    ("n", "done"),
    [(5, None), (30, 24), (71, None)],
)
def test_what_follows_is_as_before(name, n, done):
    """The pass that follows is decided as by another scheduler that has counted the same."""
    side = side_of(name)
    other = side_of(name)
    k = min(5, len(model(name)[1]))
    found = steps(side, n, np.arange(k), done)
    due = side.scheduler.abandon()
    assert found
    assert due == []
    assert side.scheduler.idle
    assert side.scheduler.admission.room() == 4
    check(side.scheduler.snapshot())
    other.scheduler.updates.resume(side.scheduler.updates.state())
    assert first_difference(*([told[1:] for told in rest(one, k)] for one in (side, other))) is None
    assert side.scheduler.updates.state() == other.scheduler.updates.state()


def test_nothing_is_left():
    """All slots, ranges and places are free: the tables of a pass are long enough for all that follow."""
    side = side_of("tagger")
    s = side.scheduler
    for _ in range(2):
        rest(side, 5)
    sizes = [table.shape for table in s.tables.t]
    for n in (40, 150):
        steps(side, n, np.arange(5), n - 2)
        assert s.tables.slots_in_use and not s.idle
        s.abandon()
        check(s.snapshot())
        assert (
            not len(MessagesInFlight(s.snapshot()).handles)
            and s.tables.slots_in_use == 0
            and s.admission.take_ended() == []
        )
        rest(side, 5)
        assert s.tables.slots_in_use == 0
        assert [table.shape for table in s.tables.t] == sizes
        check(s.snapshot())


def test_stories_can_still_be_told():
    """Of what was in flight, after it has been forgotten: an error tells them."""
    side = side_of("trees")
    steps(side, 12, np.arange(5))
    before = story(side.scheduler.snapshot(), 0, {})
    side.scheduler.abandon()
    assert story(side.scheduler.snapshot(), 0, {}) == before != []


def test_updates_that_were_due_are_handed_over():
    chosen = SchedulerSettings(intervals={"f0": 10, "f1": 10})
    one = Scheduled(
        plan_for(graphs.chain(2)),
        chosen,
        InstanceList(graphs.chain_data(3)),
    )
    steps(one, 99, np.arange(3))
    one.scheduler.rounds.flush()
    (due,) = one.scheduler.abandon()
    assert [(change.node, change.count) for change in due.changes] == [("f0", 3), ("f1", 3)]
    assert one.scheduler.abandon() == [] and one.scheduler.idle


@settings(max_examples=12)
@given(
    name=st.sampled_from(["sequences", "trees", "questions, edge by edge"]),
    n=st.integers(1, 60),
    undone=st.integers(0, 20),
    interval=st.integers(1, 12),
)
def test_what_was_never_carried_out_is_taken_back(name, n, undone, interval):
    """Nodes hold what the others have brought, less what these have used; versions stay."""
    side = side_of(name, interval)
    s = side.scheduler
    brought = Counter()
    used = Counter()
    found = steps(side, n, np.arange(5))
    done = found[: max(0, len(found) - undone)]
    for d in done:
        brought.update(gradient_rows(s.plan.stages[d.stage], d))
        used.update({change.node: change.count for change in d.changes})
    before = s.updates.versions
    assert s.abandon() == []
    s.updates.take_back(found[len(done) :])
    assert +Counter(s.updates.counts) == brought - used
    assert s.updates.versions == before


def test_a_dispatch_of_changes_is_taken_back():
    side = side_of("sequences", 1000)
    s = side.scheduler
    steps(side, 999, np.arange(5))
    before = s.updates.counts.copy()
    s.rounds.flush()
    d = s.next(0)
    s.done(d)
    assert not any(s.updates.counts.values()) and d.changes
    s.updates.take_back([d])
    assert s.updates.counts == before


def test_another_goes_on():
    """With what one has counted, as a checkpoint keeps it: the same updates follow."""
    one = side_of("trees", 13)
    other = side_of("trees", 13)
    rest(one, 3)
    state = one.scheduler.updates.state()
    other.scheduler.updates.resume(state)
    assert (
        other.scheduler.updates.state() == state
        and any(state["counts"].values())
        and any(state["versions"].values())
    )
    assert [told[6] for told in rest(one, 5)] == [told[6] for told in rest(other, 5)]
    assert one.scheduler.updates.versions == other.scheduler.updates.versions
