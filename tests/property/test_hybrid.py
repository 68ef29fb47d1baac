"""Law 9: a transformed data-parallel step equals the single-device step on the joined batch, evaluated operation by operation in float64."""

import functools
import sys

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, RemoteDevice, Resources
from ampjax.optim.average import parameter_average
from ampjax.testing.oracles import ORACLES

pytestmark = pytest.mark.users

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import a test
ROWS = 40
DIM = 3
EXAMPLES = 8
SCHEDULE = optax.exponential_decay(0.02, transition_steps=1, decay_rate=0.7)
# Steps are small enough, and Adam's eps large enough, that rounding is not amplified: the law is about the step, not about chaos.
# Adam's decay rates are sums of few powers of two: with optax's 0.999, `1 - b2**t` has lost all but four digits in float32 at the first steps.
OPTIMIZERS = {
    "sgd": optax.sgd(SCHEDULE),
    "momentum": optax.chain(
        optax.add_decayed_weights(0.01),
        optax.sgd(0.02, momentum=0.9),
    ),
    "adagrad": optax.chain(
        optax.clip_by_global_norm(0.2),
        optax.adagrad(0.2),
    ),
    "adam": optax.chain(
        optax.clip_by_global_norm(0.2),
        optax.adam(0.05, b1=0.875, b2=0.9375, eps=1e-3),
        parameter_average(0.9),
    ),
}


def loss(params, batch, reduce=jnp.mean):
    """Two tables, one of them read twice; a matrix and a bias."""
    x = (
        params["words"][batch["ids"]].mean(1)
        + params["more"][batch["other"]] * params["words"][batch["other"]]
    )
    return reduce((jnp.tanh(x @ params["w"] + params["b"]) - batch["y"]) ** 2), x.sum(-1)


def mean_loss(params, batch):
    return loss(params, batch)


def sum_loss(params, batch):
    return loss(params, batch, jnp.sum)


LOSSES = {"mean": mean_loss, "sum": sum_loss}


def machines(*sizes):
    """Parts of this process, by their numbers of replicas; or, by their names, machines with a server's and a worker's process each."""
    if isinstance(sizes[0], str):
        return Resources(
            tuple(Machine(name, (RemoteDevice(name, 0),), address="localhost") for name in sizes)
        )
    devices = iter(jax.local_devices())
    return Resources(
        tuple(Machine(f"m{i}", tuple(next(devices) for _ in range(n))) for i, n in enumerate(sizes))
    )


def first_params(rng):
    shapes = {
        "words": (ROWS, DIM),
        "more": (ROWS, DIM),
        "w": (DIM, 2),
        "b": (2,),
    }
    result = {}
    for name, shape in shapes.items():
        result[name] = 0.5 * rng.normal(size=shape).astype(np.float32)
    return result


def a_batch(rng):
    # Few distinct ids, so that rows are shared between examples, replicas and machines, and some are never touched. Targets beyond
    # tanh's range, so that a gradient is no small difference of large terms, of which rounding would be the larger part.
    ids = rng.integers(
        0,
        rng.integers(2, ROWS),
        (EXAMPLES, 3),
    )
    return {
        "ids": ids,
        "other": rng.integers(0, ROWS, EXAMPLES),
        "y": rng.uniform(
            2,
            3,
            (EXAMPLES, 2),
        ).astype(np.float32),
    }


EAGER = ORACLES["eager"]


def plain_steps(name, reduction, params, batches):
    """The oracle: optax's steps on one device, operation by operation in float64; last parameters and state, and each step's loss, aux and gradient norm."""
    tx = OPTIMIZERS[name]
    seen = []
    with EAGER.scope():
        params = jax.tree.map(jnp.asarray, EAGER.cast(params))
        state = tx.init(params)
        for batch in batches:
            batch = jax.tree.map(jnp.asarray, EAGER.cast(batch))
            (value, aux), grads = jax.value_and_grad(LOSSES[reduction], has_aux=True)(
                params,
                batch,
            )
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            seen.append(
                jax.tree.map(
                    np.asarray,
                    (value, aux, optax.tree.norm(grads)),
                )
            )
    return params, state, seen


CASES = {
    "hybrid-adam": ("adam", "mean", (2, 2), {}),
    "hybrid-momentum-sum": ("momentum", "sum", (1, 3), {"local_aggregation": False}),
    "hybrid-momentum-one-replica": ("momentum", "mean", (1,), {}),
    "hybrid-adagrad-one-replica": ("adagrad", "mean", (1,), {}),
    "ar-sgd-sum": ("sgd", "sum", (1, 1), {"run_option": "ar"}),
    "ps-adam-sum": (
        "adam",
        "sum",
        (1, 2, 1),
        {"run_option": "ps", "boundary_among_servers": False, "local_aggregation": False},
    ),
    "hybrid-adam-processes": ("adam", "mean", ("a", "b"), {}),
    "ps-momentum-sum-processes": ("momentum", "sum", ("a", "b"), {"run_option": "ps"}),
    "ar-adam-processes": ("adam", "mean", ("a", "b"), {"run_option": "ar"}),
}


