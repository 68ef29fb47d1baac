"""Gradients of `amp.vmap` of plain JAX functions with loops of unknown trips: against JAX's own of the same loops, unrolled in Python."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.effort import left_to_nightly

import ampjax as amp
from ampjax.errors import GraphError
from ampjax.lanes import reversible_loops

XS = np.random.default_rng(0).normal(size=(7, 3))
NS = np.asarray(
    [3, 0, 5, 1, 9, 2, 7],
    np.int32,
)
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
    return lax.fori_loop(
        0,
        n,
        lambda i, x: jnp.tanh(w @ x) + 0.1 * i,
        x,
    )


def falling(w, x, n):
    """A loop whose carry decides on its end, and whose carried numbers are used afterwards."""

    def trip(carry):
        x, size, i = carry
        return jnp.sin(w @ x) * 0.9, size * 0.7 + 0.01 * x[0] ** 2, i + 1

    x, size, i = lax.while_loop(
        lambda c: c[1] > 0.05 * (n + 1),
        trip,
        (x, jnp.sum(x**2), 0),
    )
    return x * size + i


def nested(w, x, n):
    """Loops in a loop, in a scan, in a choice; integers on the way."""

    def outer(carry):
        x, k = carry
        y = turned(w, x, k % 4)
        return lax.cond(
            k % 2 == 0,
            lambda y: falling(w, y, k),
            lambda y: 0.5 * y + x,
            y,
        ), k - 1

    def draw(x, row):
        x, _ = lax.while_loop(
            lambda carry: carry[1] > 0,
            outer,
            (x * row, n % 5),
        )
        return x, x[0]

    x, rows = lax.scan(
        draw,
        x,
        jnp.arange(1.0, 4.0),
        reverse=True,
    )
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
    y = lax.fori_loop(
        0,
        n,
        lambda i, x: jax.nn.relu(jnp.sin(doubled(x, i))),
        x,
    )
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
    return lax.while_loop(
        lambda carry: carry[3] < n,
        trip,
        first,
    )[1]


PROGRAMS = [turned, falling, nested, called, drawing]


def one_by_one(program, w, xs, ns):
    """Results of all elements, of loops in Python."""
    found = []
    for x, n in zip(xs, ns, strict=True):
        found.append(program(w, x, jnp.asarray(n)))
    return jnp.stack(found)


def loss(batched, w, xs, ns=NS):
    return jnp.sum(jnp.cos(batched(w, xs, ns)) * jnp.arange(1.0, 4.0))


@cache
def unrolled(program, n=7):
    """Gradients of the shared argument and of the elements', by JAX, for the first elements."""
    if program is called:  # which JAX traces even then
        program = partial(called, checkpoint=lambda function: function)
    of = partial(loss, partial(one_by_one, program))
    w = jnp.asarray(W)
    xs = jnp.asarray(XS[:n])
    with jax.disable_jit():
        return jax.grad(of, (0, 1))(
            w,
            xs,
            NS[:n],
        )


def require_close(found, expected, rtol=1e-9):
    for a, b in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(expected),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def vmapped(program, **how):
    return amp.vmap(program, in_axes=(None, 0, 0), **how)


@pytest.mark.parametrize("form", ["lanes", *left_to_nightly(FORMS, "lanes")])
@pytest.mark.parametrize(
    "program",
    [called, *left_to_nightly(PROGRAMS, called)],
)
def test_as_unrolled(program, form, monkeypatch):
    monkeypatch.setattr(reversible_loops, "SLOTS", 3)
    batched = vmapped(program, **FORMS[form])
    found = jax.jit(
        jax.grad(
            partial(loss, batched),
            (0, 1),
        )
    )(
        W,
        XS,
    )
    require_close(found, unrolled(program))


def alone(w, x, n):
    """A loop that goes on with one number."""
    return lax.fori_loop(
        0,
        n,
        lambda i, x: jnp.sin(x) * (1 + w),
        x,
    )


@jax.custom_vjp
def root(x):
    """The square root by Newton's method, with a derivative of its own."""
    return lax.while_loop(
        lambda y: abs(y * y - x) > 1e-12,
        lambda y: (y + x / y) / 2,
        x,
    )


root.defvjp(
    lambda x: (root(x), x),
    lambda x, ct: (ct / (2 * jnp.sqrt(x)),),
)


@pytest.mark.parametrize("form", FORMS)
def test_through_loops_of_an_inner_vmap(form):
    def together(w, x, n):
        turned = jax.vmap(alone)(
            w[0],
            x,
            n + jnp.arange(3),
        )
        return turned + jax.vmap(root)(1 + x * x)

    def one_after_another(w, x, n):
        each = []
        for i in range(3):
            each.append(
                alone(
                    w[0, i],
                    x[i],
                    n + i,
                )
            )
        return jnp.stack(each) + jnp.sqrt(1 + x * x)

    batched = vmapped(together, **FORMS[form])
    found = jax.grad(
        partial(loss, batched),
        (0, 1),
    )(W, XS)
    require_close(found, unrolled(one_after_another))


@pytest.mark.parametrize("form", ["map", "vmap"])
def test_in_the_form_that_was_measured(form, monkeypatch):
    monkeypatch.setattr("ampjax.lanes.lane_function.fastest", lambda *_: form)
    batched = vmapped(falling)
    batched(W, XS, NS)
    require_close(
        jax.grad(
            partial(loss, batched),
            (0, 1),
        )(W, XS),
        unrolled(falling),
    )


