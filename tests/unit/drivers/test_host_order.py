"""The order of decisions for hosts: each host gets work while the others are busy, and the controller's updates come where they belong."""

import types

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.engines import engine, spread
from support.hosted import assert_same, trainer
from support.models import model

from ampjax.drivers.host_order import expected_cost, has_expected_order, in_expected_order
from ampjax.drivers.run import DriverLoop
from ampjax.trace.instruments import Instrument


class Decided(Instrument):
    """Keeps dispatches and their instances."""

    def __init__(self):
        self.all = []

    def decided(self, dispatch):
        self.all.append(
            (
                dispatch,
                dispatch.ids.tolist() if dispatch.stage >= 0 else [],
            )
        )


def decided(one_by_one=False, n=8, **settings):
    """What is decided for two hosts, each of which has one of two layers: the plan, and dispatches with their instances."""
    graph = graphs.chain(2)
    e = engine(
        graph,
        spread(graph, 2),
        (0, 1),
        fuse=False,
        check=False,
        max_dispatch_size=1,
        **settings,
    )
    told = Decided()
    loop = DriverLoop(
        e.scheduler,
        None,
        e.sources(graphs.chain_data(n)),
        [told],
    )
    for _ in in_expected_order(loop, one_by_one):
        pass
    assert e.scheduler.idle
    return e.plan, told.all


def test_no_host_gets_everything_before_another_gets_anything():
    """A message goes through the second layer while others have not been through the first."""
    plan, told = decided(n=24, max_active_keys=24)
    found = []
    for dispatch, _ in told:
        found.append(
            (
                plan.stages[dispatch.stage].name,
                dispatch.direction,
            )
        )
    first, second = (
        [place for place, each in enumerate(found) if each == (name, "forward")]
        for name in ("f0", "f1")
    )
    assert len(first) == len(second) == 24
    assert second[0] < first[-8]


def test_transfers_overlap():
    e = engine(
        graphs.chain(2),
        spread(graphs.chain(2), 2),
        (0, 1),
        fuse=False,
    )
    transfers = set()
    for stage in e.plan.stages:
        if stage.kind.is_transfer and stage.crossing_bytes:
            transfers.add(stage.number)
    assert expected_cost(e.plan).overlapping == transfers != set()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_round_is_updated_before_the_next_one_begins(one_by_one):
    _, told = decided(one_by_one, n=6, flush_every=2, max_active_keys=4)
    updates = [place for place, (dispatch, _) in enumerate(told) if dispatch.changes]
    assert [(told[place][0].worker, told[place][0].stage) for place in updates] == [
        (0, -1),
        (1, -1),
    ] * 3
    for number, place in enumerate(updates[1::2], 1):
        assert {instance for _, ids in told[:place] for instance in ids} == set(range(2 * number))


def test_one_host_or_payloads_that_decide():
    """Then each worker is asked in turn, as in one process."""
    foreseen, asked = (
        types.SimpleNamespace(admission=types.SimpleNamespace(foresees=f)) for f in (True, False)
    )
    cases = [
        (2, foreseen, True),
        (1, foreseen, False),
        (2, asked, False),
    ]
    for n_hosts, scheduler, wanted in cases:
        loop = types.SimpleNamespace(
            executor=types.SimpleNamespace(n_hosts=n_hosts), scheduler=scheduler
        )
        assert has_expected_order(loop) is wanted
    assert not has_expected_order(types.SimpleNamespace(executor=None, scheduler=foreseen))


@pytest.mark.nightly
@pytest.mark.slow
def test_asynchronous_runs_on_hosts_give_the_same_bits_each_time():
    """Nothing that is measured decides."""
    graph, data = model("perceptron in copies")
    found = []
    for _ in range(2):
        there = trainer(
            graph,
            optax.adam(0.01),
            2,
            2,
            max_active_keys=4,
            min_update_interval=6,
            arena_rows=256,
        )
        there.fit(data, epochs=2, progress=False)
        found.append(jax.tree.map(np.asarray, there.params))
        there.close()
    assert_same(*found)
