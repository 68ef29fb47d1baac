"""A loader may fill one buffer again and again: what replicas read after `run` has returned is no memory of the user's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.sparse.rows.aligned_arrays import aligned_empty

PARAMS = {
    "table": np.linspace(-1, 1, 40, dtype=np.float32).reshape(
        20,
        2,
    ),
    "w": np.ones((3, 2), np.float32),
}


def loss(params, batch):
    rows = params["table"][batch["ids"]] + batch["x"] @ params["w"]
    return jnp.mean((rows.sum(-1) - batch["y"]) ** 2)


def batches(n=4):
    rng = np.random.default_rng(0)
    for _ in range(n):
        x = rng.normal(size=(8, 3)).astype(np.float32)
        y = rng.normal(size=8).astype(np.float32)
        yield {
            "ids": rng.integers(0, 20, 8).astype(np.int32),
            "x": x,
            "y": y,
        }


def make(**options):
    machines = Resources(
        (
            Machine(
                "a",
                tuple(jax.local_devices()[:1]),
            ),
        )
    )
    return px.get_runner(
        loss,
        PARAMS,
        optax.adagrad(0.1),
        machines,
        px.ParallaxConfig(alpha_threshold=2.0, **options),
    )


def program_of(runner):
    """The program of its replicas, where it is kept."""
    step = runner.step
    if hasattr(step, "_programs"):
        return step._programs, False
    assert step.replicas._gradients  # it is made when it is first asked for
    return vars(step.replicas), "_gradients"


@pytest.mark.parametrize(
    "options",
    [{"sync": False, "max_staleness": 1}, {"keep_dense": ("table",), "check_finite": False}],
    ids=["asynchronous", "dense, unchecked"],
)
def test_replicas_do_not_read_what_may_be_written_to(options):
    buffer = {
        name: aligned_empty(array.shape, array.dtype) for name, array in next(batches()).items()
    }
    runner = make(**options)
    seen = []
    results = []
    for batch in batches():
        for name, array in batch.items():
            buffer[name][...] = array  # aligned arrays: JAX takes such as they are
        runner.build(buffer)
        place, name = program_of(runner)
        plain = place[name]

        def program(*args, plain=plain):
            leaves = []
            for leaf in jax.tree.leaves(args):
                leaves.append(np.asarray(leaf))
            seen.extend(np.shares_memory(leaf, own) for leaf in leaves for own in buffer.values())
            return plain(*args)

        place[name] = program
        results.append(runner.run(buffer))
        place[name] = plain
        for array in buffer.values():
            array[...] = 17
    assert seen and not any(seen)
    fresh = make(**options)
    assert [result.loss for result in results] == [fresh.run(batch).loss for batch in batches()]
    jax.tree.map(np.testing.assert_array_equal, runner.params, fresh.params)
