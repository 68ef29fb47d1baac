"""What instances need in the arenas, and that a memory limit holds them back but never blocks half-way."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import admit, assert_empty, columns, drain, plan_for, scheduler_for, step
from support.effort import examples

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import LimitError
from ampjax.plan.stages import HOST
from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.deadlock import standstill
from ampjax.sched.memory_limits import (
    MARGIN_WITH_SIZES,
    USUAL_MARGIN,
    MemoryGuard,
    row_bytes,
    row_limits,
    with_limits,
    with_unseen,
)
from ampjax.sched.scheduler import Scheduler
from ampjax.unfold.demand import needs

LENGTHS = st.lists(
    st.integers(1, 9),
    min_size=1,
    max_size=10,
)

CASES = {
    "rnn": (graphs.rnn(), graphs.rnn_instance),
    "flatmap": (graphs.flat(), graphs.flat_instance),
    "group": (graphs.grouping(), graphs.grouping_instance),
    "repeat": (graphs.repeating(), graphs.repeating_instance),
    "molecule": (
        graphs.molecule(),
        lambda n: graphs.molecule_instance(
            n,
            [(i, (i + 1) % n, i % 2) for i in range(n - 1)],
        ),
    ),
}


def needed(plan, instances, purpose="train"):
    each = needs(
        plan,
        [columns(plan.graph, instances)],
        range(len(instances)),
        purpose,
    ).each
    result = {}
    for key, rows in each.items():
        result[key] = int(rows.sum())
    return result


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_demand_is_what_a_run_takes(name, fuse):
    graph, make = CASES[name]
    instances = [make(n) for n in (1, 4, 2)]
    plan = plan_for(graph, fuse=fuse)
    need = needed(plan, instances)
    assert need == {
        key: sum(needed(plan, [i]).get(key, 0) for i in instances) for key in need
    }  # instances do not share rows
    s = Scheduler(plan, SchedulerSettings(max_dispatch_size=1), check=True)
    admit(s, instances)
    taken = Counter()
    for d in drain(s):
        if d.direction == "forward" and d.stage.outputs:
            for key, rows in zip(
                d.stage.arenas,
                d.out_rows,
                strict=True,
            ):
                taken[key] += len(rows)
    assert +Counter(need) == +taken


def test_demand_of_a_loop():
    plan = plan_for(graphs.rnn(features=4), fuse=True)
    assert needed(plan, graphs.rnn_data([5])) == {
        (0, (4,), "float32"): 1 + 5
    }  # h0, and one row per step


@pytest.mark.parametrize("name", CASES)
def test_inference_needs_the_same_rows_over_time(name):
    graph, make = CASES[name]
    plan = plan_for(graph)
    batches = [
        columns(
            graph,
            [make(n) for n in (1, 4, 2)],
        )
    ]
    trained, inferred = (
        needs(plan, batches, range(3), purpose).each for purpose in ("train", "both")
    )
    assert trained.keys() == inferred.keys()
    for key, rows in trained.items():
        np.testing.assert_array_equal(rows, inferred[key])


def test_row_bytes_count_the_adjoint():
    assert row_bytes((0, (3, 5), "float32")) == 3 * 5 * 4 * 2
    assert row_bytes((0, (), "int32")) == 8
    assert row_bytes((0, (4,), "bfloat16")) == 16


def test_limits_are_shared_out_by_bytes():
    limits = row_limits(
        {
            (0, (100,), "float32"): 10.0,
            (0, (1,), "float32"): 30.0,
            (1, (1,), "float32"): 1.0,
        },
        80_000,
    )
    assert all(
        sum(limits[k] * row_bytes(k) for k in limits if k[0] == space) <= 80_000 for space in (0, 1)
    )
    assert limits[0, (1,), "float32"] == pytest.approx(3 * limits[0, (100,), "float32"], abs=3)
    assert limits[1, (1,), "float32"] == 10_000


def test_an_arena_that_no_sampled_instance_touched_is_taken_to_be_needed():
    seen, empty, new = ((0, (n,), "float32") for n in (1, 2, 3))
    assert with_unseen({seen: 8.0, empty: 0.0}, [seen, empty, new]) == {
        seen: 8.0,
        empty: 8.0,
        new: 8.0,
    }
    assert with_unseen({}, [new]) == {new: 1}


def test_arenas_start_at_what_is_expected_within_the_limits():
    keys = (0, (1,), "float32"), (0, (2,), "float32")
    made = with_limits(
        SchedulerSettings(),
        {keys[0]: 10.0, keys[1]: 10.0},
        {keys[0]: 1000, keys[1]: 50},
        8,
    )
    assert made.capacities == {keys[0]: 128, keys[1]: 50}
    assert made.limits == {
        keys[0]: 1000,
        keys[1]: 50,
    }


# The guard


def asks(guard, plan, instance, train, batches):
    """Asks for room for one instance."""
    return guard.admit(
        instance,
        train,
        *demands(plan, [instance], batches, guard.purpose),
    )


def demands(plan, ids, batches, purpose="both"):
    """What each of some instances needs."""
    return Scheduler(plan, SchedulerSettings()).admission.programs.demands(
        np.array(ids), batches, purpose
    )


def guarded_run(graph, instances, limits, policy, size, choose):
    """Admits instances in order, as far as the guard lets them, between actions; fails if anything gets stuck."""
    plan = plan_for(graph, fuse=False)
    s = Scheduler(
        plan,
        SchedulerSettings(
            max_active_keys=8, max_dispatch_size=size, policy=POLICIES[policy], limits=limits
        ),
        check=True,
    )
    guard = MemoryGuard(limits, needed(plan, instances), 8)
    waiting = list(range(len(instances)))
    while waiting or not s.idle:
        admitted = False
        while (
            waiting
            and s.admission.room()
            and asks(
                guard,
                plan,
                waiting[0],
                True,
                [columns(graph, [instances[waiting[0]]])],
            )
        ):
            admit(
                s,
                [instances[waiting[0]]],
                ids=[waiting.pop(0)],
            )
            admitted = True
        moved = step(s) if choose() or not admitted else admitted
        for instance, train in s.admission.take_ended():
            guard.release(instance, train)
        assert moved or admitted, standstill(s.snapshot())
        used = s.tables.capacities - s.tables.t.n_free
        assert all(used[s.tables.arenas.keys.index(key)] < limit for key, limit in limits.items())
    assert_empty(s)


@pytest.mark.nightly
@given(
    st.sampled_from(sorted(CASES)),
    LENGTHS,
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 8),
    st.data(),
)
@settings(max_examples=examples(60))
def test_a_memory_limit_never_blocks_half_way(name, lengths, policy, size, data):
    """With any limit that the largest instance fits into, everything ends, under any policy and dispatch size."""
    graph, make = CASES[name]
    instances = [make(n) for n in lengths]
    plan = plan_for(graph, fuse=False)
    each = [needed(plan, [i]) for i in instances]
    total = needed(plan, instances)
    limits = {}
    for key in total:
        largest = max(need.get(key, 0) for need in each)
        limits[key] = 1 + data.draw(
            st.integers(
                max(1, largest),
                max(1, total[key]),
            ),
            label=f"rows of {key}",
        )
    guarded_run(
        graph,
        instances,
        limits,
        policy,
        size,
        lambda: data.draw(st.booleans()),
    )


def test_an_instance_that_can_not_fit_even_alone():
    graph = graphs.rnn(features=4)
    key = (0, (4,), "float32")
    plan = plan_for(graph, fuse=True)
    guard = MemoryGuard({key: 6}, {key: 2}, 1)
    assert asks(
        guard,
        plan,
        0,
        True,
        [columns(graph, graphs.rnn_data([4]))],
    )
    guard.release(0, True)
    text = (
        r"instance 9: expected at most 5 rows of shape \(4,\) float32, which the memory limit allows, got 6 rows\. "
        r"Raise `memory_limit`, or split the instance\."
    )
    with pytest.raises(LimitError, match=text):
        asks(
            guard,
            plan,
            9,
            True,
            [columns(graph, graphs.rnn_data([5]))],
        )


def test_the_guard_holds_back_until_others_have_ended():
    graph = graphs.rnn(features=4)
    key = (0, (4,), "float32")
    plan = plan_for(graph, fuse=True)
    guard = MemoryGuard({key: 8}, {key: 4}, 4)
    batch = [columns(graph, graphs.rnn_data([3]))]
    assert (
        guard.tight
        and asks(
            guard,
            plan,
            0,
            True,
            batch,
        )
        and not asks(guard, plan, 1, True, batch)
    )
    guard.release(0, True)
    assert asks(guard, plan, 1, True, batch)


def test_instances_counted_together_need_what_each_needs_alone():
    graph = graphs.rnn(features=4)
    plan = plan_for(graph, fuse=True)
    data = graphs.rnn_data([3, 1, 5])
    together = demands(
        plan,
        [7, 2, 5],
        [columns(graph, data)],
    )
    assert together == [demands(plan, [7], [columns(graph, [one])])[0] for one in data]
    assert [need[0, (4,), "float32"] for need in together] == [4, 2, 6]


@pytest.mark.parametrize("margin", [USUAL_MARGIN, MARGIN_WITH_SIZES])
@pytest.mark.parametrize("spare", [0, -1])
def test_far_from_the_limit_nothing_is_counted(margin, spare):
    key = (0, (4,), "float32")
    guard = MemoryGuard(
        {key: margin * 8 * 5 + spare},
        {key: 5},
        8,
        margin,
    )
    assert guard.tight == (spare < 0)


def test_training_and_inference_of_one_instance_are_counted_apart():
    graph = graphs.rnn(features=4)
    key = (0, (4,), "float32")
    plan = plan_for(graph, fuse=True)
    guard = MemoryGuard({key: 1 + 8}, {key: 4}, 4)
    batch = [columns(graph, graphs.rnn_data([3]))]
    assert asks(guard, plan, 0, True, batch)
    assert asks(guard, plan, 0, False, batch)
    guard.release(0, True)
    assert asks(
        guard,
        plan,
        0,
        True,
        batch,
    ) and not asks(guard, plan, 1, True, batch)


def test_a_dry_run_leaves_out_what_it_can_not_know():
    """Without a label the loss waits, and the rows before it are counted all the same."""
    plan = plan_for(graphs.chain(2))
    assert needed(plan, [{"x": np.float32(1)}]) == {(0, (), "float32"): 2}


def test_arenas_start_at_their_capacity():
    key = (0, (), "float32")
    s = scheduler_for(
        graphs.chain(1),
        capacities={key: 32},
        capacity=8,
    )
    admit(s, graphs.chain_data(2))
    drain(s)
    assert (
        s.tables.capacity(key),
        s.tables.capacity((HOST, (), "float32")),
    ) == (32, 8)


def test_rows_that_sinks_alone_need_are_not_kept_for_losses():
    with ag.Graph() as g:
        y = ag.ppt(
            "f",
            amp.nn.Linear(3, 2),
        )(ag.pump("x", (3,)))
        ag.sink("y", y)
        ag.loss(
            "loss",
            lambda y: (y**2).sum(),
        )(y)
    plan = plan_for(g, fuse=True)
    data = [{"x": np.zeros(3, np.float32)}] * 4
    key = (0, (2,), "float32")
    for purpose, rows in (("losses", 0), ("sinks", 1), ("both", 1)):
        found = demands(
            plan,
            range(4),
            [columns(g, data)],
            purpose,
        )
        assert [need.get(key, 0) for need in found] == [rows] * 4
