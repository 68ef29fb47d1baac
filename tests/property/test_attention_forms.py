"""Attention in the forms of users: a batch computes the function's values and gradients, and no array of all pairs by all features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples as tried
from support.effort import left_to_nightly
from support.jaxpr_walks import equations_in

import ampjax as amp

HEADS = 2
WIDTH = 3
LONGEST = 6
SPEC = {"x": "float64[t,3]"}

SCORES = {
    "einsum": lambda q, k: jnp.einsum("hd,hd->h", q, k),
    "sum": lambda q, k: (q * k).sum(-1),
    "in two": lambda q, k: -(-q * k / 2).sum(-1) * 2,
    "turned": lambda q, k: (q.T * k.T).sum(0),
    "dots": lambda q, k: jax.vmap(jnp.dot)(q, k),
    "each": lambda q, k: jnp.stack([jnp.vdot(a, b) for a, b in zip(q, k, strict=True)]),
}
"""Products of a query and a key, `[heads]`, of arrays `[heads, width]`."""

SCALES = {
    "none": (1.0, 1.0, 1.0),
    "query": (0.5, 1.0, 1.0),
    "key": (1.0, 0.5, 1.0),
    "after": (1.0, 1.0, 0.5),
}

MASKS = {
    "none": lambda p, score, i, j: score,
    "where": lambda p, score, i, j: jnp.where(
        j <= i,
        score,
        -1e9,
    ),
    "added": lambda p, score, i, j: score + jnp.where(abs(i - j) < 2, 0.0, -1e9),
    "bias": lambda p, score, i, j: score + p["bias"][i - j + LONGEST],
}

WEIGHTED = {
    "product": lambda w, v: w[:, None] * v,
    "einsum": lambda w, v: jnp.einsum("h,hd->hd", w, v),
    "vmap": lambda w, v: jax.vmap(jnp.multiply)(w, v),
    "scaled": lambda w, v: 2 * (v * w[:, None] / 2),
}


def projected(p, s):
    split = lambda name: (s["x"] @ p[name]).reshape(-1, HEADS, WIDTH)
    return split("query"), split("key"), split("value")


def total(p, read):
    return jnp.sum(jnp.tanh(read.reshape(-1, HEADS * WIDTH) @ p["out"]))


def by_pairs(score, scale, mask, weighted):
    """Attention as a map in a map."""
    of_query, of_key, after = SCALES[scale]

    def model(p, s):
        q, k, v = projected(p, s)
        numbers = jnp.arange(s["x"].shape[0])

        def each(query, i):
            def one(key, j):
                found = SCORES[score](query * of_query, key * of_key) * after
                return MASKS[mask](p, found, i, j)

            weights = amp.softmax(amp.map(one, k, numbers))
            return amp.sum(amp.map(WEIGHTED[weighted], weights, v))

        return total(p, amp.map(each, q, numbers))

    return model


def rows(p, s):
    """All keys for each query, with `jax.nn.softmax` over keys."""
    q, k, v = projected(p, s)

    def each(query):
        weights = jax.nn.softmax(
            jnp.einsum("hd,jhd->hj", query, k),
            axis=-1,
        )
        return jnp.einsum("hj,jhd->hd", weights, v)

    return total(p, amp.map(each, q))


def matrices(p, s):
    """A matrix of scores for each head, with a causal mask."""
    q, k, v = projected(p, s)
    n = s["x"].shape[0]
    seen = jnp.tril(jnp.ones((n, n), bool))
    heads = []
    for head in range(HEADS):
        scores = jnp.where(
            seen,
            q[:, head] @ k[:, head].T / WIDTH**0.5,
            -1e9,
        )
        heads.append(jax.nn.softmax(scores, axis=-1) @ v[:, head])
    return total(p, jnp.stack(heads, 1))


def heads_first(p, s):
    q, k, v = projected(p, s)
    numbers = jnp.arange(s["x"].shape[0])
    bias = p["bias"][numbers[:, None] - numbers[None, :] + LONGEST]
    scores = jnp.einsum("ihd,jhd->hij", q, k) + jnp.moveaxis(bias, -1, 0)
    weights = jax.nn.softmax(scores, axis=-1)
    return total(p, jnp.einsum("hij,jhd->ihd", weights, v))


def heads_last(p, s):
    q, k, v = projected(p, s)
    weights = jax.nn.softmax(
        jnp.einsum("ihd,jhd->ijh", q, k),
        axis=1,
    )
    return total(
        p,
        jnp.einsum("ijh,jhd->ihd", jax.nn.relu(weights), v),
    )


def heads_mapped(p, s):
    """`jax.vmap` over heads."""
    one = lambda q, k, v: jax.nn.softmax(q @ k.T, axis=-1) @ v
    return total(
        p,
        jax.vmap(one, 1, 1)(*projected(p, s)),
    )


def of_jax(p, s):
    return total(
        p,
        jax.nn.dot_product_attention(*projected(p, s), is_causal=True),
    )


def of_jax_in_a_batch(p, s):
    q, k, v = (x[None] for x in projected(p, s))
    return total(
        p,
        jax.nn.dot_product_attention(q, k, v)[0],
    )


WHOLE = [rows, matrices, heads_first, heads_last, heads_mapped, of_jax, of_jax_in_a_batch]


def parameters(rng):
    d = HEADS * WIDTH
    params = {}
    for name in ("query", "key", "value"):
        params[name] = rng.normal(size=(WIDTH, d))
    return {
        **params,
        "out": rng.normal(size=(d, 2)),
        "bias": rng.normal(size=(2 * LONGEST + 1, HEADS)),
    }


def agrees(function, lengths, seed):
    """Compares a batch's values and gradients with the function's of each example."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        params = parameters(rng)
        examples = []
        for n in lengths:
            examples.append({"x": rng.normal(size=(n, WIDTH))})
        weights = rng.normal(size=len(examples) + 1)
        weights[-1] = 0
        batched = amp.vmap(function, SPEC, params=params)
        batch = batched.pack(examples, size=len(weights))

        def of_each(p):
            found = [function(p, each) for each in examples]
            return sum(w * one for w, one in zip(weights, found, strict=False))

        found = jax.jit(jax.value_and_grad(lambda p: jnp.sum(batched(p, batch) * weights)))(params)
        want = jax.jit(jax.value_and_grad(of_each))(params)
    for a, b in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(want),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=tried(48))
