"""The laws over several hosts: a recorded run gives the same bits on any number of them, and all laws hold as they do in one process.

Hosts are threads here; `tests/unit/hosts/test_processes.py` has real processes.
"""

import functools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY, examples, left_to_nightly
from support.hosted import assert_same, on_hosts, trainer
from support.laws import (
    Costs,
    Engine,
    Scattered,
    Schedule,
    assert_empty,
    assert_gradients,
    frozen,
    random_one,
    start,
    wanted,
)
from support.models import model
from support.traces import assert_agree

import ampjax as amp
import ampjax.graphs as ag

SPACES = 4

RUNS = {
    "perceptron in copies": {"replica_sync": ("every_k", 2), "max_staleness": 1},
}
"""Models, and settings that each is run with."""

MORE = {
    "perceptron": {"weights": "stashed", "exact_staleness": 1},
    "sequences in replicas": {
        "replica_sync": ("message", 2),
        "max_dispatch_size": 4,
        "weights": "estimated",
        "drop_staler_than": 0,
    },
    "questions": {"mode": "sync"},
    "pondering": {"max_staleness": 0},
    "trees": {"weights": "stashed", "exact_staleness": 1},
    "trees in replicas": {"mode": "pipeline"},
    "molecules, edge by edge": {"fuse": False},
    "experts": {"compile_ahead": True},
}
"""Those of nightly runs."""


@functools.cache
def make(name, n_hosts):
    """A trainer, made once: kernels are compiled for its arenas."""
    options = {"max_active_keys": 4, "min_update_interval": 6, "arena_rows": 256} | (RUNS | MORE)[
        name
    ]
    return trainer(
        model(name)[0],
        optax.adam(0.01),
        n_hosts,
        SPACES,
        **options,
    )


@pytest.mark.parametrize("name", [*RUNS, *left_to_nightly(MORE)])
def test_a_recorded_run_gives_the_same_bits_on_any_number_of_hosts(name, tmp_path):
    _, data = model(name)
    here = make(name, 0)
    history = here.fit(
        data,
        data,
        epochs=2,
        progress=False,
        record=tmp_path / "run.trace",
    )
    for n_hosts in (1, 2, 4) if NIGHTLY or name == "perceptron in copies" else (4,):
        there = make(name, n_hosts)
        again = amp.replay(tmp_path / "run.trace", there, data, data, progress=False)
        assert_same(there.params, here.params)
        assert_same(there.gradients, here.gradients)
        assert [e.train for e in again.epochs] == [e.train for e in history.epochs]
        assert [e.valid for e in again.epochs] == [e.valid for e in history.epochs]
        assert [e.dropped for e in again.epochs] == [e.dropped for e in history.epochs]
        assert ("drop_staler_than" in (RUNS | MORE)[name]) == any(e.dropped for e in history.epochs)
        assert {name for host in there.hosts for name in host.nodes} == set(here.params)
        trace = amp.Trace()
        there.fit(
            data,
            epochs=1,
            progress=False,
            trace=trace,
            record=tmp_path / "traced",
        )
        assert_agree(trace, tmp_path / "traced", there.plan)
        there.close()
        assert [host.state for host in there.hosts] == ["ended"] * n_hosts


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "pipeline"},
        pytest.param({"min_update_interval": 6, "max_dispatch_size": 1}, marks=pytest.mark.nightly),
        pytest.param({"mode": "sync"}, marks=pytest.mark.nightly),
    ],
)
def test_what_hosts_did_in_expected_order_has_the_same_bits_in_one_process(options, tmp_path):
    """Law 7: a recording of hosts, which write rows when they come, is replayed without hosts; and hosts do the same once more."""
    graph, data = model("sequences")
    here, there, again = (cut(graph, n, **options) for n in (0, 2, 2))
    history = there.fit(
        data,
        data,
        epochs=2,
        progress=False,
        record=tmp_path / "run.trace",
    )
    replayed = amp.replay(tmp_path / "run.trace", here, data, data, progress=False)
    repeated = again.fit(data, data, epochs=2, progress=False)
    for each, other in (here, replayed), (again, repeated):
        assert_same(each.params, there.params)
        assert_same(each.gradients, there.gradients)
        assert [(e.train, e.valid) for e in other.epochs] == [
            (e.train, e.valid) for e in history.epochs
        ]
    assert all(host.bytes_sent for host in there.hosts)
    for each in (there, again):
        each.close()


def cut(graph, n_hosts, **options):
    """A trainer of list reduction on so many hosts, whose rows go to another worker and back at each step."""
    places = dict.fromkeys(
        amp.Trainer(graph, workers=2).plan.worker_of,
        1,
    ) | {"linear1": 0}
    return trainer(
        graph,
        optax.adam(0.01),
        n_hosts,
        2,
        affinity=places,
        max_active_keys=4,
        arena_rows=256,
        **options,
    )


