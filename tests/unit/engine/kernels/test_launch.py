"""What an executor takes is data."""

import dataclasses
import pickle

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.engines import engine

from ampjax.engine.kernels.launch import Launch

pytestmark = pytest.mark.slow

CASES = {
    "rnn": (graphs.rnn(), graphs.rnn_data([3, 1, 2])),
    "group": (
        graphs.grouping(),
        [graphs.grouping_instance(n) for n in (2, 0, 3)],
    ),
    "molecule": (
        graphs.molecule(),
        [
            graphs.molecule_instance(
                3,
                [(0, 1, 0), (1, 2, 1)],
            )
        ]
        * 2,
    ),
}


def kinds(value):
    """The types of all that a launch is made of."""
    if isinstance(value, np.ndarray):
        return {f"array of {value.dtype.kind}"}
    if isinstance(value, (tuple, list)):
        return set().union(*map(kinds, value))
    if dataclasses.is_dataclass(value):
        return set().union(
            *(kinds(getattr(value, field.name)) for field in dataclasses.fields(value))
        )
    return {type(value).__name__}


@pytest.mark.nightly
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_launches_can_travel(name, fuse):
    """Those that come back from bytes do what the others do."""
    graph, data = CASES[name]
    settings = {
        "interval": 3,
        "tx": optax.adam(0.05),
        "fuse": fuse,
        "max_dispatch_size": 4,
    }
    here = engine(graph, **settings)
    there = engine(graph, **settings)
    seen = []
    run = there.executor.run

    def sent(launches):
        seen.extend(launches)
        return run(pickle.loads(pickle.dumps(launches)))

    there.executor.run = sent
    for e in (here, there):
        e.wall(data)
    jax.tree.map(
        np.testing.assert_array_equal,
        here.executor.store.params,
        there.executor.store.params,
    )
    assert {launch.direction for launch in seen} == {"forward", "backward"}
    found = kinds([tuple(launch) for launch in seen])
    assert found <= {"int", "str", "bool", "float", "NoneType", "array of i", "array of u"}


def test_arenas_are_as_large_as_launches_say():
    e = engine(
        graphs.chain(1),
        fuse=False,
        max_active_keys=8,
        capacity=2,
    )
    seen = []
    run = e.executor.run

    def noted(launches):
        seen.extend(launches)
        made = run(launches)
        for launch in launches:
            keys = e.plan.stages[launch.stage].arenas
            assert all(
                e.executor.arenas.capacity[k] >= n
                for k, n in zip(keys, launch.capacities, strict=False)
            )
        return made

    e.executor.run = noted
    e.virtual(graphs.chain_data(8))
    assert [
        launch.capacities for launch in seen if launch.direction == "forward" and launch.out_rows
    ] == [(16,)]
    assert Launch(1, 0, -1, "update").capacities == ()
