"""A runner whose servers and replicas are processes, beside the same one in this process."""

import os
import sys
import time

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import what tests share
TX = optax.chain(optax.clip_by_global_norm(0.2), optax.adam(0.1))
TWO = {
    "machines": [{"host": name, "address": "localhost", "devices": [0]} for name in "ab"],
}


def loss(params, batch):
    """A table, dense variables, random numbers and a second result."""
    noise = jax.random.uniform(
        batch["key"][0],
        (3,),
    )
    rows = params["table"][batch["ids"]]
    error = rows @ (params["w"] + 0.1 * noise) - batch["y"]
    size = jnp.sqrt(batch["hole"] * (rows**2).sum(-1))  # its gradient is NaN where `hole` is 0
    return jnp.mean(error**2) * batch["scale"] + 0.01 * size.mean(), {"error": error}


def batch(seed, scale=1.0, hole=1.0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 20, 8)
    y = rng.normal(size=8).astype(np.float32)
    return {
        "ids": ids,
        "y": y,
        "scale": np.float32(scale),
        "hole": np.float32(hole),
        "key": jax.random.split(jax.random.key(seed), 2),
    }


def make(
    resources,
    folder=None,
    loss=loss,
    tx=TX,
    **options,
):
    rng = np.random.default_rng(0)
    params = {
        "table": rng.normal(size=(20, 3)).astype(np.float32),
        "w": np.ones(3, np.float32),
    }
    if folder is None:
        checkpoint = None
    else:
        checkpoint = px.Checkpoints(folder, every_steps=2)
    config = px.ParallaxConfig(alpha_threshold=1.0, checkpoint=checkpoint, **options)
    return px.get_runner(loss, params, tx, resources, config)


def here(**options):
    first, second = jax.local_devices()[:2]
    return make(
        Resources(
            (
                Machine("a", (first,)),
                Machine("b", (second,)),
            )
        ),
        **options,
    )


def kill(state, number):
    assert state.process is not None
    os.kill(state.process, number)


def equal(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    jax.tree.map(np.testing.assert_array_equal, first, second)


def same_step(runners, seed, following=None):
    """A step of both, of which the second may know the next one's seed. They must agree in all that it tells; how long the second one's took."""
    upcoming = None if following is None else batch(following)
    wanted = runners[0].run(
        batch(seed),
        fetch=("gradients", "norms"),
    )
    start = time.monotonic()
    found = runners[1].run(
        batch(seed),
        fetch=("gradients", "norms"),
        following=upcoming,
    )
    seconds = time.monotonic() - start
    equal(
        (found.loss, found.aux, found.fetched["norms"]),
        (wanted.loss, wanted.aux, wanted.fetched["norms"]),
    )
    rows = []
    for own in (found, wanted):
        rows.append(own.fetched["gradients"]["table"])
    equal(
        (rows[0].ids, rows[0].values),
        (rows[1].ids, rows[1].values),
    )
    assert found.traffic == wanted.traffic and found.traffic.balanced
    return seconds


def same_model(runners):
    equal(
        (runners[0].params, runners[0].opt_state),
        (runners[1].params, runners[1].opt_state),
    )
    equal(*(runner.evaluate(batch(9)) for runner in runners))
    equal(*(runner.rows("table", [3, 0]) for runner in runners))
    assert runners[0].steps == runners[1].steps
