"""What a mapped program has to do, whatever of JAX's makes it: against `jit(shard_map)` by hand, and arrays without devices."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ampjax
from ampjax.devices.mapped import map_over_devices

AXIS = "replica"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 2))
Y = RNG.normal(size=(3, 2))
SHARED = RNG.normal(size=2)


def devices(n):
    return jax.devices()[1 : n + 1]


def step(tree, shared):
    """A collective, values of one's own, a nested result, and one that is the same everywhere."""
    total = jax.lax.psum(
        jnp.sum(tree["x"], 0),
        AXIS,
    )
    return {
        "total": total,
        "own": (tree["x"] * shared, tree["y"] - total),
    }, jax.lax.axis_index(AXIS)


def by_hand(tree, shared):
    """The same by `jax.shard_map`."""
    mesh = Mesh(np.array(devices(3)), (AXIS,))
    entry = PartitionSpec(AXIS)

    def one(tree, shared):
        results = step(
            jax.tree.map(lambda x: x[0], tree),
            shared,
        )
        return jax.tree.map(lambda x: x[None], results)

    return jax.jit(
        jax.shard_map(
            one,
            mesh=mesh,
            in_specs=(entry, PartitionSpec()),
            out_specs=entry,
        )
    )(tree, shared)


@pytest.fixture(scope="module")
def program():
    return map_over_devices(step, devices(3), AXIS, in_axes=(0, None))


def test_entries_are_those_of_a_mapping_by_hand(program):
    tree = {"x": X, "y": Y}
    got = program(tree, SHARED)
    want = by_hand(tree, SHARED)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(want),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        got[0]["total"],
        np.broadcast_to(
            X.sum((0, 1)),
            (3, 2),
        ),
        rtol=1e-6,
    )
    assert got[1].tolist() == [0, 1, 2]


def test_entry_i_lies_on_device_i(program):
    results = program({"x": X, "y": Y}, SHARED)
    for leaf in jax.tree.leaves(results):
        shards = sorted(
            leaf.addressable_shards,
            key=lambda shard: shard.index[0].start,
        )
        assert [shard.device for shard in shards] == devices(3)
        assert {shard.data.shape for shard in shards} == {(1, *leaf.shape[1:])}


def test_donated_buffers_are_gone_and_others_stay():
    add = map_over_devices(
        lambda a, b: a + b,
        devices(2),
        None,
        donate_argnums=0,
    )
    sharding = NamedSharding(
        Mesh(np.array(devices(2)), (AXIS,)),
        PartitionSpec(AXIS),
    )
    a, b = (jax.device_put(np.ones((2, 5), np.float32), sharding) for _ in range(2))
    assert add(a, b).sum() == 20
    assert a.is_deleted()
    assert not b.is_deleted()


def test_the_compiled_program_can_be_read(program):
    shapes = jax.eval_shape(
        lambda: (
            {"x": jnp.asarray(X), "y": jnp.asarray(Y)},
            jnp.asarray(SHARED),
        )
    )
    assert "all-reduce" in program.lower(*shapes).compile().as_text()


def test_nothing_is_compiled_twice(program):
    program({"x": X, "y": Y}, SHARED)
    with jax.no_tracing():
        program({"x": X + 1, "y": Y}, SHARED)


def test_only_one_file_knows_jaxs_pmap():
    root = Path(ampjax.__file__).parent
    assert [path.name for path in root.rglob("*.py") if "pmap" in path.read_text()] == ["mapped.py"]
