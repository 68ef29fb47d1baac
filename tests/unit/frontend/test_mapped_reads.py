"""Reads and updates of sequences inside `jax.vmap`, which writes other operations for these than a function of one element has."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.model_laws import check_batch
from support.numbered_elements import PARAMS, SPEC, example

import ampjax as amp

EXAMPLES = [example(seed, n) for seed, n in enumerate([3, 2, 5])]


def arrays(s):
    return jnp.asarray(s["x"]), jnp.asarray(s["m"]), jnp.asarray(s["at"])


def reads(p, s):
    """One element, a part of one, and neighbours, at known and at computed numbers."""
    x, m, at = arrays(s)

    def each(y, i):
        best = jnp.argmax(x * y * p["a"])
        two = jax.lax.dynamic_slice(x, (i,), (2,))
        return x[i] * y + x[best] * p["b"] + jnp.sum(m[i] * m[best]) + m[i, i % 3] + two @ two

    return p["a"] * jnp.sum(jnp.sin(jax.vmap(each)(x, at)))


def in_a_loop(p, s):
    """Reads of a carried sequence."""
    x, _, at = arrays(s)

    def step(c, y):
        mapped = jax.vmap(lambda z, i: c[i] * z + x[jnp.argmax(c * z)])(
            x,
            at,
        )
        return jnp.tanh(c * p["a"] + mapped * y * p["b"]), c[at[0]]

    last, ys = jax.lax.scan(step, x * p["b"], x)
    return jnp.sum(last**2) + jnp.sum(ys)


def rows(p, s):
    """Entries of the rows of matrices, also of matrices of pairs."""
    x, m, at = arrays(s)
    pairs = x[:, None] * x * p["a"] + p["b"]
    own = jax.vmap(lambda row, i: row[i] * p["a"])(
        m,
        at % 3,
    )
    best = jax.vmap(lambda row: row[jnp.argmax(row)])(pairs)
    there = jax.vmap(lambda i: pairs[i, i] + pairs[i] @ x)(at)
    chosen = jax.vmap(
        lambda y, i: jax.lax.cond(
            y > 0,
            lambda: y * x[i],
            lambda: p["a"],
        )
    )(
        x,
        at,
    )
    return jnp.sum(jnp.cos(own + best)) + jnp.sum(there * chosen)


def updates(p, s):
    """A changed copy for each element, of its own row and of a whole sequence."""
    x, m, at = arrays(s)
    own = jax.vmap(lambda row, i: row.at[i].set(p["a"]))(
        m,
        at % 3,
    )
    copies = jax.vmap(lambda y, i: x.at[i].add(y * p["b"]))(
        x,
        at,
    )
    return jnp.sum(own**2) + jnp.sum(jnp.sin(copies))


def of_equal_elements(p, s):
    """Elements that are all one number of the row around."""
    x, m, at = arrays(s)

    def one(y, i):
        return (
            jnp.full(
                x.shape,
                y * p["a"],
            )[jnp.argmax(x * y)]
            * m[i, 0]
        )

    return jnp.sum(amp.map(one, x, at))


@pytest.mark.parametrize(
    "function",
    [reads, in_a_loop, rows, updates, of_equal_elements],
)
def test_values_and_gradients(function):
    with jax.enable_x64(True):
        check_batch(
            function,
            PARAMS,
            SPEC,
            EXAMPLES,
            is_traced=True,
        )


@dataclass(frozen=True)
class Key:
    """A key as in JAX's caches, with a comparison that Python writes."""

    size: Any


def test_only_what_the_user_compares_is_a_question():
    library = dict[str, Any]()
    exec(
        compile("def same(key, other): return key == other", jax.__file__, "exec"),
        library,
    )

    def function(p, s):
        size = s["x"].shape[0]
        is_same = library["same"](Key(size), Key(5))
        return jnp.sum(s["x"]) * p["a"] if not is_same else p["b"]

    with jax.enable_x64(True):
        found = amp.vmap(function, SPEC, params=PARAMS)(
            PARAMS,
            EXAMPLES,
        )
    wanted = []
    for each in EXAMPLES:
        wanted.append(np.sum(each["x"]) * PARAMS["a"])
    np.testing.assert_allclose(
        found,
        wanted,
        rtol=1e-12,
    )
