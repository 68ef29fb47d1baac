"""Law 7, further: in virtual time the schedule is the same however many dispatches are decided in one call, and whoever adds up what they take."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.laws import GRAPHS, Schedule, frozen, random_one, replayed, schedules

from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.cost import FlopsCost
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.plan.affinity import assign
from ampjax.plan.passes import Pass
from ampjax.plan.planner import make_plan
from ampjax.sched.diagnose.invariants import check
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.instruments import Instrument
from ampjax.train.assemble import scheduler_settings


class Decided(Instrument):
    """Keeps what is decided: the dispatches, with all that is in them, slots included, but for where their packs lie in memory."""

    def __init__(self):
        self.all = []

    def decided(self, dispatch):
        changes = [str(change) for change in dispatch.changes]
        arrays = dispatch.messages, dispatch.lines, dispatch.ids, *dispatch.rows
        self.all.append(
            (
                *dispatch._replace(
                    pack=[a.tolist() for a in arrays],
                    changes=changes,
                    place=0,
                ),
            )
        )


def assert_the_same(seed, schedule, flops, purpose, overlap=False, capacity=256):
    """One case, with the costs from a table, from a function, and from a function for one worker, if there is but one."""
    case = random_one(seed)
    s = replace(schedule.settings, check=False)
    spaces = [w % schedule.devices for w in range(s.workers)]
    plan = make_plan(
        case.graph,
        assign(case.graph, s.workers, s.affinity, s.seed),
        spaces,
        s.fuse,
    )
    between = {
        "workers_per_host": 1 if overlap else 2,
        "host_latency_ns": 50,
        "host_bytes_per_s": 3e8,
        "overlap": overlap,
    }
    cost = FlopsCost(
        plan,
        flops=flops,
        other_ns=3,
        latency_ns=20,
        bytes_per_s=1e9,
        **between,
    )
    told = []
    decides = (
        ("_by_table",) * all(stage.route_by is None for stage in plan.stages),
        ("_in_turn",) * (s.workers == 1),
    )
    for steps in (*itertools.chain(*decides), "_one_by_one"):
        scheduler = Scheduler(
            plan,
            replace(scheduler_settings(case.graph, s), capacity=capacity),
        )
        decided = Decided()
        source = InstanceSource(
            scheduler,
            Pass(
                case.instances,
                np.arange(len(case.data)),
                purpose,
            ),
        )
        loop = DriverLoop(scheduler, None, [source], [decided])
        driver = VirtualDriver(loop, cost, now_ns=5)
        assert loop.advances or steps != "_by_table"
        loop.settle()
        for _ in getattr(driver, steps)(*[cost.rates()] if steps == "_by_table" else ()):
            if steps == "_by_table":
                check(scheduler.snapshot())
        assert scheduler.idle and source.exhausted
        told.append(
            (
                decided.all,
                driver.now_ns,
                repr(scheduler.counts.read()),
            )
        )
    assert len(told[0][0]) > 0
    assert all(one == told[-1] for one in told)


@settings(max_examples=40)
@given(
    GRAPHS,
    schedules(rich=True, min_update_interval=3),
    st.sampled_from([1e6, 1e8, 1e12]),
    st.sampled_from(["train", "both"]),
    st.booleans(),
)
def test_a_table_of_costs_gives_the_schedule_that_a_function_gives(
    seed, schedule, flops, purpose, overlap
):
    """Also where workers go on while rows are on their way to them."""
    with replayed(
        "property.test_virtual_time.assert_the_same", seed, schedule, flops, purpose, overlap
    ):
        assert_the_same(seed, schedule, flops, purpose, overlap)


@pytest.mark.nightly
@settings(max_examples=examples(60))
@given(
    GRAPHS,
    schedules(rich=True, min_update_interval=2),
    st.sampled_from([1e6, 1e12]),
    st.dictionaries(
        st.sampled_from(["max_staleness", "drop_staler_than"]),
        st.integers(0, 2),
        min_size=1,
    ),
)
def test_so_it_is_where_updates_are_held_back_and_gradients_dropped(seed, schedule, flops, limits):
    """Instances that were not admitted meanwhile enter at the same moment, however many dispatches are decided together."""
    schedule = replace(schedule, settings=replace(schedule.settings, **limits))
    with replayed("property.test_virtual_time.assert_the_same", seed, schedule, flops, "train"):
        assert_the_same(seed, schedule, flops, "train")


@pytest.mark.parametrize(
    ("workers", "flops"),
    [(3, 1e6), (4, 1e12)],
)
def test_a_worker_that_has_waited_waits_once_where_an_arena_grows(workers, flops):
    """The policy lets a worker wait, the next one has too few slots, and is asked again when there are more."""
    options = {"policy": "one_forward_one_backward", "max_active_keys": 7, "max_dispatch_size": 4}
    settings = frozen(workers=workers, fuse=True, min_update_interval=3, **options)
    assert_the_same(
        299,
        Schedule(settings, 1, None),
        flops,
        "train",
        capacity=2,
    )
