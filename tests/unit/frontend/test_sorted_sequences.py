"""Sorted sequences in a batch as one function: values and gradients agree with the function, example by example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError, GraphError

SPEC = {"v": "float64[n,2]", "i": "int32[n]", "u": "float64[m]"}
PARAMS = {
    "w": np.array(
        [0.7, -1.3],
    ),
    "b": np.float64(0.4),
}
RNG = np.random.default_rng(4)


def example(n, m):
    return {
        "v": RNG.normal(size=(n, 2)),
        "i": RNG.integers(0, 3, n).astype(np.int32),
        "u": RNG.normal(size=m),
    }


EXAMPLES = [
    example(
        3,
        1,
    ),
    example(0, 0),
    example(4, 2),
    example(1, 0),
]


def summed(xs):
    """A number that depends on every entry and its place."""
    numbers = jnp.arange(xs.shape[0])
    return amp.sum(
        amp.map(
            lambda x, i: jnp.sum(jnp.sin(x + i)),
            xs,
            numbers,
        ),
    )


def of_numbers(p, s):
    numbers = s["v"] @ p["w"]
    return summed(jnp.sort(numbers)) + summed(
        -jnp.sort(-numbers, descending=True),
    )


def along_each_axis(p, s):
    vectors = s["v"] * p["w"]
    return summed(
        jnp.sort(vectors, 0),
    ) + summed(jnp.sort(vectors, 1))


def in_order(p, s):
    """Elements in a computed order, which keeps the order of equal ones; ranks."""
    order = jnp.argsort(s["i"])
    ranks = jnp.argsort(order)
    return summed(
        (s["v"] * p["w"])[order],
    ) + summed(ranks * p["b"])


def of_each(p, s):
    """In a map, where each element sorts all."""

    def one(u):
        own = jnp.asarray(s["v"])[:, 0] * u
        return summed(jnp.sort(own) * p["b"]) + summed(
            (own * p["w"][0])[jnp.argsort(own)],
        )

    return amp.sum(amp.map(one, s["u"]))


def beyond(p, s):
    """Numbers that a sequence lacks, filled and clipped as by JAX."""
    numbers = s["v"] @ p["w"]
    after = jnp.argsort(numbers) + 1
    filled = numbers.at[after].get(mode="fill", fill_value=2.0)
    return summed(filled) + summed(
        numbers.at[after].get(mode="clip"),
    )


@pytest.mark.first_case
@pytest.mark.parametrize(
    "function",
    [of_numbers, along_each_axis, in_order, of_each, beyond],
    ids=lambda f: f.__name__,
)
def test_values_and_gradients(function):
    weights = 1.0 + np.arange(len(EXAMPLES))
    with jax.enable_x64(True):
        batched = amp.vmap(function, SPEC, params=PARAMS)
        batch = batched.pack(EXAMPLES, size=5)

        def of_batch(p):
            return jnp.sum(batched(p, batch)[:4] * weights)

        def of_examples(p):
            found = [
                function(
                    p,
                    jax.tree.map(jnp.asarray, each),
                )
                for each in EXAMPLES
            ]
            return jnp.sum(jnp.stack(found) * weights)

        found = jax.jit(jax.value_and_grad(of_batch))(PARAMS)
        wanted = jax.jit(jax.value_and_grad(of_examples))(PARAMS)
    for each, own in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(wanted),
        strict=True,
    ):
        np.testing.assert_allclose(each, own, rtol=1e-9, atol=1e-9)


def test_what_is_no_sequence_any_more_is_refused():
    refused = {
        r"jnp\.transpose\(x, \(1, 0\)\)": lambda xs: xs.T,
    }
    with jax.enable_x64(True):
        for told, flat in refused.items():
            with pytest.raises(GraphError, match=told):
                amp.vmap(
                    lambda p, s, f=flat: f(s["v"] * p["w"]),
                    SPEC,
                    params=PARAMS,
                )


def test_elements_of_an_empty_sequence_are_refused():
    def by_others(p, s):
        order = jnp.argsort(s["u"] * p["b"])
        return summed((s["v"] * p["w"])[order])

    with jax.enable_x64(True):
        batched = amp.vmap(by_others, SPEC, params=PARAMS)
        with pytest.raises(DataError, match="number 0 of 0 elements"):
            batched.pack([*EXAMPLES, example(0, 2)])


def test_places_of_equal_numbers_and_of_those_that_are_none():
    """NaN counts as larger than infinity, and the largest come with 0 before -0."""

    def model(params, example):
        xs = example["xs"]
        return jnp.argmax(xs), jnp.argmin(xs), jax.lax.top_k(xs, 1)[1]

    batched = amp.vmap(model, {"xs": "float32[t]"})
    examples = []
    for xs in ([np.inf, np.nan, 1], [-np.inf, np.nan], [-0.0, 0.0, -0.0], [2]):
        examples.append({"xs": np.array(xs, np.float32)})
    found = batched({}, examples)
    for place, each in enumerate(examples):
        wanted = model({}, jax.tree.map(jnp.asarray, each))
        for one, want in zip(found, wanted, strict=True):
            assert np.array_equal(one[place], want), place
