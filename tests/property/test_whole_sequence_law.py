"""JAX's own operations on whole sequences, one after the other: a batch computes the function's values of each example.

An empty sequence may be refused, as JAX traces lengths as if there were none; then the rest of the batch is compared.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.effort import examples as tried

import ampjax as amp
from ampjax.errors import DataError, GraphError

SPEC = {"x": "float64[t,2]", "i": "int32[t]", "k": "int32[]"}

OPERATIONS = {
    "all but the first": lambda p, xs: xs[1:],
    "all but the last": lambda p, xs: xs[:-1],
    "the first two": lambda p, xs: xs[:2],
    "every second": lambda p, xs: xs[::2],
    "turned around": lambda p, xs: jnp.flip(xs, 0),
    "twice": lambda p, xs: jnp.concatenate(
        [
            xs,
            xs,
        ]
    ),
    "one more": lambda p, xs: jnp.append(
        xs,
        p["b"][None],
        0,
    ),
    "shifted": lambda p, xs: jnp.concatenate(
        [
            jnp.ones((1, 2)),
            xs[:-1],
        ]
    ),
    "padded": lambda p, xs: jnp.pad(
        xs,
        ((1, 2), (0, 0)),
    ),
    "product": lambda p, xs: jnp.tanh(xs @ p["w"] + p["b"]),
    "running sum": lambda p, xs: jnp.cumsum(xs, 0),
    "softmax": lambda p, xs: (
        jax.nn.softmax(
            xs,
            -1,
        )
        * xs.shape[-1]
    ),
    "beside itself": lambda p, xs: (
        xs
        * jnp.flip(
            xs,
            0,
        )
    ),
    "sorted": lambda p, xs: jnp.sort(
        xs * p["b"],
        0,
    ),
    "in order": lambda p, xs: (xs * p["b"])[jnp.argsort(xs[:, 0])],
    "less the mean": lambda p, xs: xs - amp.mean(xs),
    "set behind the first": lambda p, xs: xs.at[1:].set(xs[:-1] * p["b"]),
    "added to a part": lambda p, xs: xs.at[:-1, 0].add(xs[1:, 1]),
    "columns of pairs": lambda p, xs: (
        jax.nn.softmax(
            xs @ xs.T,
            axis=0,
        )
        @ xs
    ),
    "pairs turned": lambda p, xs: jnp.cos(xs @ xs[::-1].T).T @ xs,
    "diagonal": lambda p, xs: xs * jnp.diagonal(xs @ xs.T)[:, None],
    "first rows of a table": lambda p, xs: (
        xs
        + jnp.outer(
            jnp.arange(64),
            p["b"],
        )[: xs.shape[0]]
    ),
    "convolved": lambda p, xs: jax.lax.conv_general_dilated(
        xs[None],
        jnp.stack([p["w"], p["w"].T]),
        (1,),
        "SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
    )[0],
    "pooled": lambda p, xs: jax.lax.reduce_window(
        xs,
        0.0,
        jax.lax.add,
        (2, 1),
        (2, 1),
        "SAME",
    ),
    "each twice": lambda p, xs: jnp.repeat(
        xs,
        2,
        axis=0,
    ),
    "one behind the other": lambda p, xs: xs.reshape(-1)[:, None] * p["b"],
    "scanned": lambda p, xs: jax.lax.scan(
        lambda h, x: (jnp.cos(h + x), h * x),
        p["b"],
        xs,
    )[1],
    "mapped": lambda p, xs: amp.map(
        lambda x: jnp.sin(x) * p["b"],
        xs,
    ),
}


def model(names):
    def function(p, s):
        xs = p["table"][s["i"]] + s["x"]
        for name in names:
            xs = OPERATIONS[name](p, xs)
        last = amp.scan(
            lambda h, x: (jnp.cos(h + x), None),
            p["b"],
            xs,
        )[0]
        return jnp.sum(last) + amp.length(xs) * p["b"][0]

    return function


KEEPING = ["turned around", "shifted", "product", "running sum", "softmax", "beside itself"]
KEEPING += ["less the mean", "mapped", "sorted", "in order"]
KEEPING += ["set behind the first", "columns of pairs", "diagonal", "convolved", "scanned"]
KEEPING += ["first rows of a table", "pairs turned", "added to a part"]
"""Operations that leave a sequence as long as it is."""


def loop(names, n_arrays):
    """A model whose loop carries a sequence, and arrays, through operations."""

    def function(p, s):
        def turn(i, carry):
            xs, *totals = carry
            for name in names:
                xs = jnp.sin(
                    OPERATIONS[name](
                        p,
                        xs,
                    )
                    + i
                )
            return (
                xs,
                *(jnp.cos(total + amp.sum(xs)) for total in totals),
            )

        start = p["table"][s["i"]] + s["x"]
        xs, *totals = amp.fori_loop(
            s["k"],
            turn,
            (start, *[p["b"]] * n_arrays),
        )
        rows = amp.map(
            lambda x: jnp.sum(x * p["b"]),
            xs,
        )
        return amp.sum(rows) + sum(
            map(
                jnp.sum,
                totals,
            )
        )

    return function


def example(rng, n):
    return {
        "k": np.int32(rng.integers(0, 4)),
        "x": rng.normal(size=(n, 2)),
        "i": rng.integers(
            0,
            3,
            n,
        ).astype(np.int32),
    }


def packed(batched, examples):
    """Packs the examples that the function does not refuse, and returns the batch and the packed examples."""
    try:
        return batched.pack(
            examples,
            size=len(examples) + 1,
        ), examples
    except DataError:
        filled = [each for each in examples if len(each["i"])]
        return batched.pack(
            filled,
            size=len(filled) + 1,
        ), filled


@pytest.mark.nightly
@settings(max_examples=tried(32))
@given(
    st.lists(
        st.sampled_from([*OPERATIONS]),
        min_size=1,
        max_size=3,
    ),
    st.lists(
        st.integers(0, 4),
        min_size=0,
        max_size=2,
    ),
    st.integers(0, 1 << 16),
)
def test_chains_of_operations_are_those_of_each_example(names, lengths, seed):
    rng = np.random.default_rng(seed)
    params = {
        "w": rng.normal(size=(2, 2)),
        "b": rng.normal(size=2),
        "table": rng.normal(size=(3, 2)),
    }
    agrees(model(names), params, rng, lengths)


@pytest.mark.slow
@settings(max_examples=tried(32))
@given(
    st.lists(
        st.sampled_from(KEEPING),
        min_size=1,
        max_size=2,
    ),
    st.integers(0, 1),
    st.lists(
        st.integers(0, 3),
        min_size=0,
        max_size=2,
    ),
    st.integers(0, 1 << 16),
)
def test_loops_that_carry_sequences_are_those_of_each_example(names, n_arrays, lengths, seed):
    rng = np.random.default_rng(seed)
    params = {
        "w": rng.normal(size=(2, 2)),
        "b": rng.normal(size=2),
        "table": rng.normal(size=(3, 2)),
    }
    agrees(loop(names, n_arrays), params, rng, lengths)


def agrees(function, params, rng, lengths):
    """Compares a batch's values and gradients with the function's of each example."""
    with jax.enable_x64(True), jax.disable_jit():
        examples = [
            example(
                rng,
                n,
            )
            for n in (*lengths, 3)
        ]
        try:
            batched = amp.vmap(function, SPEC, params=params)
        except GraphError as error:  # JAX can't tell which of two expressions of lengths is larger
            assume("a length to stay each instance's own" not in str(error))
            raise
        batch, left = packed(batched, examples)
        weights = rng.normal(size=len(left))

        def of_batch(p):
            return jnp.sum(
                batched(
                    p,
                    batch,
                )[: len(left)]
                * weights
            )

        def of_each(p):
            return sum(
                weight
                * function(
                    p,
                    each,
                )
                for weight, each in zip(weights, left, strict=True)
            )

        found, grads = jax.value_and_grad(of_batch)(params)
        want, want_grads = jax.value_and_grad(of_each)(params)
    np.testing.assert_allclose(
        found,
        want,
        rtol=1e-9,
        atol=1e-9,
    )
    for name in params:
        np.testing.assert_allclose(
            grads[name],
            want_grads[name],
            rtol=1e-8,
            atol=1e-8,
        )
