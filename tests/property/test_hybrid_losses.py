"""Law 9 for losses that reach over replicas: weighted, gathered and averaged ones give the joined batch's loss, aux and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources

ROWS = 40
DIM = 3
EXAMPLES = 8
LENGTH = 5
RATE = 0.1


def machines(*sizes):
    devices = iter(jax.local_devices())
    return Resources(
        tuple(Machine(f"m{i}", tuple(next(devices) for _ in range(n))) for i, n in enumerate(sizes))
    )


def first_params(rng):
    result = {}
    for name, shape in {
        "t": (ROWS, DIM),
        "w": (DIM, DIM),
    }.items():
        result[name] = rng.normal(size=shape).astype(np.float32)
    return result


def a_batch(rng, lengths):
    """Sentences with padding. Lengths are those of the examples; a replica may have nothing but padding."""
    return {
        "ids": rng.integers(0, ROWS, (EXAMPLES, LENGTH)),
        "y": rng.normal(size=(EXAMPLES, LENGTH, DIM)).astype(np.float32),
        "mask": (np.arange(LENGTH) < np.array(lengths)[:, None]).astype(np.float32),
        "place": np.arange(EXAMPLES),
    }


def errors(params, batch):
    return ((jnp.tanh(params["t"][batch["ids"]] @ params["w"]) - batch["y"]) ** 2).sum(-1)


def lm1b(params, batch):
    """flax's examples `lm1b` and `wmt`: sums over tokens that are no padding."""
    lost = (errors(params, batch) * batch["mask"]).sum()
    return px.Weighted(lost, batch["mask"].sum()), {"lost": lost}


def learnt(params, batch):
    """Weights that have a gradient."""
    weights = jax.nn.sigmoid(params["t"][batch["ids"]].sum(-1)) * batch["mask"]
    return px.Weighted(
        (weights * errors(params, batch)).sum(),
        weights.sum(),
    )


def two_towers(params, batch):
    """Negatives are all other examples of the joined batch."""
    one, other = (jnp.tanh(params["t"][batch["ids"][:, i]] @ params["w"]) for i in (0, 1))
    logits = 3 * one @ px.all_gather(other).T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["place"]).mean()


def normalised(params, batch):
    """Batch norm in the loss."""
    h = params["t"][batch["ids"]].sum(1) @ params["w"]
    centred = h - px.mean(h, axis=0)
    h = centred / jnp.sqrt(px.mean(centred**2, axis=0) + 0.1)
    return jnp.mean((jnp.tanh(h) - batch["y"][:, 0]) ** 2)


def in_a_loop(params, batch):
    """Collectives in a scan, in a branch, under `checkpoint` and in a call that is compiled apart."""

    @jax.jit
    def centred(h):
        return h - px.mean(h, axis=0, keepdims=True)

    def layer(h, table_ids):
        h = jnp.tanh(centred(h + params["t"][table_ids]) @ params["w"])
        return jax.lax.cond(
            True,
            lambda: h * px.mean(h**2),
            lambda: h,
        ), px.all_gather(h).sum()

    h, sums = jax.lax.scan(
        jax.checkpoint(layer),
        jnp.ones((len(batch["ids"]), DIM)),
        batch["ids"].T,
    )
    return jnp.mean((h - batch["y"][:, 0]) ** 2) + 1e-2 * sums.mean()


LOSSES = {
    "lm1b": lm1b,
    "learnt": learnt,
    "two_towers": two_towers,
    "normalised": normalised,
    "in_a_loop": in_a_loop,
}
HOMES = {
    "hybrid": ((1, 1, 2), {}),
    "ps": ((1, 1), {"run_option": "ps"}),
    "ar": ((1, 1), {"run_option": "ar"}),
    "dense": ((4,), {"keep_dense": ("t",)}),
}
CASES = [
    (loss, home)
    for loss in LOSSES
    for home in HOMES
    if loss in ("lm1b", "two_towers") or home == "hybrid"
]


