"""Rows that only fill a batch up: reductions and loops over no elements, such as the logarithm of a sum, must not show in gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp

SPEC = {
    "chars": "int32[w,c]",
    "edges": amp.Edges(
        "n",
        kinds=1,
    ),
    "x": "int32[n]",
    "k": "int32[]",
}
PARAMS = {
    "e": np.ones(
        4,
        np.float32,
    ),
    "w": np.float32(1.5),
}


def example(seed, n):
    rng = np.random.default_rng(seed)
    nodes = np.arange(n, dtype=np.int32)
    return {
        "chars": [
            rng.integers(0, 4, 3).astype(
                np.int32,
            )
            for _ in range(n)
        ],
        "edges": amp.Edges(nodes, nodes),
        "x": nodes % 4,
        "k": np.int32(n - 2),
    }


EXAMPLES = [
    example(seed, n)
    for seed, n in enumerate(
        (3, 4, 4),
    )
]  # rows are rounded up to 12


def embedded(p, xs):
    return amp.map(lambda x: p["e"][x], xs)


def in_words(p, s):
    def of(chars):
        numbers = embedded(p, chars)
        return (
            amp.logsumexp(numbers) * p["w"]
            + jnp.log(
                amp.sum(numbers),
            )
            * p["w"]
        )

    return amp.sum(amp.map(of, s["chars"]))


def in_examples(p, s):
    numbers = embedded(p, s["x"])
    return (
        jnp.log(amp.sum(numbers)) * p["w"]
        + jnp.sqrt(
            jnp.max(numbers),
        )
        * p["w"]
    )


def after_a_loop(p, s):
    def step(h, x):
        return h + p["e"][x] + amp.sum(
            embedded(p, s["x"]),
        ), None

    return (
        jnp.log(
            amp.scan(step, 0.0, s["x"])[0],
        )
        * p["w"]
    )


def after_a_while_loop(p, s):
    def test(h):
        return (
            amp.read(
                (h < s["k"]).astype(int),
            )
            == 1
        )

    return (
        jnp.log(
            amp.while_loop(
                test,
                lambda h: h + p["e"][0],
                0.0,
                most=5,
            ),
        )
        * p["w"]
    )


def in_carried_sequences(p, s):
    def turn(i, hs):
        return amp.map(lambda h: h + 1.0, hs)

    hs = amp.fori_loop(
        s["k"],
        turn,
        jnp.zeros_like(embedded(p, s["x"])),
    )
    return amp.sum(
        amp.map(
            lambda h: jnp.log(h) * p["w"],
            hs,
        ),
    )


def at_receivers(p, s):
    got = amp.propagate(
        lambda h: h,
        s["edges"],
        embedded(p, s["x"]),
    )
    return amp.sum(
        amp.map(
            lambda h: jnp.log(h) * p["w"],
            got,
        ),
    )


def at_computed_places(p, s):
    def of(chars):
        numbers = embedded(p, chars)
        return (
            jnp.log(
                amp.take(numbers, jnp.argmax(numbers)),
            )
            * p["w"]
        )

    return amp.sum(amp.map(of, s["chars"]))


@pytest.mark.nightly
def test_copies_are_differentiated_too():
    batched = amp.vmap(in_words, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES, size=5)
    found, grads = jax.value_and_grad(lambda p: batched(p, batch).sum())(
        PARAMS,
    )
    own = jax.value_and_grad(lambda p: in_words(p, EXAMPLES[0]))(
        PARAMS,
    )
    each = jax.value_and_grad(lambda p: batched(p, EXAMPLES).sum())(
        PARAMS,
    )
    np.testing.assert_allclose(
        found,
        each[0] + 2 * own[0],
        rtol=1e-5,
    )
    for name, grad in grads.items():
        np.testing.assert_allclose(
            grad,
            each[1][name] + 2 * own[1][name],
            rtol=1e-5,
        )


EVERY = [in_words, in_examples, after_a_loop, after_a_while_loop, in_carried_sequences]
EVERY += [at_receivers, at_computed_places]


@pytest.mark.first_case
@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
def test_gradients_are_those_of_the_examples(function):
    batched = amp.vmap(function, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES, size=5)
    found = jax.jit(jax.grad(lambda p: (batched(p, batch) * batch.weights).sum()))(
        PARAMS,
    )
    with jax.disable_jit():
        wanted = jax.grad(lambda p: sum(function(p, each) for each in EXAMPLES))(
            PARAMS,
        )
    for name, grad in found.items():
        np.testing.assert_allclose(
            grad,
            wanted[name],
            rtol=1e-5,
            err_msg=name,
        )