# Ordinary runs have this law for replicas in one process, and compare processes with these bit for bit (`unit/parallel/workers`).
MARKS = {case: pytest.mark.nightly for case in CASES if case.endswith("-processes")}
# One case for each way to aggregate is left to ordinary runs, the others to the run that compiles as users do.
MARKS |= {
    case: pytest.mark.users
    for case in CASES
    if case.startswith("hybrid-momentum") or "adagrad" in case
}


@functools.cache
def a_runner(case):
    """One runner for all examples of a case, and what it saved before its first step: compilations are shared."""
    name, reduction, sizes, options = CASES[case]
    # Batches this small touch much of a table: it shall be one all the same.
    config = px.ParallaxConfig(
        average_dense=reduction, average_sparse=reduction, alpha_threshold=2.0, **options
    )
    rng = np.random.default_rng(0)
    return px.get_runner(
        LOSSES[reduction],
        first_params(rng),
        OPTIMIZERS[name],
        machines(*sizes),
        config,
    ).build(a_batch(rng))


@pytest.mark.first_case
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=MARKS.get(case, ())) for case in CASES],
)
@given(partitions=st.tuples(st.integers(1, 16), st.integers(1, 16)), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(5))
def test_a_step_equals_the_single_device_step(case, partitions, seed):
    name, reduction, _, _ = CASES[case]
    runner = a_runner(case)
    rng = np.random.default_rng(seed)
    params = first_params(rng)
    batches = [a_batch(rng) for _ in range(3)]
    runner.reset(params)
    for path, count in zip(
        runner.step.homes.rows,
        partitions,
        strict=True,
    ):
        home = runner.step.homes.rows[path]
        home.resplit(
            count,
            [p % len(runner.setup.resources.servers) for p in range(count)],
        )
    params, state, seen = plain_steps(name, reduction, params, batches)
    for batch, (value, aux, norm) in zip(batches, seen, strict=True):
        metrics = runner.run(batch, fetch=("global_norm",))
        assert metrics.loss == pytest.approx(float(value), rel=1e-5)
        np.testing.assert_allclose(
            np.asarray(metrics.aux).ravel(),
            aux,
            rtol=1e-4,
            atol=1e-5,
        )
        assert metrics.fetched["global_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert metrics.traffic.balanced
    close(runner.params, params)
    close(runner.opt_state, state)


def close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(
        jax.tree.leaves(ours),
        jax.tree.leaves(theirs),
        strict=True,
    ):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() <= 1e-5 * max(
            np.abs(np.asarray(b)).max(), 1e-30
        )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "names",
    [
        (1, 1),
        pytest.param(
            ("a",),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["here", "a-process"],
)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(3))
def test_asynchronous_steps_without_staleness_are_ordinary_training(names, seed):
    runner = an_asynchronous_runner(names)
    rng = np.random.default_rng(seed)
    params = first_params(rng)
    batches = [a_batch(rng) for _ in range(2)]
    runner.reset(params)
    size = EXAMPLES // len(names)
    parts = []
    for b in batches:
        for i in range(0, EXAMPLES, size):
            parts.append({k: v[i : i + size] for k, v in b.items()})
    params, state, _ = plain_steps("adagrad", "mean", params, parts)
    for batch in batches:
        metrics = runner.run(batch)
        assert set(metrics.staleness) <= {0}
    close(runner.params, params)
    close(runner.opt_state, state)


@functools.cache
def an_asynchronous_runner(names):
    config = px.ParallaxConfig(sync=False, max_staleness=0, alpha_threshold=2.0)
    rng = np.random.default_rng(0)
    runner = px.get_runner(
        mean_loss, first_params(rng), OPTIMIZERS["adagrad"], machines(*names), config
    )
    return runner.build(a_batch(rng))


def test_staleness_is_bounded_and_reached():
    def dense_loss(params, batch):
        return jnp.mean((batch @ params["w"]) ** 2)

    config = px.ParallaxConfig(sync=False, max_staleness=1)
    runner = px.get_runner(
        dense_loss,
        {"w": np.ones(2, np.float32)},
        optax.sgd(0.1),
        machines(1, 1, 1),
        config,
    )
    seen = []
    for _ in range(3):
        for age in runner.run(
            np.ones(
                (3, 2),
                np.float32,
            )
        ).staleness:
            seen.append(age)
    assert set(seen) == {0, 1}
