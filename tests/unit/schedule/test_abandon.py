"""After an interrupt or an error: everything is given back, what nodes have counted stays, what was never carried out is taken back; the next run is like a first one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import plan_for
from support.models import model
from support.schedules import Integers, Routing, admit, at_once, first_difference
from support.words import numbers

from ampjax.ir.instances import InstanceList
from ampjax.sched.affinity import assign
from ampjax.sched.plan import make_plan
from ampjax.sched.settings import SchedulerSettings
from ampjax.schedule.diagnose.inflight import InFlight
from ampjax.schedule.diagnose.invariants import check
from ampjax.schedule.diagnose.story import story


def sides_of(name, interval=9, **options):
    """Both schedulers over a model's data."""
    graph, data = model(name)
    plan = make_plan(graph, assign(graph, 1))
    intervals = dict.fromkeys(graph.parameterised, interval)
    options = {"max_active_keys": 4, "max_dispatch_size": 5, **options}
    chosen = SchedulerSettings(intervals=intervals, **options)
    return [side(plan, chosen, data) for side in (Routing, Integers)]


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


def changes(dispatches):
    return [[str(change) for change in d.changes] for d in dispatches]


def rest(side, n):
    return list(at_once(side, n))


@pytest.mark.parametrize("name", ["sequences", "trees", "questions, edge by edge", "tagger", "pondering", "experts"])
@pytest.mark.parametrize(("n", "done"), [(5, None), (30, 24), (71, None)])
def test_what_follows_is_as_before(name, n, done):
    """Both forget what is in flight at the same place; the pass that follows is decided in the same way, with the same counts."""
    told, k = [], min(5, len(model(name)[1]))
    for side in sides_of(name):
        found = steps(side, n, np.arange(k), done)
        due = side.scheduler.abandon()
        assert due == [] and side.scheduler.idle and side.scheduler.room() == 4
        if isinstance(side, Integers):
            check(side.scheduler.snapshot())
        after = rest(side, k)
        told.append([len(found), *after, numbers(side.scheduler.stats)[2:], side.scheduler.updates.state()["counts"]])
    assert first_difference(*told) is None


def test_nothing_is_left():
    """All slots, ranges and places are free: the tables of a pass are long enough for all that follow."""
    _, side = sides_of("tagger")
    s = side.scheduler
    for _ in range(2):
        rest(side, 5)
    sizes = [table.shape for table in s._t]
    for n in (40, 150):
        steps(side, n, np.arange(5), n - 2)
        assert s.slots_in_use and not s.idle
        s.abandon()
        check(s.snapshot())
        assert not len(InFlight(s.snapshot()).slots) and s.slots_in_use == 0 and s.finished == []
        rest(side, 5)
        assert s.slots_in_use == 0 and [table.shape for table in s._t] == sizes
        check(s.snapshot())


def test_stories_can_still_be_told():
    """Of what was in flight, after it has been forgotten: an error tells them."""
    one, other = sides_of("trees")
    for side in (one, other):
        steps(side, 12, np.arange(5))
        side.scheduler.abandon()
    assert story(other.scheduler.snapshot(), 0, {}) == one.scheduler.story(0) != []


def test_updates_that_were_due_are_handed_over():
    told = []
    for side in (Routing, Integers):
        chosen = SchedulerSettings(intervals={"f0": 10, "f1": 10})
        one = side(plan_for(graphs.chain(2)), chosen, InstanceList(graphs.chain_data(3)))
        steps(one, 99, np.arange(3))
        one.scheduler.flush()
        told.append(changes(one.scheduler.abandon()))
        assert one.scheduler.abandon() == [] and one.scheduler.idle
    assert told[0] == told[1] and len(told[0][0]) == 2


@settings(max_examples=12)
@given(
    name=st.sampled_from(["sequences", "trees", "questions, edge by edge"]),
    n=st.integers(1, 60),
    undone=st.integers(0, 20),
    interval=st.integers(1, 12),
)
def test_what_was_never_carried_out_is_taken_back(name, n, undone, interval):
    """The counts of nodes are those of what has been carried out; versions stay."""
    states = []
    for side in sides_of(name, interval):
        found = steps(side, n, np.arange(5))
        due = side.scheduler.abandon()
        take_back = getattr(side.scheduler, "take_back", None) or side.scheduler.updates.take_back
        take_back([*found[max(0, len(found) - undone) :], *due])
        states.append(side.scheduler.updates.state())
    assert states[0] == states[1]


def test_a_dispatch_of_changes_is_taken_back():
    told = []
    for side in sides_of("sequences", 1000):
        steps(side, 999, np.arange(5))
        before = side.scheduler.updates.counts.copy()
        side.scheduler.flush()
        d = side.scheduler.next(0)
        side.scheduler.done(d)
        assert not any(side.scheduler.updates.counts.values()) and d.changes
        getattr(side.scheduler, "take_back", side.scheduler.updates.take_back)([d])
        assert side.scheduler.updates.counts == before
        told.append(before)
    assert told[0] == told[1]


def test_another_goes_on():
    """With what one has counted, as a checkpoint keeps it: the same updates follow."""
    one, other = sides_of("trees", 13)[1], sides_of("trees", 13)[1]
    rest(one, 3)
    state = one.scheduler.updates.state()
    other.scheduler.updates.resume(state)
    assert (
        other.scheduler.updates.state() == state and any(state["counts"].values()) and any(state["versions"].values())
    )
    assert [told[6] for told in rest(one, 5)] == [told[6] for told in rest(other, 5)]
    assert one.scheduler.versions == other.scheduler.versions
