"""Gradients of `amp.vmap` of plain JAX functions with loops of unknown trips: against JAX's own of the same loops, unrolled in Python."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ampjax as amp
from ampjax.lanes import reversible_loops

XS = np.random.default_rng(0).normal(size=(7, 3))
NS = np.asarray([3, 0, 5, 1, 9, 2, 7], np.int32)
W = np.random.default_rng(1).normal(size=(3, 3))


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


FORMS = {
    "lanes": dict(lanes=3, trips=2),
    "one by one": dict(lanes=1, trips=1),
    "all": dict(lanes=7, trips=1),
}


def turned(w, x, n):
    """A loop with a trip count of its own."""
    return lax.fori_loop(0, n, lambda i, x: jnp.tanh(w @ x) + 0.1 * i, x)


def falling(w, x, n):
    """A loop that ends by what it carries, behind which numbers of a loop are used."""

    def trip(carry):
        x, size, i = carry
        return jnp.sin(w @ x) * 0.9, size * 0.7 + 0.01 * x[0] ** 2, i + 1

    x, size, i = lax.while_loop(lambda c: c[1] > 0.05 * (n + 1), trip, (x, jnp.sum(x**2), 0))
    return x * size + i


def nested(w, x, n):
    """Loops in a loop, in a scan, in a choice; integers on the way."""

    def outer(carry):
        x, k = carry
        y = turned(w, x, k % 4)
        return lax.cond(k % 2 == 0, lambda y: falling(w, y, k), lambda y: 0.5 * y + x, y), k - 1

    def draw(x, row):
        x, _ = lax.while_loop(lambda carry: carry[1] > 0, outer, (x * row, n))
        return x, x[0]

    x, rows = lax.scan(draw, x, jnp.arange(1.0, 4.0), reverse=True)
    return x + rows


@jax.custom_jvp
def doubled(x, n):
    return lax.fori_loop(0, n, lambda i, x: x * 2, x)


@doubled.defjvp
def _(primals, tangents):
    return doubled(*primals), 3 * tangents[0]


@jax.custom_vjp
def turned_otherwise(x, n):
    return turned(W, x, n)


turned_otherwise.defvjp(
    lambda x, n: (turned_otherwise(x, n), x),
    lambda x, ct: (ct * jnp.cos(x), None),
)


def called(w, x, n, checkpoint=jax.checkpoint):
    """Loops in calls, and functions with derivatives of their own inside and around loops."""
    y = lax.fori_loop(0, n, lambda i, x: jax.nn.relu(jnp.sin(doubled(x, i))), x)
    z = jax.jit(turned)(w, x, n) + checkpoint(turned)(w, y, n)
    return z + doubled(x, n) + turned_otherwise(x, n)


def drawing(w, x, n):
    """A loop that carries a key, a truth value and an integer."""

    def trip(carry):
        key, x, flag, i = carry
        key, own = jax.random.split(key)
        x = jnp.where(flag, w @ x, jnp.tanh(x)) * jax.random.normal(own, (3,), jnp.float64)
        return key, x, ~flag, i + 1

    first = (jax.random.key(3), x, False, 0)
    return lax.while_loop(lambda carry: carry[3] < n, trip, first)[1]


PROGRAMS = [turned, falling, nested, called, drawing]


def one_by_one(program, w, xs, ns):
    """Results of all elements, of loops in Python."""
    found = []
    for x, n in zip(xs, ns, strict=True):
        found.append(program(w, x, jnp.asarray(n)))
    return jnp.stack(found)


def loss(batched, w, xs, ns=NS):
    return jnp.sum(jnp.cos(batched(w, xs, ns)) * jnp.arange(1.0, 4.0))


def unrolled(program, w=W, xs=XS, ns=NS):
    """Gradients of the shared argument and of the elements', by JAX."""
    if program is called:  # which JAX traces even then
        program = partial(called, checkpoint=lambda function: function)
    with jax.disable_jit():
        of = partial(loss, partial(one_by_one, program))
        return jax.grad(of, (0, 1))(jnp.asarray(w), jnp.asarray(xs), ns)


def require_close(found, expected, rtol=1e-9):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def vmapped(program, **how):
    return amp.vmap(program, in_axes=(None, 0, 0), **how)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_unrolled(program, form, monkeypatch):
    monkeypatch.setattr(reversible_loops, "SLOTS", 2)
    monkeypatch.setattr(reversible_loops, "STRETCH", 2)
    batched = vmapped(program, **FORMS[form])
    found = jax.jit(jax.grad(partial(loss, batched), (0, 1)))(W, XS)
    require_close(found, unrolled(program))
