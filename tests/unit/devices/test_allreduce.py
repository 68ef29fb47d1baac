"""The AllReduce of replicas: against NumPy, on one to four devices, without a second compilation."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.devices import allreduce
from ampjax.devices.allreduce import all_reduce_sum, average
from ampjax.errors import ParameterError, SettingsError

HOMES = st.lists(
    st.integers(0, 3),
    min_size=1,
    max_size=8,
)


def devices(homes):
    return [jax.devices()[home] for home in homes]


def replicas(homes, seed=0):
    rng = np.random.default_rng(seed)
    host = []
    for _ in homes:
        host.append(
            {
                "w": rng.normal(size=(3, 2)).astype(np.float32),
                "b": [rng.normal(size=()).astype(np.float32)],
            }
        )
    return host, [
        jax.device_put(tree, device) for tree, device in zip(host, devices(homes), strict=True)
    ]


@pytest.mark.nightly
@given(HOMES, st.integers(0, 100))
@settings(max_examples=60)
@pytest.mark.slow
def test_the_mean_on_each_replicas_device(homes, seed):
    host, trees = replicas(homes, seed)
    results = average(trees)
    assert len(results) == len(homes)
    for result, device in zip(results, devices(homes), strict=True):
        assert jax.tree.structure(result) == jax.tree.structure(host[0])
        for path in (lambda t: t["w"], lambda t: t["b"][0]):
            leaf = path(result)
            assert leaf.devices() == {device}
            assert leaf.committed
            assert leaf.dtype == np.float32
            np.testing.assert_allclose(
                leaf,
                np.mean(
                    [path(t) for t in host],
                    axis=0,
                    dtype=np.float64,
                ),
                rtol=1e-5,
                atol=1e-6,
            )


@pytest.mark.nightly
@given(HOMES, st.integers(0, 1 << 16))
@settings(max_examples=20)
def test_equal_replicas_stay_what_they_are_to_the_bit(homes, seed):
    """Three times a number, divided by three, is not always that number."""
    rng = np.random.default_rng(seed)
    own = {
        "w": np.append(
            rng.normal(size=20),
            [np.inf, -np.inf, -0.0, 1e38, 1e-45],
        ).astype(np.float32),
        "h": rng.normal(size=5).astype(jnp.bfloat16),
    }
    for result in average([own] * len(homes), devices(homes)):
        assert jax.tree.map(lambda x: np.asarray(x).tobytes(), result) == jax.tree.map(
            lambda x: x.tobytes(), own
        )


@pytest.mark.nightly
@given(HOMES)
@settings(max_examples=20)
def test_all_results_are_the_same_bits(homes):
    _, trees = replicas(homes)
    results = average(trees)
    assert all(np.array_equal(result["w"], results[0]["w"]) for result in results)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "homes",
    [[0], [1, 1], [0, 1], [0, 1, 2, 3], [2, 0, 2, 2, 3]],
)
def test_the_second_call_compiles_nothing(homes):
    compiled = []
    _, trees = replicas(homes)
    average(trees)
    trees = average(trees)
    hear = lambda name, *args, **kwargs: compiled.append(name)
    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        jax.block_until_ready(average(trees))
        assert compiled == []
        jax.jit(lambda x: x + len(homes))(1.0)
        assert compiled, "the listener hears compilations"
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def test_every_result_may_be_donated():
    _, trees = replicas([0, 0, 1, 1])
    results = average(trees)
    step = jax.jit(
        lambda tree: jax.tree.map(lambda x: x + 1, tree),
        donate_argnums=0,
    )
    after = [step(result) for result in results]
    assert all(np.isfinite(tree["w"]).all() for tree in [*after, *trees])


def test_a_single_replica_is_itself_in_a_new_buffer():
    host, (tree,) = replicas([2])
    (result,) = average([tree])
    np.testing.assert_array_equal(result["w"], host[0]["w"])
    assert result["w"].unsafe_buffer_pointer() != tree["w"].unsafe_buffer_pointer()


def test_devices_may_be_given():
    host, _ = replicas([0, 0, 0])
    results = average(host, devices([3, 1, 3]))
    assert [r["w"].devices() for r in results] == [{d} for d in devices([3, 1, 3])]
    mean = np.mean(
        [t["w"] for t in host],
        axis=0,
        dtype=np.float64,
    )
    np.testing.assert_allclose(
        results[1]["w"], mean, rtol=1e-6, atol=1e-7
    )  # numbers around 1 may cancel in a mean


def test_numpy_replicas_may_be_overwritten_at_once():
    host = []
    for i in range(2):
        host.append(
            {
                "w": np.full(
                    (200, 100),
                    float(i),
                    np.float32,
                )
            }
        )
    results = average(host)
    for tree in host:
        tree["w"][:] = np.nan
    assert (np.asarray(results[0]["w"]) == 0.5).all()


def test_half_precision_is_summed_in_float32():
    trees = []
    for v, d in zip(
        (60000.0, 50000.0, 60000.0),
        devices([0, 0, 1]),
        strict=True,
    ):
        trees.append(
            jax.device_put(
                {
                    "h": jnp.full(3, v, jnp.float16),
                    "b": jnp.full(3, v, jnp.bfloat16),
                },
                d,
            )
        )
    result = average(trees)[2]
    assert result["h"].dtype == jnp.float16
    assert result["b"].dtype == jnp.bfloat16
    assert result["h"].tolist() == [float(np.float16(170000 / 3))] * 3  # the sum is beyond float16


def test_leaves_that_are_no_floats_stay_each_replicas_own():
    trees = []
    for i, d in enumerate(devices([0, 1])):
        trees.append(
            jax.device_put(
                {
                    "w": jnp.full(2, float(i)),
                    "count": jnp.int32(i),
                    "key": jax.random.key(i),
                },
                d,
            )
        )
    results = average(trees)
    assert [int(r["count"]) for r in results] == [0, 1]
    assert [jax.random.key_data(r["key"])[1] for r in results] == [0, 1]
    assert [r["w"].tolist() for r in results] == [[0.5, 0.5]] * 2


def test_trees_without_floats():
    assert average([(), ()]) == [(), ()]
    assert [int(r) for r in average([jnp.int32(1), jnp.int32(2)])] == [1, 2]


def test_all_reduce_sum_of_integers():
    sums = all_reduce_sum(
        [jax.device_put(jnp.int32(i), d) for i, d in enumerate(devices([0, 1, 1]))],
        devices([0, 1, 1]),
    )
    assert [int(s) for s in sums] == [3, 3, 3]


@pytest.mark.nightly
def test_many_outstanding_collectives_do_not_hang():
    """Without the window this hangs at 33 on JAX 0.10.2 and then ends the process."""
    _, trees = replicas([0, 1, 2])
    chains = [trees, average(trees)]
    for _ in range(60):
        chains = [average(tree) for tree in chains]
        assert len(allreduce._window) <= allreduce.MAX_OUTSTANDING
    jax.block_until_ready(chains)


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (
            {
                "w": np.zeros((2, 4), np.float32),
                "b": np.zeros(2, np.float32),
            },
            "replica 1, parameter `['w']`: expected shape (2, 3) float32, as in replica 0, got shape (2, 4) float32.",
        ),
        (
            {
                "w": np.zeros((2, 3), np.float16),
                "b": np.zeros(2, np.float32),
            },
            "got shape (2, 3) float16.",
        ),
        (
            {"w": np.zeros((2, 3), np.float32)},
            "replica 1, parameter `['b']`: expected shape (2,) float32, as in replica 0, got no such leaf.",
        ),
        (
            {
                "w": np.zeros((2, 3), np.float32),
                "b": np.zeros(2, np.float32),
                "c": 1.0,
            },
            "replica 1, parameter `['c']`: expected no such leaf, as in replica 0",
        ),
    ],
)
def test_replicas_that_differ(second, text):
    first = {
        "w": np.zeros((2, 3), np.float32),
        "b": np.zeros(2, np.float32),
    }
    with pytest.raises(ParameterError, match=re.escape(text)):
        average([first, second])


def test_structures_that_differ_with_equal_paths():
    with pytest.raises(
        ParameterError, match=r"replica 1: expected the structure .*, as in replica 0, got"
    ):
        average([[1.0], (1.0,)])


def test_no_replicas():
    with pytest.raises(ParameterError, match="expected at least one replica, got none"):
        average([])


def test_as_many_devices_as_replicas():
    with pytest.raises(SettingsError, match="expected 2 devices, one for each replica, got 1"):
        average([1.0, 2.0], jax.devices()[:1])


def test_a_replica_on_two_devices():
    torn = {
        "a": jax.device_put(1.0, jax.devices()[0]),
        "b": jax.device_put(1.0, jax.devices()[1]),
    }
    with pytest.raises(
        ParameterError, match=r"replica 0: expected all its arrays on one device, got `\['.'\]` on"
    ):
        average([torn])
