"""Rows of an example's matrix of pairs that a loop reads by computed numbers: right, and without work for the other rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.jaxpr_walks import equations_in, loops_in
from support.model_laws import check_batch

import ampjax as amp

SPEC = {"at": "float64[n,2]"}
PARAMS = {"w": np.array([[0.7, -0.4, 1.1], [0.2, 0.9, -0.6]])}


def example(seed, n):
    return {"at": np.random.default_rng(seed).normal(size=(n, 2))}


def distances(p, s):
    """How far places are from each other, not the same there and back."""
    ys = jnp.tanh(s["at"] @ p["w"])
    return 1 + jnp.sum((ys[:, None] * jnp.array([1.0, 2.0, 0.5]) - ys[None]) ** 2, -1)


def shortest(p, s):
    """Dijkstra's shortest ways from the first place to all."""
    d = distances(p, s)
    n = d.shape[0]

    def turn(i, carry):
        known, done = carry
        u = jnp.argmin(jnp.where(done > 0, 1e10, known))
        return jnp.minimum(known, known[u] + d[u]), done.at[u].set(1.0)

    start = jnp.where(jnp.arange(n) == 0, 0.0, 1e9), jnp.zeros(n)
    return jnp.sum(jnp.sin(jax.lax.fori_loop(0, n, turn, start)[0]))


def in_other_ways(p, s):
    """Columns, numbers outside, a slice, one entry, and rows of a carried matrix; nothing of a matrix without a row."""

    def turn(carry, x):
        u, m = carry
        row = d[:, u] + d.at[2 * u].get(mode="fill", fill_value=3.0) + d.at[2 * u].get(mode="clip")
        row = row + jax.lax.dynamic_index_in_dim(d, u, keepdims=False) * d[u, -1 - u]
        old = m[u]
        return (jnp.argmax(row + old), jnp.tanh(m * 0.5 + old[:, None] * x[0])), jnp.sum(
            jnp.sin(row * old)
        )

    d = distances(p, s)
    (_, m), ys = jax.lax.scan(turn, (0, d), s["at"])
    return jnp.sum(ys) + jnp.sum(m)


@pytest.mark.parametrize("function", [shortest, in_other_ways])
def test_values_and_gradients(function):
    with jax.enable_x64(True):
        check_batch(
            function,
            PARAMS,
            SPEC,
            [example(seed, n) for seed, n in enumerate([3, 1, 5])],
            is_traced=True,
        )


def test_a_matrix_without_rows_has_none_to_read():
    with jax.enable_x64(True):
        batched = amp.vmap(in_other_ways, SPEC, params=PARAMS)
        examples = [example(seed, n) for seed, n in enumerate([3, 0, 1])]
        found = jax.jit(batched)(PARAMS, batched.pack(examples))[:3]
        each = [in_other_ways(PARAMS, examples[0]), 0.0, in_other_ways(PARAMS, examples[2])]
        np.testing.assert_allclose(found, each, rtol=1e-9)


def test_no_turn_computes_all_pairs():
    n = 24
    examples = [example(seed, n) for seed in range(3)]
    with jax.enable_x64(True):
        batched = amp.vmap(shortest, SPEC, params=PARAMS)
        batch = batched.pack(examples)
        traced = jax.make_jaxpr(lambda p: batched(p, batch))(PARAMS)
    # no table has a number for each pair at each level
    assert max(leaf.size for leaf in jax.tree.leaves(batch)) < 2 * 3 * n * n
    # and no level computes a number for each pair
    (turns,) = [loop for loop in loops_in(traced.jaxpr) if loop.params["length"] >= n]
    sizes = []
    for equation in equations_in(turns.params["jaxpr"].jaxpr):
        sizes += [out.aval.size for out in equation.outvars]
    assert 3 * n <= max(sizes) < n * n
    # where the segments of the smallest number begin is searched for each example, not for each element
    for search in loops_in(turns.params["jaxpr"].jaxpr):
        assert max(out.aval.size for out in search.outvars) < n
