"""Programs that come and go: who shares one, what is kept, what is given up, and what lines of tables are given back."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs
from support.control import plan_for
from support.models import model
from support.schedules import Scheduled, at_once

import ampjax.graphs as ag
from ampjax.errors import InvariantError
from ampjax.ir.instances import InstanceList, messages
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout.extents import Extents
from ampjax.sched.scheduler import Scheduler


def planned(name):
    graph, data = model(name)
    return make_plan(graph, assign(graph, 1)), data


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 9)),
        max_size=40,
    )
)
def test_extents_never_overlap_and_are_used_again(events):
    extents = Extents()
    held = {}
    most = 0
    for k, (takes, n) in enumerate(events):
        if takes or not held:
            start = extents.take(n)
            held[k] = range(start, start + n)
        else:
            own = held.pop([*held][n % len(held)])
            extents.give(own.start, len(own))
        lines = [line for own in held.values() for line in own]
        most = max(most, len(lines))
        assert len(set(lines)) == len(lines)
        assert all(line < extents.top for line in lines)
    for own in held.values():
        extents.give(own.start, len(own))
    assert extents.top == 0 and extents.take(7) == 0


@pytest.mark.parametrize("name", ["trees", "molecules", "tagger"])
def test_later_epochs_unfold_nothing(name):
    plan, data = planned(name)
    one = Scheduled(plan, SchedulerSettings(max_active_keys=3), data, wave=0)
    list(at_once(one, len(data)))
    first = one.scheduler.admission.programs.statistics
    list(at_once(one, len(data)))
    second = one.scheduler.admission.programs.statistics
    assert 0 < first.unfolded == first.programs <= len(data)
    assert second.unfolded == first.unfolded
    assert second.hits == first.hits + len(data)
    assert second.nbytes == first.nbytes > 0 and second.dropped == 0


def test_instances_for_which_the_same_is_pumped_share_a_program():
    """A program does not hold the instance's number, nor does anything else of it in flight get mixed up."""
    graph = graphs.chain(2)
    data = InstanceList(graphs.chain_data(9))
    settings = SchedulerSettings(max_active_keys=4, max_dispatch_size=3)
    plan = plan_for(graph)
    one = Scheduled(plan, settings, data, wave=0)
    told = list(at_once(one, 9))
    assert sorted(i for *_, states, _, _ in told for (i,) in states) == sorted(5 * [*range(9)])
    assert one.scheduler.admission.programs.statistics.unfolded == 1


