"""Remedies in a runner: an asynchronous run is the transform on the whole tree, told how old each replica's gradients are."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax import optim
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import TableError
from ampjax.optim.staleness_state import keep_staleness_if_used, set_staleness

PARAMS = {
    "table": np.linspace(-1, 1, 24, dtype=np.float32).reshape(
        12,
        2,
    ),
    "w": np.array([0.5, -0.5], np.float32),
}
REMEDIES = {
    "shorter steps": lambda: optax.chain(
        optax.sgd(0.2),
        optim.scale_by_staleness(),
    ),
    "annealed": lambda: optax.chain(
        optax.adam(0.1),
        optim.anneal_by_staleness(5),
    ),
    "damped": lambda: optax.chain(
        optim.damp_by_staleness(0.3),
        optax.sgd(0.2),
    ),
    "spikes": lambda: optax.chain(
        optim.compensate_spikes(0.9),
        optax.scale(-0.1),
    ),
    "dropped": lambda: optim.bounded_staleness(optax.sgd(0.2, 0.9), 1),
    "predicted": lambda: optim.predict_weights(optax.sgd(0.05, 0.5)),
}


def loss_fn(params, batch):
    return 0.5 * jnp.sum((params["table"][batch["ids"]] + params["w"] - batch["y"][:, None]) ** 2)


def batches(n=5):
    rng = np.random.default_rng(0)
    result = []
    for _ in range(n):
        result.append(
            {
                "ids": rng.integers(0, 12, 8),
                "y": rng.normal(size=8).astype(np.float32),
            }
        )
    return result


def make(tx, sync=False, **options):
    devices = jax.local_devices()
    machines = Resources(tuple(Machine(name, (devices[i],)) for i, name in enumerate("abcd")))
    return px.get_runner(
        loss_fn,
        PARAMS,
        tx,
        machines,
        px.ParallaxConfig(sync=sync, **options),
    )


def expected(tx, max_staleness):
    """Four replicas in turn, each with a quarter of a batch; gradients are applied in the order in which they were begun."""
    params = PARAMS
    state = tx.init(PARAMS)
    version = 0
    ages = []
    under_way = deque()
    gradient = jax.jit(jax.grad(loss_fn))

    def apply_oldest():
        nonlocal params, state, version
        _, begun, grads = under_way.popleft()
        ages.append(version - begun)
        updates, state = tx.update(
            grads,
            state,
            params,
            staleness=float(ages[-1]),
        )
        params = optax.apply_updates(params, updates)
        version = version + 1

    for batch in batches():
        for replica in range(4):
            while len(under_way) > max_staleness or any(who == replica for who, _, _ in under_way):
                apply_oldest()
            part = {}
            for name, column in batch.items():
                part[name] = column[2 * replica :][:2]
            under_way.append((replica, version, gradient(params, part)))
    while under_way:
        apply_oldest()
    return params, ages


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "threshold",
    [
        pytest.param(
            1e-3,
            id="dense",
            marks=pytest.mark.nightly,
        ),
        pytest.param(2.0, id="table"),
    ],
)
@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_is_told_how_old_gradients_are(name, threshold):
    runner = make(REMEDIES[name](), max_staleness=4, alpha_threshold=threshold)
    for batch in batches():
        runner.run(batch)
    runner.wait()
    assert list(runner.step.tables) == (["['table']"] if threshold > 1 else [])
    wanted, ages = expected(REMEDIES[name](), 4)
    assert max(ages) == 3
    for leaf, value in wanted.items():
        np.testing.assert_allclose(
            runner.params[leaf],
            value,
            rtol=2e-5,
            atol=2e-6,
        )


# Quick flags round the missed updates of rows otherwise for one program than for the other.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "sync",
    [True, pytest.param(False, marks=pytest.mark.users)],
)
def test_without_staleness_it_is_the_plain_optimizer(sync):
    found = []
    for tx in (
        optax.sgd(0.1, 0.5),
        optax.chain(
            optax.sgd(0.1, 0.5),
            optim.scale_by_staleness(),
        ),
    ):
        runner = make(
            tx,
            sync=sync,
            max_staleness=0,
            alpha_threshold=2.0,
            average_dense="sum",
            average_sparse="sum",
        )
        for batch in batches(2):
            runner.run(batch)
        runner.wait()
        found.append(runner.params)
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_a_remedy_that_keeps_versions_of_a_table_is_refused():
    runner = make(
        optax.chain(optim.delayed(optax.sgd(0.1), 2)),
        alpha_threshold=2.0,
    )
    with pytest.raises(TableError, match="one entry per row"):
        runner.run(batches(1)[0])


def test_a_transform_that_does_not_ask_keeps_its_own_state():
    params = {"w": np.ones(2, np.float32)}
    plain = optax.adam(0.1)
    assert keep_staleness_if_used(plain, params) is plain
    told = keep_staleness_if_used(optim.scale_by_staleness(), params)
    assert set_staleness(told.init(params), 3).staleness == 3
