"""Kernels do the same whichever scheduler decides: the parameters are those that the old one comes to."""

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.engines import engine
from support.schedules import Integers, admit

from ampjax.engine.unfolded import Unfolded
from ampjax.errors import SettingsError
from ampjax.ir.instances import InstanceList

CASES = {
    "chain": (graphs.chain(2), graphs.chain_data(9)),
    "rnn": (graphs.rnn(), graphs.rnn_data([3, 1, 4, 1, 5, 2])),
    "flatmap": (graphs.flat(), [graphs.flat_instance(n) for n in (2, 1, 3, 2)]),
}


class Fed(Integers):
    """A scheduler of integers over a data set; payloads of what is admitted go to an executor."""

    def __init__(self, plan, settings, data, executor):
        super().__init__(plan, settings, data)
        self._executor = executor

    def admit(self, ids):
        super().admit(ids)
        self._executor.feed(self.feeds)


def run(fed, n, ahead):
    """Everything, one by one or several ahead; each launch is issued before more is admitted."""
    s, launch_of, left = fed.scheduler, Unfolded(fed.scheduler.plan, fed.scheduler.capacity), np.arange(n)
    moved, most = True, 0
    while moved:
        left, moved = admit(fed, left)
        found = s.ahead(0, ahead) if ahead else [d for d in [s.next(0)] if d is not None]
        for dispatch in found:
            fed._executor.issue([launch_of(dispatch)])
            if not ahead:
                s.done(dispatch)
        moved, most = moved or bool(found), max(most, len(found))
    assert s.idle
    return most


@pytest.mark.parametrize("ahead", [0, 16])
@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_old_scheduler(name, ahead):
    graph, data = CASES[name]
    settings = {"interval": 3, "tx": optax.adam(0.05), "max_active_keys": 4, "max_dispatch_size": 4, "capacity": 4}
    old, new = engine(graph, **settings), engine(graph, **settings)
    start = jax.tree.map(np.array, new.executor.store.params)
    old.wall(data)
    fed = Fed(new.plan, new.scheduler.settings, InstanceList(data), new.executor)
    most = run(fed, len(data), ahead)
    assert most > 1 if (name, ahead) == ("rnn", 16) else most > 0
    assert fed.scheduler.versions == old.scheduler.updates.versions and sum(fed.scheduler.versions.values()) > 1
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    jax.tree.map(close, new.executor.store.params, old.executor.store.params)
    moved = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), start, jax.tree.map(np.array, new.executor.store.params)
    )
    assert all(jax.tree.leaves(moved))
    assert new.metrics()["loss"] == pytest.approx(old.metrics()["loss"], rel=1e-5)


def test_what_it_cannot_do_yet_is_refused():
    plan = engine(graphs.grouping()).plan
    with pytest.raises(SettingsError, match="expected messages of one row, and no random body, got ragged messages"):
        Unfolded(plan, lambda key: 2)
