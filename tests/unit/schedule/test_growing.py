"""Instances whose programs grow while they are in flight: payloads decide, or a controller pumps later. The schedules are those of the router all the same."""

from contextlib import suppress

import numpy as np
import pytest
from support.models import model
from support.schedules import (
    Integers,
    Routing,
    assert_nothing_is_left,
    assert_same,
    at_once,
    first_difference,
    in_virtual_time,
    planned,
    settings_for,
)

from ampjax.testing import random_case


@pytest.mark.parametrize("drive", [at_once, in_virtual_time])
@pytest.mark.parametrize("name", ["pondering", "experts"])
def test_payloads_decide(name, drive):
    """What nobody computes is assumed. Programs grow while they are in flight; messages move, those that are being dispatched too."""
    graph, data = model(name)
    for train in (True, False):
        settings = settings_for(graph, max_active_keys=2, max_dispatch_size=3)
        assert_same(planned(graph, 2), settings, data, train, drive)


class Later:
    """Pumps an instance's messages one pump after the other, topologies first, two dispatches between them, as a user-written controller may."""

    def __init__(self, side):
        self.scheduler, self._side, self._train = side.scheduler, side, side._train
        self.tell, self._left = side.tell, []
        scheduler, done, n = side.scheduler, side.scheduler.done, iter(range(1 << 30))

        def later(d):
            done(d)
            if next(n) % 2:
                self._pump_next()

        scheduler.done = later

    def admit(self, ids):
        own = {"grows": True} if isinstance(self._side, Integers) else {}
        for i in ids.tolist():
            slots = self.scheduler.open(np.array([i]), "train", **own)
            batch = self._side._data.gather(np.array([i])).items()
            self._left.append((slots, sorted(batch, key=lambda one: not isinstance(one[1].payload, list))))
        self._pump_next()

    def _pump_next(self):
        for slots, waiting in [*self._left]:
            while waiting:
                name, messages = waiting.pop(0)
                self.scheduler.pump(slots, {name: messages})
                if not isinstance(messages.payload, list):  # nothing moves for topologies alone
                    break
            if not waiting:
                self.scheduler.close(slots)
        self._left = [one for one in self._left if one[1]]


@pytest.mark.parametrize("drive", [at_once, in_virtual_time])
@pytest.mark.parametrize("name", ["sequences", "trees", "tagger", "questions", "questions, edge by edge"])
def test_controllers_that_pump_later(name, drive):
    graph, data = model(name)
    plan = planned(graph, 2)
    for size, active in ((2, 3), (64, 1)):
        settings = settings_for(graph, max_active_keys=active, max_dispatch_size=size)
        one = list(drive(Later(Routing(plan, settings, data)), len(data), 2))
        side = Integers(plan, settings, data, wave=0)
        other = list(drive(Later(side), len(data), 2))
        assert first_difference(one, other) is None
        assert_nothing_is_left(side.scheduler)


@pytest.mark.parametrize("seed", [1, 7, 11, 18, 24, 40])
def test_random_graphs_that_are_pumped_later(seed):
    """Where a controller pumps only after something was done, some may stand still: both at the same place."""
    case, sides = random_case(seed, n_instances=6), []
    plan = planned(case.graph, 1 + seed % 3)
    settings = settings_for(case.graph, max_active_keys=1 + seed % 6, max_dispatch_size=1 + seed % 5)
    for side in (Routing(plan, settings, case.instances), Integers(plan, settings, case.instances, wave=0)):
        sides.append([])
        with suppress(AssertionError):
            sides[-1].extend(at_once(Later(side), 6, plan.workers))
    assert first_difference(*sides) is None and sides[1]