@functools.cache
def a_runner(loss, home):
    sizes, options = HOMES[home]
    rng = np.random.default_rng(0)
    # The first batch is the check of the check: a loss that reaches over replicas means the same when it is cut.
    config = px.ParallaxConfig(alpha_threshold=2.0, check_equivalence="error", **options)
    runner = px.get_runner(
        LOSSES[loss],
        first_params(rng),
        optax.sgd(RATE),
        machines(*sizes),
        config,
    )
    return runner.build(a_batch(rng, range(1, 9)))


@functools.cache
def on_one_device(loss):
    """The same loss function, as it is, on one device."""

    def value(params, batch):
        out = LOSSES[loss](params, batch)
        out, aux = out if isinstance(out, tuple) else (out, None)
        return (out.value if isinstance(out, px.Weighted) else out), aux

    return jax.jit(jax.value_and_grad(value, has_aux=True))


LENGTHS = st.lists(
    st.integers(0, LENGTH),
    min_size=EXAMPLES,
    max_size=EXAMPLES,
).filter(any)


@pytest.mark.users
@pytest.mark.parametrize(("loss", "home"), CASES)
@given(
    lengths=LENGTHS,
    seed=st.integers(0, 2**32 - 1),
)
@example(lengths=[0] * 7 + [5], seed=0)
@settings(max_examples=examples(6))
def test_a_step_is_that_of_the_joined_batch(loss, home, lengths, seed):
    runner = a_runner(loss, home)
    rng = np.random.default_rng(seed)
    params = first_params(rng)
    batch = a_batch(rng, lengths)
    runner.reset(params)
    (value, aux), grads = on_one_device(loss)(params, batch)
    metrics = runner.run(batch)
    assert metrics.loss == pytest.approx(float(value), rel=1e-5, abs=1e-6)
    if aux is not None:  # each replica's own
        assert np.asarray(metrics.aux["lost"]).sum() == pytest.approx(float(aux["lost"]), rel=1e-5)
    for name, leaf in runner.params.items():
        step = RATE * np.asarray(grads[name])
        # Parameters are about 1, and their rounding is what limits a small step.
        np.testing.assert_allclose(
            leaf - params[name],
            -step,
            rtol=1e-4,
            atol=1e-6 * max(1, np.abs(step).max()),
        )


@given(
    lengths=st.lists(
        st.integers(1, LENGTH),
        min_size=EXAMPLES,
        max_size=EXAMPLES,
    ),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(4))
def test_without_a_barrier_each_replica_has_its_own_quotient(lengths, seed):
    runner = alone()
    rng = np.random.default_rng(seed)
    params = first_params(rng)
    batch = a_batch(rng, lengths)
    runner.reset(params)
    runner.run(batch)
    for half in range(2):
        part = {}
        for name, leaf in batch.items():
            part[name] = leaf[4 * half : 4 * half + 4]
        _, grads = on_one_device("lm1b")(params, part)
        params = jax.tree.map(
            lambda leaf, grad: leaf - RATE * grad,
            params,
            grads,
        )
    for name, leaf in runner.params.items():
        np.testing.assert_allclose(
            leaf,
            params[name],
            rtol=1e-4,
            atol=1e-5,
        )


@functools.cache
def alone():
    config = px.ParallaxConfig(
        sync=False, max_staleness=0, alpha_threshold=2.0, check_equivalence="off"
    )
    rng = np.random.default_rng(0)
    runner = px.get_runner(
        lm1b,
        first_params(rng),
        optax.sgd(RATE),
        machines(1, 1),
        config,
    )
    return runner.build(a_batch(rng, range(1, 9)))


@given(
    shape=st.tuples(
        st.integers(1, 4),
        st.integers(1, 4),
    ),
    axis=st.sampled_from([None, 0, (0, 1)]),
    keepdims=st.booleans(),
    dtype=st.sampled_from([np.float32, np.int32, jnp.bfloat16]),
)
@settings(max_examples=examples(10))
def test_on_one_device_they_are_the_mean_and_the_identity(shape, axis, keepdims, dtype):
    x = jnp.arange(shape[0] * shape[1]).reshape(shape).astype(dtype)
    ours = px.mean(x, axis, keepdims)
    theirs = jnp.mean(x, axis, keepdims=keepdims)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(
        np.asarray(ours, np.float32),
        np.asarray(theirs, np.float32),
    )
    assert px.all_gather({"x": x})["x"] is x
