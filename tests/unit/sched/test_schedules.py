"""Schedules are those that were frozen (`support.frozen`); what they write nobody else holds."""

import json

import numpy as np
import pytest
from support import graphs
from support.control import plan_for
from support.frozen import FILE, cases, digest
from support.models import model
from support.schedules import (
    Scheduled,
    assert_nothing_is_left,
    at_once,
    by_table,
    first_difference,
    in_virtual_time,
    planned,
    settings_for,
)

from ampjax.ir.instances import InstanceList

pytestmark = pytest.mark.slow

CASES = cases()
FROZEN = json.loads(FILE.read_text())


# An ordinary run compares every third one.
@pytest.mark.parametrize(
    "name",
    [
        name if i % 3 == 0 else pytest.param(name, marks=pytest.mark.nightly)
        for i, name in enumerate(CASES)
    ],
)
def test_schedules_are_those_that_were_frozen(name):
    told = CASES[name](Scheduled)
    assert len(told) > 2 and digest(told) == FROZEN[name]


ALONE = [
    name for name in CASES if name.endswith(("3 workers", "None; virtual time", "64; virtual time"))
]


@pytest.mark.parametrize(
    "name",
    [name for name in ALONE if "pumped later" not in name],
)
def test_schedules_are_the_same_where_a_table_tells_costs(name):
    case = CASES[name]
    assert (
        digest(
            case.func(
                Scheduled,
                **case.keywords | {"drive": by_table},
            )
        )
        == FROZEN[name]
    )


def test_all_that_is_frozen_is_compared():
    assert list(CASES) == list(FROZEN)


@pytest.mark.parametrize("name", ["trees", "tagger", "pondering", "questions, edge by edge"])
@pytest.mark.parametrize("drive", [at_once, in_virtual_time])
def test_nothing_is_left_and_waves_change_nothing(name, drive):
    """However many instances are unfolded together."""
    graph, data = model(name)
    plan = planned(graph, 2)
    settings = settings_for(graph, max_active_keys=4, max_dispatch_size=4)
    told = []
    for wave in (0, 2, 256):
        side = Scheduled(plan, settings, data, wave=wave)
        told.append(list(drive(side, len(data), 2)))
        assert_nothing_is_left(side.scheduler)
    assert first_difference(told[0], told[1]) is None and first_difference(told[0], told[2]) is None


def test_nodes_have_dispatch_sizes_of_their_own():
    graph = graphs.chain(2, max_dispatch_size=2)
    side = Scheduled(
        plan_for(graph),
        settings_for(graph, 3, max_active_keys=7, max_dispatch_size=5),
        InstanceList(graphs.chain_data(9)),
    )
    rows = {}
    for _, _, stage, _, _, n_rows, _ in at_once(side, 9):
        rows.setdefault(stage, set()).add(n_rows)
    assert max(rows[0]) == max(rows[1]) == 2
    assert max(rows[2]) > 2


def test_slots_are_never_shared():
    """What a dispatch writes nobody else holds; what it reads has been written and is still there."""
    graph, data = model("tagger")
    plan = planned(graph)
    side = Scheduled(
        plan,
        settings_for(graph, max_active_keys=4, max_dispatch_size=6),
        data,
    )
    s = side.scheduler
    held = {}
    left = np.arange(len(data))
    while len(left) or not s.idle:
        n = min(s.admission.room(), len(left))
        side.admit(left[:n])
        left = left[n:]
        while (d := s.next(0)) is not None:
            stage = plan.stages[d.stage]
            rows = d.rows
            for j, arena in enumerate(stage.arenas if d.direction == "forward" else ()):
                own = {}
                for slot in rows[len(stage.ports) + j].tolist():
                    own[(arena, slot)] = d.number
                assert (
                    len(own) == len(rows[len(stage.ports) + j])
                    and 0 not in rows[len(stage.ports) + j]
                )
                assert not own.keys() & held.keys()
                held |= own
            for port, slots in zip(
                stage.ports,
                rows[: len(stage.ports)],
                strict=True,
            ):
                if port.space >= 0:
                    assert all((port.arena, slot) in held for slot in slots.tolist())
            s.done(d)
            if d.direction == "backward":
                for j, arena in enumerate(stage.arenas):
                    for slot in rows[len(stage.ports) + j].tolist():
                        del held[arena, slot]
        s.admission.take_ended()
    assert not held