@given(
    st.sampled_from([*SCORES]),
    st.sampled_from([*SCALES]),
    st.sampled_from([*MASKS]),
    st.sampled_from([*WEIGHTED]),
    st.lists(
        st.integers(0, LONGEST),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 1 << 16),
)
def test_a_map_in_a_map_is_that_of_each_example(score, scale, mask, weighted, lengths, seed):
    agrees(by_pairs(score, scale, mask, weighted), lengths, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [heads_first, *left_to_nightly(WHOLE, heads_first)],
)
def test_operations_on_whole_sequences_are_those_of_each_example(function):
    agrees(function, [3, 1, LONGEST, 2], 0)


BY_PAIRS = [
    by_pairs("sum", "key", "added", "product"),
    by_pairs("in two", "query", "none", "einsum"),
    by_pairs("turned", "after", "where", "scaled"),
    by_pairs("each", "none", "none", "vmap"),
]


@pytest.mark.parametrize(
    "function",
    [
        BY_PAIRS[0],
        heads_first,
        *left_to_nightly([*BY_PAIRS, *WHOLE], BY_PAIRS[0], heads_first),
    ],
)
def test_no_array_has_all_pairs_by_all_features(function):
    n = 50
    params = jax.tree.map(
        jnp.float32,
        parameters(np.random.default_rng(0)),
    )
    params["bias"] = jnp.zeros(
        (2 * n, HEADS),
        jnp.float32,
    )
    batched = amp.vmap(function, {"x": "float32[t,3]"}, params=params)
    batch = batched.pack(
        [
            {
                "x": np.ones(
                    (n, WIDTH),
                    np.float32,
                )
            }
        ]
    )
    loss = lambda p: batched(p, batch).sum()
    traced = jax.make_jaxpr(jax.grad(loss))(params)
    largest = 0
    for equation in equations_in(traced.jaxpr):
        for variable in equation.outvars:
            largest = max(largest, variable.aval.size)
    assert n * n <= largest < n * n * HEADS * WIDTH
