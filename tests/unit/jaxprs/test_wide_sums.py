"""Sums of low precision are formed in float32, of gradients of parameters and of nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.jaxprs.wide_sums import with_wide_sums

N = 4096


def bodies(dtype):
    """By name: a function of a row, and its parameters."""

    def draw(seed, *shape):
        return jnp.asarray(
            np.random.default_rng(seed).normal(size=shape),
            dtype,
        )

    return {
        "factor": (lambda p, x, i: p * x, draw(0, 4)),
        "number": (
            lambda p, x, i: jnp.sin(p) * x,
            draw(0),
        ),
        "bias": (
            lambda p, x, i: jnp.tanh(x + p),
            draw(0, 4),
        ),
        "product": (
            lambda p, x, i: x @ p,
            draw(0, 4, 3),
        ),
        "transposed": (
            lambda p, x, i: x @ p.T,
            draw(0, 3, 4),
        ),
        "row of a table": (
            lambda p, x, i: p[i] * x,
            draw(0, 3, 4),
        ),
        "used twice": (
            lambda p, x, i: jnp.tanh(x @ p) @ p,
            draw(0, 4, 4),
        ),
        "in parts": (
            lambda p, x, i: jnp.concatenate(
                [
                    p[:2] * x[0],
                    jnp.where(
                        x[2:] > 0,
                        p[2:],
                        0,
                    ),
                ]
            ),
            draw(0, 4),
        ),
        "under jit": (
            lambda p, x, i: jax.jit(lambda p: jax.nn.sigmoid(p) * x)(p),
            draw(0, 4),
        ),
        "half of it float32": (
            lambda p, x, i: (p.astype(jnp.float32) * x.astype(jnp.float32)).astype(dtype),
            draw(0, 4),
        ),
        "images": (
            lambda p, x, i: jax.lax.conv(
                x.reshape(1, 1, 2, 2),
                p,
                (1, 1),
                "SAME",
            ),
            draw(0, 2, 1, 2, 2),
        ),
        "several": (
            lambda p, x, i: jnp.tanh(x @ p["w"] + p["b"]) * p["s"],
            {
                "w": draw(0, 4, 4),
                "b": draw(1, 4),
                "s": draw(2),
            },
        ),
    }


def rows(dtype):
    rng = np.random.default_rng(7)
    return jnp.asarray(
        rng.uniform(0.5, 1.0, (N, 4)),
        dtype,
    ), jnp.asarray(rng.integers(0, 3, N))


def pulled_back(body, params, xs, ids):
    def mapped(p, x):
        return jax.vmap(body, in_axes=(None, 0, 0))(
            p,
            x,
            ids,
        )

    outs, pull = jax.vjp(mapped, params, xs)
    return lambda: pull(jnp.full_like(outs, 0.01))


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, jnp.bfloat16) for name in bodies(jnp.float32)),
        ("several", jnp.float16),
    ],
)
def test_many_rows_give_what_float32_gives(name, dtype):
    """Of so many rows of one sign a sum in half precision keeps two digits, or none."""
    body, params = bodies(dtype)[name]
    xs, ids = rows(dtype)
    of_params, of_rows = jax.jit(
        lambda: with_wide_sums(pulled_back(body, params, xs, ids), params)
    )()
    wide = jax.tree.map(
        lambda x: x.astype(jnp.float32),
        params,
    )
    wanted, _ = pulled_back(
        bodies(jnp.float32)[name][0],
        wide,
        xs.astype(jnp.float32),
        ids,
    )()
    plain = jax.jit(lambda: pulled_back(body, params, xs, ids)())()
    np.testing.assert_array_equal(of_rows, plain[1])  # what goes on to other nodes is as before
    for one, other in zip(
        jax.tree.leaves(of_params),
        jax.tree.leaves(wanted),
        strict=True,
    ):
        assert one.dtype == jnp.float32
        assert jnp.abs(one - other).max() <= jnp.finfo(dtype).eps * jnp.abs(other).max()


def dtypes_of_sums(jaxpr):
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("reduce_sum", "dot_general", "scatter-add"):
            found.append(
                (
                    equation.primitive.name,
                    equation.outvars[0].aval.dtype.name,
                )
            )
        if "jaxpr" in equation.params:
            found += dtypes_of_sums(equation.params["jaxpr"].jaxpr)
    return found


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("bias", {("reduce_sum", "float32")}),
        ("product", {("dot_general", "float32"), ("dot_general", "bfloat16")}),
        ("row of a table", {("scatter-add", "float32")}),
    ],
)
def test_only_sums_over_rows_are_wide(name, sums):
    body, params = bodies(jnp.bfloat16)[name]
    pull = pulled_back(body, params, *rows(jnp.bfloat16))
    assert set(dtypes_of_sums(jax.make_jaxpr(lambda: with_wide_sums(pull, params))().jaxpr)) == sums


def test_gradients_of_float32_are_not_traced_anew():
    calls = []
    result = (jnp.ones(2),), (jnp.ones(3, jnp.bfloat16),)
    assert with_wide_sums(lambda: calls.append(1) or result, jnp.ones(2)) is result and calls == [1]
