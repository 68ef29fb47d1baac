"""Calls of several tables at the same time."""

import collections
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import TableError
from ampjax.parallel.homes.wire import MachineWire
from ampjax.sparse.rows import parallel_calls
from ampjax.sparse.rows.parallel_calls import PARALLEL_BYTES, all_of
from ampjax.sparse.table.pending_update import PendingUpdate

IDS = {"users": "user_ids", "items": "item_ids", "tags": "tag_ids"}


def test_calls_with_much_to_do_run_at_the_same_time_the_first_in_this_thread():
    together = threading.Barrier(2)

    def call(i):
        together.wait(30)
        return i, threading.current_thread() is threading.main_thread()

    assert all_of(
        [
            partial(call, 1),
            partial(call, 2),
        ],
        PARALLEL_BYTES,
    ) == [(1, True), (2, False)]


def test_calls_with_little_to_do_run_in_this_thread_in_their_order():
    seen = []
    calls = [lambda i=i: seen.append((i, threading.current_thread())) for i in range(3)]
    assert all_of(calls, PARALLEL_BYTES - 1) == [None] * 3
    assert seen == [(i, threading.current_thread()) for i in range(3)]
    assert all_of([], PARALLEL_BYTES) == []


@pytest.mark.parametrize(
    "wrong",
    [(0,), (1,), (0, 2), (1, 2)],
)
def test_the_first_error_is_raised_when_all_calls_have_ended(wrong):
    ended = []

    def call(i):
        if i in wrong:
            raise ValueError(i)
        threading.Event().wait(0.05)
        ended.append(i)

    with pytest.raises(ValueError, match=f"^{wrong[0]}$"):
        all_of([partial(call, i) for i in range(4)], PARALLEL_BYTES)
    assert sorted(ended) == [i for i in range(4) if i not in wrong]


class Yielding(collections.Counter):
    """Lets another thread go on between reading a count and writing the next."""

    def __getitem__(self, key):
        value = super().__getitem__(key)
        time.sleep(1e-4)
        return value


def test_threads_count_bytes_that_go_over_the_wire_together():
    wire = MachineWire(2, Yielding())

    def count():
        result = []
        for _ in range(50):
            result.append(wire.count("sent", 0, "t", 1))
        return result

    all_of([count] * 4, PARALLEL_BYTES)
    assert wire.traffic().of_machine(0) == 200


def loss(params, batch):
    towers = []
    for name, ids in IDS.items():
        towers.append(params[name][batch[ids]].mean(1) @ params["w"])
    return jnp.mean((towers[0] * towers[1] + towers[2] - batch["y"]) ** 2)


def parameters(rng):
    tables = {}
    for i, name in enumerate(IDS):
        tables[name] = rng.normal(size=(50 + 10 * i, 4)).astype(np.float32)
    return {
        **tables,
        "w": rng.normal(size=(4, 4)).astype(np.float32),
    }


def batches(rng, n):
    for _ in range(n):
        ids = {}
        for column in IDS.values():
            ids[column] = rng.integers(0, 50, (8, 3))
        yield {
            **ids,
            "y": rng.normal(size=(8, 4)).astype(np.float32),
        }


def a_runner(machines, mode, tx):
    devices = iter(jax.local_devices())
    resources = Resources(tuple(Machine(f"m{i}", (next(devices),)) for i in range(machines)))
    return px.get_runner(
        loss,
        parameters(np.random.default_rng(0)),
        tx,
        resources,
        px.ParallaxConfig(table_mode=mode),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("mode", ["lazy", "faithful"])
@pytest.mark.parametrize("rounds", [0, 1])
def test_tables_that_are_worked_on_at_the_same_time_get_the_same_bits_and_count_the_same_bytes(
    monkeypatch, machines, mode, rounds
):
    """`rounds`: whether the update needs a norm of all gradients."""
    if rounds:
        tx = optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.1))
    else:
        tx = optax.adam(0.1)

    def trained(least_bytes):
        monkeypatch.setattr(parallel_calls, "PARALLEL_BYTES", least_bytes)
        runner = a_runner(machines, mode, tx)
        results = []
        for batch in batches(np.random.default_rng(1), 4):
            results.append(runner.run(batch))
        return runner.params, [(each.loss, each.traffic.ends) for each in results]

    params, results = trained(0)
    wanted, expected = trained(1 << 40)
    assert results == expected
    assert jax.tree.all(
        jax.tree.map(
            lambda a, b: (np.asarray(a) == np.asarray(b)).all(),
            params,
            wanted,
        )
    )


def test_an_error_of_one_table_names_it_and_changes_none(monkeypatch):
    monkeypatch.setattr(parallel_calls, "PARALLEL_BYTES", 0)
    runner = a_runner(1, "lazy", optax.adam(0.1))
    first, second = batches(np.random.default_rng(1), 2)
    runner.run(first)
    before = runner.params
    table = runner.step.homes.rows["['items']"].table

    sound = PendingUpdate.prepare

    def prepare(self, shared):
        if self.table == table.place.key.table:
            raise TableError("apply", "a sound table", "a broken one", "Mend it.")
        return sound(self, shared)

    monkeypatch.setattr(PendingUpdate, "prepare", prepare)
    with pytest.raises(TableError, match=r"variable `items`, apply"):
        runner.run(second)
    monkeypatch.undo()
    assert jax.tree.all(
        jax.tree.map(
            lambda a, b: (np.asarray(a) == np.asarray(b)).all(),
            runner.params,
            before,
        )
    )
    assert runner.run(second).step == 2
