"""Packed batches of ragged examples in a runner: each replica has its own, and tables are found sparse."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.effort import left_to_nightly

import ampjax as amp
import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, SettingsError

WIDTH = 4
N_WORDS = 2000
SPEC = {"words": "int32[t]", "tags": "int32[t]"}
RNG = np.random.default_rng(0)
PARAMS = {
    "embed": RNG.normal(size=(N_WORDS, WIDTH)).astype(np.float32),
    "w": 0.1 * RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32),
    "out": 0.1 * RNG.normal(size=(WIDTH, 2)).astype(np.float32),
}
xent = optax.softmax_cross_entropy_with_integer_labels


def example():
    n = int(RNG.integers(1, 6))
    words = RNG.integers(0, N_WORDS, n)
    return {
        "words": words.astype(np.int32),
        "tags": (words % 2).astype(np.int32),
    }


EXAMPLES = [example() for _ in range(20)]


def tagger(p, s):
    """Reads its table inside of a loop."""

    def step(h, word):
        h = jnp.tanh(p["embed"][word] + h @ p["w"])
        return h, h

    _, states = amp.scan(
        step,
        jnp.zeros(WIDTH),
        s["words"],
    )
    losses = amp.map(
        lambda h, tag: xent(h @ p["out"], tag),
        states,
        s["tags"],
    )
    return amp.mean(losses)


BATCHED = amp.vmap(tagger, SPEC, params=PARAMS)


def loss(p, batch):
    losses = BATCHED(p, batch)
    return px.Weighted(
        (losses * batch.weights).sum(),
        batch.weights.sum(),
    )


def machines():
    """Two machines of a replica each, so that sparse variables are kept by servers."""
    first, second, *_ = jax.local_devices()
    return Resources(
        (
            Machine("a", (first,)),
            Machine("b", (second,)),
        )
    )


def by_one_device(tx, steps):
    """Parameters after plain optax steps on the mean of whole batches."""
    params = jax.tree.map(jnp.asarray, PARAMS)
    state = tx.init(params)
    gradients = jax.jit(jax.grad(lambda p, batch: BATCHED(p, batch).mean()))
    for examples in steps:
        batch = BATCHED.pack(examples)
        grads = gradients(params, batch)
        changes, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, changes)
    return params


def has_params(runner, want):
    """Compares a runner's parameters with some by name."""
    for name, value in want.items():
        np.testing.assert_allclose(
            runner.params[name],
            value,
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.parametrize(
    "run_option",
    ["hybrid", *left_to_nightly(["ps", "ar"])],
)
def test_a_run_on_two_replicas_equals_one_on_one_device(run_option):
    steps = [EXAMPLES[:8], EXAMPLES[8:16], EXAMPLES[13:20]]
    tx = optax.adagrad(0.1)
    runner = px.get_runner(
        loss,
        PARAMS,
        tx,
        machines(),
        px.ParallaxConfig(run_option=run_option),
    )
    for examples in steps:
        parts = BATCHED.pack(examples, size=4, parts=2)
        runner.run(px.Parts(parts.parts))
    has_params(runner, by_one_device(tx, steps))
    told = str(runner.explain())
    assert "embed [2000, 4]  sparse" in told
    assert "rows of a packed batch refer to each other" in told


def test_one_replica_takes_packed_batches_as_they_are():
    steps = [EXAMPLES[:7], EXAMPLES[7:9], EXAMPLES[9:20]]
    tx = optax.adagrad(0.1)
    runner = px.get_runner(
        lambda p, batch: BATCHED(p, batch).mean(),
        PARAMS,
        tx,
        Resources(
            (
                Machine(
                    "a",
                    tuple(jax.local_devices()[:1]),
                ),
            )
        ),
    )
    for examples in steps:
        runner.run(BATCHED.pack(examples))
    has_params(runner, by_one_device(tx, steps))
    assert "embed [2000, 4]  sparse" in str(runner.explain())


def test_a_packed_batch_is_not_cut():
    runner = px.get_runner(
        loss,
        PARAMS,
        optax.sgd(0.1),
        machines(),
    )
    with pytest.raises(SettingsError, match=r"`px\.Parts` of 2 batches, got a packed batch"):
        runner.run(BATCHED.pack(EXAMPLES))
    with pytest.raises(DataError, match="a batch in parts, got one without"):
        _ = BATCHED.pack(EXAMPLES).parts