READS = {
    "field": lambda s: s.instance % 2,
    "array": lambda s: s.array[:, 0] % 2,
    "a state made of it": lambda s: s.replace(t=s.t).instance % 2,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_state_function_may_read_the_instances_number(read):
    """Then programs are not shared between instances, however it gets there."""
    with ag.Graph() as graph:
        x = ag.pump("x", fields=("t",))
        label = ag.pump("label", fields=("t",))
        ends = []
        for k, way in enumerate(
            ag.cond(
                x,
                lambda s: read(s) == 0,
            )
        ):
            ends.append(ag.npt(f"n{k}", jnp.negative)(way))
        ag.loss("loss", graphs.square)(
            ag.phi("back", *ends),
            label,
        )
    data = InstanceList(
        [{name: messages([0.5], t=[0]) for name in ("x", "label")} for _ in range(5)]
    )
    plan = plan_for(graph)
    settings = SchedulerSettings(max_active_keys=2)
    for wave in (0, 5):
        one = Scheduled(plan, settings, data, wave=wave)
        told = list(at_once(one, 5))
        ways = {}
        for _, _, stage, _, states, *_ in told:
            if stage < 2:
                for i, _ in states:
                    ways[i] = stage
        assert ways == {i: i % 2 for i in range(5)}
        assert one.scheduler.admission.programs.statistics.unfolded >= 5
        list(at_once(one, 5))
        assert one.scheduler.admission.programs.statistics.programs == 5


@pytest.mark.parametrize("bound", [0, 30_000])
def test_programs_that_nobody_needs_are_given_up(bound):
    """Whatever is kept, schedules are the same; lines are used again, so tables stop growing."""
    plan, data = planned("tagger")
    settings = SchedulerSettings(max_active_keys=2, max_dispatch_size=4, program_bytes=bound)
    one = Scheduled(plan, settings, data, wave=0)
    told = []
    lengths = []
    for _ in range(4):
        told.append([x[1:] for x in at_once(one, len(data))])
        s = one.scheduler
        lengths.append(
            [
                table.shape
                for table in (
                    s.tables.t.lines,
                    s.tables.t.inputs,
                    s.tables.t.outputs,
                    s.tables.t.picks,
                    s.admission.programs.store.programs,
                )
            ]
        )
        assert s.admission.programs.statistics.nbytes <= bound
    assert told[0] == told[3] and lengths[1] == lengths[3]
    statistics = one.scheduler.admission.programs.statistics
    assert (
        statistics.dropped > 0 and statistics.programs == statistics.unfolded - statistics.dropped
    )
    assert (one.scheduler.admission.programs.store._extents["lines"].top == 0) == (bound == 0)


def test_a_program_is_kept_while_an_instance_has_it():
    plan, data = planned("trees")
    one = Scheduled(plan, SchedulerSettings(program_bytes=0), data, wave=0)
    one.admit(np.arange(2))
    assert one.scheduler.admission.programs.statistics.programs == 2
    assert len(one.scheduler.admission.programs.store.waves) == 1


def test_what_is_pumped_is_fed_to_slots_in_the_order_of_messages():
    """Also where a batch does not hold its messages instance by instance."""
    graph, data = model("sequences")
    plan = make_plan(graph, assign(graph, 1))
    one = None
    for shuffled in (False, True):
        scheduler = Scheduler(plan, SchedulerSettings())
        handles = scheduler.open(np.arange(3))
        batch = dict(data.gather(np.arange(3)))
        order = {}
        for name, own in batch.items():
            if shuffled:
                order[name] = np.argsort(-own.instance, kind="stable")
            else:
                order[name] = np.arange(len(own.instance))
            fields = {}
            for f, v in own.fields.items():
                fields[f] = np.broadcast_to(
                    v,
                    len(own.instance),
                )[order[name]]
            batch[name] = type(own)(
                own.payload[order[name]],
                own.instance[order[name]],
                fields,
                own.sizes,
            )
        found = {}
        for feed in scheduler.pump(handles, batch):
            found[feed.pump] = feed.slots
        assert all(len(set(own.tolist())) == len(own) and 0 not in own for own in found.values())
        if one is None:
            one = found
        else:
            assert all((found[name] == one[name][order[name]]).all() for name in one)


def test_an_instance_is_pumped_once_unless_it_grows():
    graph = graphs.chain(1)
    scheduler = Scheduler(plan_for(graph), SchedulerSettings())
    handles = scheduler.open(np.arange(1))
    batch = InstanceList(graphs.chain_data(1)).gather(np.arange(1))
    scheduler.pump(handles, batch)
    with pytest.raises(
        InvariantError, match="one batch with all messages of an instance, got another"
    ):
        scheduler.pump(handles, batch)


@pytest.mark.parametrize("name", ["trees", "pondering"])
def test_programs_of_instances_that_are_given_up_are_free_for_others(name):
    plan, data = planned(name)
    scheduler = Scheduler(plan, SchedulerSettings(program_bytes=0))
    handles = scheduler.open(np.arange(2))
    scheduler.pump(handles, data.gather(np.arange(2)))
    for _ in range(3):
        scheduler.next(0)
    assert scheduler.admission.programs.store._extents["lines"].top > 0
    scheduler.admission.forget_all()
    assert all(extents.top == 0 for extents in scheduler.admission.programs.store._extents.values())
    assert scheduler.admission.programs.statistics.nbytes == 0 and not scheduler.admission.under_way