@pytest.mark.parametrize("n", [0, 1])
def test_few_elements(n):
    found = jax.grad(
        partial(loss, vmapped(falling)),
        (0, 1),
    )(
        W,
        XS[:n],
        NS[:n],
    )
    if n:
        require_close(found, unrolled(falling, n))
    else:
        assert not found[0].any()
        assert found[1].shape == (0, 3)


def test_of_what_a_function_closes_over():
    def of(w):
        return jnp.sum(amp.vmap(partial(turned, w), lanes=2, trips=2)(XS, NS) ** 2)

    def expected(w):
        return jnp.sum(one_by_one(turned, w, XS, NS) ** 2)

    with jax.disable_jit():
        right = jax.grad(expected)(jnp.asarray(W))
    require_close(jax.grad(of)(W), right)
    require_close(jax.jit(jax.grad(of))(W), right)


def test_long_loops_keep_few_carries():
    """A carry of 1,000 numbers and 3,000 trips: not all 3,000 carries may be kept."""

    def long(x, n):
        return lax.fori_loop(
            0,
            n,
            lambda i, x: x + 0.01 * jnp.sin(x + 0.1 * i),
            x,
        )

    def scanned(x, n):
        step = lambda x, i: (
            jnp.where(
                i < n,
                x + 0.01 * jnp.sin(x + 0.1 * i),
                x,
            ),
            None,
        )
        return lax.scan(step, x, jnp.arange(3000))[0]

    xs = np.random.default_rng(2).normal(size=(2, 1000))
    ns = np.asarray([3000, 2111], np.int32)
    of = lambda batched: lambda xs: jnp.sum(jnp.cos(batched(xs, ns)))
    compiled = (
        jax.jit(
            jax.grad(
                of(
                    amp.vmap(
                        long,
                        lanes=1,
                        trips=8,
                    )
                )
            )
        )
        .lower(xs)
        .compile()
    )
    require_close(
        compiled(xs),
        jax.grad(of(jax.vmap(scanned)))(xs),
    )
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary < 100 * xs[0].nbytes


@pytest.mark.parametrize("slots", [2, 3, 64])
def test_any_number_of_trips_goes_back(slots, monkeypatch):
    """With two slots each carry is computed from the first one; 1 to 40 trips."""
    monkeypatch.setattr(reversible_loops, "SLOTS", slots)
    xs = np.linspace(0.1, 0.9, 41)
    ns = np.arange(41, dtype=np.int32)
    power = lambda x, n: lax.fori_loop(
        0,
        n,
        lambda _, y: y * x,
        1.0,
    )
    found = jax.grad(lambda xs: jnp.sum(amp.vmap(power, lanes=41, trips=2)(xs, ns)))(xs)
    require_close(found, ns * xs ** (ns - 1.0))


def test_under_vmap():
    power = lambda x, n: lax.fori_loop(
        0,
        n,
        lambda _, y: y * x,
        1.0,
    )
    of = lambda xs, ns: jnp.sum(amp.vmap(power, lanes=2, trips=2)(xs, ns))
    xs = np.linspace(0.1, 0.9, 6).reshape(2, 3)
    ns = np.asarray([[1, 2, 3], [0, 80, 1]])
    require_close(
        jax.vmap(jax.grad(of))(xs, ns),
        ns * xs ** (ns - 1.0),
    )


@pytest.mark.parametrize("form", FORMS)
def test_an_infinite_derivative_behind_the_last_trip_does_not_show(form):
    """The root has none at zero, where the first element stands without a trip."""
    root = lambda w, x, n: lax.fori_loop(
        0,
        n,
        lambda _, x: jnp.sqrt(x) * w,
        x,
    )
    xs = np.asarray([0.0, 16.0, 81.0])
    of = lambda w, xs: jnp.sum(
        vmapped(root, **FORMS[form])(
            w,
            xs,
            np.asarray([0, 1, 2]),
        )
    )
    found = jax.grad(of, (0, 1))(2.0, xs)
    # x; sqrt(x) w; sqrt(sqrt(x) w) w = x^(1/4) w^(3/2)
    require_close(found[0], 4 + 1.5 * 3 * np.sqrt(2))
    require_close(
        found[1],
        np.asarray([1.0, 2 / 8, 0.25 * 81**-0.75 * 2**1.5]),
    )


@pytest.mark.nightly
def test_second_derivatives():
    batched = vmapped(falling, lanes=2, trips=2)
    xs = XS[:2]
    of = lambda xs: loss(batched, W, xs, NS[:2])
    with jax.disable_jit():
        alone = lambda xs: loss(
            partial(one_by_one, falling),
            W,
            xs,
            NS[:2],
        )
        expected = jax.grad(lambda xs: jnp.sum(jnp.sin(jax.grad(alone)(xs))))(jnp.asarray(xs))
    directions = np.cos(jax.grad(of)(xs))
    require_close(
        jax.jvp(jax.grad(of), (xs,), (directions,))[1],
        expected,
    )
    require_close(
        jax.grad(lambda xs: jnp.sum(jnp.sin(jax.grad(of)(xs))))(xs),
        expected,
    )


def test_a_rule_of_the_users_that_loops_is_refused():
    """JAX does not differentiate a loop in a rule of `jax.custom_jvp` backwards, and a user's rule is not ours to rewrite."""

    @jax.custom_jvp
    def own(x, n):
        return x

    @own.defjvp
    def _(primals, tangents):
        x, n = primals
        return own(x, n), lax.fori_loop(
            0,
            n,
            lambda i, t: t * 2,
            tangents[0],
        )

    both = lambda w, x, n: own(turned(w, x, n), n)
    with pytest.raises(GraphError, match="gradient: expected derivatives that") as told:
        jax.grad(partial(loss, vmapped(both)))(W, XS)
    assert "jax.custom_vjp" in told.value.fix