@pytest.mark.nightly
@settings(max_examples=examples(24))
@given(
    st.integers(0, 5 if NIGHTLY else 1,), st.integers(0, 99), st.sampled_from([2, 3]), st.sampled_from([1, 4]), st.booleans(), st.booleans()
)  # fmt: skip
def test_random_graphs_scattered_over_hosts(seed, placing, n_hosts, size, fuse, virtual):
    """Laws 1 and 2: nothing is left, and gradients are the oracle's; and the same bits as in one process, under one schedule."""
    case = random_one(seed)
    affinity = Scattered(placing % 4)
    own = frozen(
        workers=3,
        affinity=affinity,
        max_active_keys=3,
        max_dispatch_size=size,
        fuse=fuse,
    )
    schedule = Schedule(own, 3, Costs(placing) if virtual else None)
    engine = Engine(case.graph, start(seed), schedule)
    with on_hosts(engine, n_hosts, start(seed)):
        engine.run(case.instances)
        assert_gradients(engine, wanted(seed))
        assert_empty(engine)
        if virtual:
            here = Engine(case.graph, start(seed), schedule).run(case.instances)
            assert_same(engine.gradients, here.gradients)
            for one, other in zip(engine.arrived, here.arrived, strict=True):
                n = one.n_rows
                np.testing.assert_array_equal(
                    np.asarray(one.rows)[:n],
                    np.asarray(other.rows)[:n],
                )


@pytest.mark.nightly
@settings(max_examples=examples(12))
@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.sampled_from([1, 3]),
)
def test_updates_on_hosts(seed, interval, keys):
    """Laws 4, 5 and 6: intervals, the throttle, and determinism in virtual time, with updates on the way."""
    case = random_one(seed)
    own = frozen(
        workers=2,
        affinity=Scattered(1),
        max_active_keys=keys,
        max_dispatch_size=2,
        min_update_interval=interval,
    )
    schedule = Schedule(replace(own, check=True), 2, Costs(seed))
    tx = optax.sgd(0.01)
    here = Engine(
        case.graph,
        start(seed),
        schedule,
        tx,
    ).run(case.instances)
    there = Engine(case.graph, start(seed), schedule, tx)
    with on_hosts(there, 2, start(seed), tx):
        there.run(case.instances)
        assert_same(there.params, here.params)
        assert there.updates() == here.updates()
        assert all(update.count >= interval for update in there.updates())


@pytest.mark.nightly
def test_predictions_and_checkpoints(tmp_path):
    """What sinks receive comes back from hosts; a checkpoint of hosts is one of a process, and the other way round."""
    graph, data = model("sequences")
    one_by_one = {
        "max_active_keys": 1,
        "arena_rows": 256,
    }  # so that losses are added up in the same order
    here, there = (trainer(graph, optax.adam(0.01), n, 2, **one_by_one) for n in (0, 2))
    here.fit(data, epochs=1, progress=False)
    here.save(tmp_path / "checkpoint")
    there.restore(tmp_path / "checkpoint")
    assert_same(there.params, here.params)
    assert here.evaluate(data) == there.evaluate(data)
    assert there.device_bytes.keys() == here.device_bytes.keys()
    there.set_params({next(iter(here.params)): next(iter(here.params.values()))})
    there.save(tmp_path / "checkpoint")
    here.restore(tmp_path / "checkpoint")
    assert_same(there.params, here.params)
    there.close()


def test_what_sinks_receive():
    with ag.Graph() as g:
        x = ag.pump("x", shape=(3,))
        y = ag.ppt(
            "a",
            lambda p, v: p * v,
            params=lambda key: np.float32(2.0),
        )(x)
        ag.sink(
            "y",
            ag.ppt(
                "b",
                lambda p, v: p + v,
                params=lambda key: np.float32(1.0),
            )(y),
        )
    rows = np.arange(15, dtype=np.float32).reshape(
        5,
        3,
    )
    there = trainer(
        g,
        None,
        2,
        2,
        affinity={"a": 0, "b": 1, "y": 1},
    )
    found = there.predict([{"x": row} for row in rows])["y"]
    np.testing.assert_array_equal(found.payload, 2 * rows + 1)
    there.close()


def test_the_same_plan_in_every_process():
    """A graph that has been pickled gives the plan that it gave."""
    import cloudpickle

    from ampjax.plan.affinity import assign
    from ampjax.plan.planner import make_plan

    for name in ("trees in replicas", "questions", "experts"):
        graph = model(name)[0]
        copy = cloudpickle.loads(cloudpickle.dumps(graph))
        homes = assign(graph, 2)
        assert repr(
            make_plan(
                copy,
                homes,
                (0, 1),
            )
        ) == repr(make_plan(graph, homes, (0, 1)))
        assert jax.tree.structure(list(copy.parameterised)) == jax.tree.structure(
            list(graph.parameterised)
        )
