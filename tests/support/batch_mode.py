"""A small model, its data, and trainers of it by whole batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp

SPEC = {"words": "int32[n]", "x": "float32[]", "y": "float32[]"}
N_WORDS = 7
WIDTH = 3


def params():
    rng = np.random.default_rng(5)
    return {
        "embed": rng.normal(size=(N_WORDS, WIDTH)).astype(np.float32),
        "linear": {
            "w": rng.normal(size=(WIDTH,)).astype(np.float32),
            "b": np.float32(0.1),
        },
        "spare": np.ones(2, np.float32),
    }


def model(p, s):
    """A regression on the mean of embedded words; `spare` is read by nothing."""

    def feature(word):
        h = jnp.tanh(p["embed"][word])
        amp.metric("size", jnp.sum(h**2))
        return h

    h = amp.mean(amp.map(feature, s["words"]))
    guess = s["x"] * (h @ p["linear"]["w"] + p["linear"]["b"])
    amp.output("guess", guess)
    loss = (guess - s["y"]) ** 2
    return loss, {"near": loss < 0.3}


def dropped(p, s):
    """The same with dropout."""

    def feature(word):
        return amp.dropout(p["embed"][word], 0.5)

    h = amp.mean(amp.map(feature, s["words"]))
    return (h @ p["linear"]["w"] + p["linear"]["b"] - s["y"]) ** 2


def examples(n=21, seed=1):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        words = rng.integers(
            0,
            N_WORDS,
            rng.integers(1, 6),
        )
        found.append(
            {
                "words": words.astype(np.int32),
                "x": np.float32(rng.normal()),
                "y": np.float32(rng.normal()),
            }
        )
    return found


@functools.cache
def compiled(function=model):
    return amp.compile(function, params(), SPEC)


def trainer(
    mode="batch",
    tx=None,
    function=model,
    keys=4,
    **options,
):
    own = compiled(function)
    return amp.Trainer(
        own.graph,
        optax.adam(0.05) if tx is None else tx,
        params=own.node_params(params()),
        mode=mode,
        max_active_keys=keys,
        **options,
    )


def plain_optax(
    tx,
    data,
    epochs,
    size=4,
    seed=0,
    function=model,
):
    """Parameters after training on the mean of the function as it is, in the trainer's order."""
    own = jax.tree.map(jnp.asarray, params())
    state = tx.init(own)
    rng = np.random.default_rng(seed)

    def mean(p, batch):
        losses = [function(p, each) for each in batch]
        losses = [each[0] if isinstance(each, tuple) else each for each in losses]
        return sum(losses) / len(losses)

    for _ in range(epochs):
        order = rng.permutation(len(data))
        for start in range(0, len(data), size):
            batch = [data[i] for i in order[start : start + size]]
            loss, grads = jax.value_and_grad(mean)(
                own,
                batch,
            )
            step = optax.with_extra_args_support(tx)
            changes, state = step.update(
                grads,
                state,
                own,
                value=loss,
            )
            own = optax.apply_updates(
                own,
                changes,
            )
    return own


def same_bits(one, other):
    same = jax.tree.map(
        np.array_equal,
        one,
        other,
    )
    return jax.tree.all(same)


def assert_close(one, other, rtol=2e-5):
    for a, b in zip(
        jax.tree.leaves(one),
        jax.tree.leaves(other),
        strict=True,
    ):
        np.testing.assert_allclose(
            a,
            b,
            rtol=rtol,
            atol=2e-6,
        )
