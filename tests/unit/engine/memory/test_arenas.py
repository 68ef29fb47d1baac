"""Arenas: they keep what they hold when they grow, and count their bytes."""

import jax
import numpy as np
import pytest
from support import graphs
from support.engines import engine

from ampjax.engine.memory import arenas as arenas_module
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.stages import HOST

pytestmark = pytest.mark.slow

KEY = (0, (3,), "float32")


def arenas():
    return Arenas(jax.devices()[:2])


def test_a_new_arena_is_zero_and_has_adjoint_rows():
    a = arenas()
    a.ensure(KEY, 4)
    assert a.values[KEY].shape == a.grads[KEY].shape == (4, 3)
    assert not np.asarray(a.values[KEY]).any()
    assert not np.asarray(a.grads[KEY]).any()


def test_integers_have_no_adjoint_rows():
    a = arenas()
    a.ensure((0, (), "int32"), 4)
    assert a.grads[0, (), "int32"] is None


def test_arenas_lie_on_their_device():
    a = arenas()
    a.ensure((1, (), "float32"), 4)
    assert a.values[1, (), "float32"].devices() == {jax.devices()[1]}


def test_growing_keeps_rows_adjoints_and_device():
    a = arenas()
    key = (1, (3,), "float32")
    a.ensure(key, 2)
    a.values[key] = a.values[key].at[1].set(7.0)
    a.grads[key] = a.grads[key].at[1].set(8.0)
    a.ensure(key, 8)
    assert a.grown == 1
    assert a.values[key].devices() == {jax.devices()[1]}
    np.testing.assert_array_equal(
        a.values[key][:2],
        [[0] * 3, [7] * 3],
    )
    np.testing.assert_array_equal(
        a.grads[key][:2],
        [[0] * 3, [8] * 3],
    )
    assert a.values[key].shape == (8, 3)


def test_an_arena_that_is_large_enough_stays_the_same_array():
    a = arenas()
    a.ensure(KEY, 4)
    before = a.values[KEY]
    a.ensure(KEY, 3)
    assert a.values[KEY] is before and a.grown == 0


def test_host_arenas_are_numpy_and_keep_their_rows():
    a = arenas()
    key = (HOST, (2,), "int32")
    a.ensure(key, 2)
    a.host[key][1] = 5
    a.ensure(key, 6)
    assert a.host[key].tolist() == [[0, 0], [5, 5]] + [[0, 0]] * 4
    assert a.grown == 0


@pytest.mark.parametrize("fails_at", [1, 2])
def test_an_arena_for_which_there_was_no_memory_grows_when_it_is_asked_for_again(
    monkeypatch, fails_at
):
    a = arenas()
    a.ensure(KEY, 4)
    a.values[KEY] = a.values[KEY].at[2].set(7.0)
    grow = arenas_module.grow
    calls = []

    def short(array, capacity):
        calls.append(capacity)
        if len(calls) == fails_at:
            raise MemoryError
        return grow(array, capacity)

    monkeypatch.setattr(arenas_module, "grow", short)
    with pytest.raises(MemoryError):
        a.ensure(KEY, 16)
    assert a.capacity[KEY] == 4
    a.ensure(KEY, 16)
    assert len(a.values[KEY]) == len(a.grads[KEY]) == 16
    assert a.grown == 1
    assert a.values[KEY][2].tolist() == [7.0] * 3


def test_bytes_and_print():
    a = arenas()
    a.ensure(KEY, 10)
    a.ensure((HOST, (), "int32"), 4)
    a.ensure((0, (), "int32"), 4)
    assert a.device_bytes == 10 * 3 * 4 * 2 + 4 * 4
    assert repr(a) == (
        "Arenas: 0.0 MB on devices\n  () int32 on space -1: 4 rows\n  (3,) float32 on space 0: 10 rows\n  () int32 on space 0: 4 rows"
    )


def largest_forward(queues, now):
    """Everything goes forward before anything comes back, so that as much as possible is held at once."""
    return min(queues, key=lambda queue: (queue.backward, queue.born))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "spaces",
    [
        pytest.param((0,), marks=pytest.mark.nightly),
        (0, 1),
    ],
)
def test_growth_while_kernels_are_under_way_changes_nothing(spaces):
    """The arenas double many times in the middle of a run."""
    results = []
    for capacity in (2, 1024):
        e = engine(
            graphs.chain(2),
            {"f1": len(spaces) - 1},
            spaces,
            fuse=False,
            capacity=capacity,
            max_active_keys=200,
            max_dispatch_size=4,
            policy=largest_forward,
        )
        e.wall(graphs.chain_data(200))
        results.append(e)
    small, large = results
    assert small.executor.arenas.grown >= 2 and large.executor.arenas.grown == 0
    jax.tree.map(np.testing.assert_array_equal, small.gradients, large.gradients)
