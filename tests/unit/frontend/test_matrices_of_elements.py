"""Decompositions of the matrices that a sequence's elements are, in a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from support.effort import left_to_nightly
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import GraphError

RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(2, 2)) + 2 * np.eye(2)}
SPEC = {"x": "float64[n,2]", "m": "float64[n,2,2]"}


def example(n):
    m = RNG.normal(size=(n, 2, 2))
    return {"x": RNG.normal(size=(n, 2)), "m": m @ np.swapaxes(m, 1, 2)}


EXAMPLES = [example(n) for n in (3, 0, 1, 13)]


def each(p, s):
    """The matrices of a sequence, by its own axis and in `jax.vmap`."""
    ms = s["m"] + p["w"] @ p["w"].T
    _, size = jax.vmap(jnp.linalg.slogdet)(ms)
    xs = jnp.linalg.solve(ms, s["x"][..., None])[..., 0]
    return jnp.sum(size) + jnp.sum(jnp.sin(xs))


def of_all(p, s):
    """One matrix for all elements, and one of each."""
    white = solve_triangular(p["w"], s["x"].T, lower=True)
    return jnp.sum(jnp.sin(white.T @ p["w"])) + jnp.sum(
        jnp.linalg.cholesky(s["m"] + p["w"].T @ p["w"])
    )


def others(p, s):
    def one(m, x):
        values, _ = jnp.linalg.eigh(m)
        _, sizes, _ = jnp.linalg.svd(m)
        solved = cho_solve(cho_factor(m), x) + jnp.linalg.solve(p["w"], x)
        return values * sizes + jnp.linalg.inv(m) @ solved + jnp.linalg.qr(m)[1][0]

    return jnp.sum(jnp.sin(jax.vmap(one)(s["m"] + p["w"] @ p["w"].T, s["x"])))


@pytest.mark.parametrize(
    "function",
    [each, of_all, *left_to_nightly([others])],
)
def test_matrices_of_elements_are_decomposed(function):
    with jax.enable_x64(True):
        check_batch(function, PARAMS, SPEC, EXAMPLES, is_traced=True)


def test_a_matrix_of_as_many_rows_as_elements_is_refused():
    def model(p, s):
        return jnp.linalg.slogdet(s["x"] @ s["x"].T)[1]

    text = r"got `slogdet` on a whole sequence.*`amp.map\(jnp.linalg.inv, xs\)`"
    with pytest.raises(GraphError, match=text):
        amp.vmap(model, {"x": "float32[n,2]"})(PARAMS, EXAMPLES)
