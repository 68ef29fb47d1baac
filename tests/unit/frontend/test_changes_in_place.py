"""Single elements of a carried sequence that a loop changes and reads by computed numbers: right, and without work for all other elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.jaxpr_walks import equations_in
from support.model_laws import check_batch
from support.numbered_elements import PARAMS, SPEC, example

import ampjax as amp
from ampjax.frontend.loops.changed_rows import set_rows

EXAMPLES = [example(seed, n) for seed, n in enumerate([3, 1, 5])]


def elements(s):
    """The number of each element, the element, and the number of another one."""
    return jnp.arange(s["x"].shape[0]), s["x"], s["at"]


def updates(p, s):
    """All kinds of updates, with reads between."""

    def step(c, t):
        i, x, j = t
        c = c.at[i].set(p["a"] * c[j])
        c = c.at[j].add(jnp.sin(x) * p["b"])
        c = c.at[i].mul(p["a"] * c[j] + 1)
        c = c.at[j].max(x)
        c = c.at[i].min(p["a"])
        return c, c[j]

    last, ys = jax.lax.scan(
        step,
        p["b"] * s["x"],
        elements(s),
    )
    return jnp.sum(jnp.cos(last)) + jnp.sum(jnp.sin(ys))


def parts_of_elements(p, s):
    """Entries of elements, and slices, from the last element to the first."""

    def step(c, t):
        i, x, j = t
        c = c.at[i, 1].set(p["a"] * x)
        c = c.at[j, j % 3].add(p["b"])
        c = c.at[i, :2].mul(c[j, 1:])
        c = jax.lax.dynamic_update_index_in_dim(
            c,
            jnp.tanh(c[i]) * p["a"],
            j,
            0,
        )
        return c, jnp.sum(c[j])

    last, ys = jax.lax.scan(
        step,
        p["b"] * s["m"],
        elements(s),
        reverse=True,
    )
    return jnp.sum(last**2) + jnp.sum(ys)


def outside(p, s):
    """Numbers that no element has, counted from the end, and computed ones."""

    def step(carry, t):
        c, at = carry
        i, x, j = t
        c = c.at[j + 3].set(p["a"] * x)
        c = c.at[-1 - i].add(
            p["b"]
            * c.at[j + 2].get(
                mode="fill",
                fill_value=2.0,
            )
        )
        c = c.at[at].set(x * c[at])
        return (c, (5 * at + 1 + (x > 0)) % c.shape[0]), c[0]

    start = p["b"] * s["x"], jnp.int32(0)
    (last, at), ys = jax.lax.scan(
        step,
        start,
        elements(s),
    )
    return jnp.sum(last**2) + jnp.sum(ys) + at


def in_branches(p, s):
    """Changes in branches that a computed value chooses, and of copies that are thrown away."""

    def step(c, t):
        i, x, j = t
        c = jax.lax.cond(
            c[i] * x > 0,
            lambda c: c.at[j].set(p["a"] * x).at[i].add(c[j]),
            lambda c: c.at[i].mul(p["b"]),
            c,
        )
        other = c.at[i].set(x)
        c = jnp.where(
            x > 0,
            c.at[j].add(p["b"]),
            c,
        )
        return c.at[j].mul(other[i]), jnp.sum(other) * other[j]

    last, ys = jax.lax.scan(
        step,
        p["b"] * s["x"] + 0.1,
        elements(s),
    )
    return jnp.sum(last**2) + jnp.sum(ys)


def in_inner_loops(p, s):
    """A loop in a loop; parts of the carry that take each other's place; whole reads."""

    def step(carry, t):
        c, d = carry
        i, x, j = t

        def inner(e, u):
            k, y = u
            return e.at[k].set(jnp.tanh(p["a"] * e[j] + x * y)), e[i]

        c, ys = jax.lax.scan(
            inner,
            c,
            (jnp.arange(c.shape[0]), s["x"]),
        )
        own = jax.lax.scan(
            inner,
            s["x"] * x,
            (jnp.arange(c.shape[0]), s["x"]),
        )[0]
        e = d.at[i].set(jnp.max(c) * p["b"])
        return (e, jnp.tanh(c).at[j].add(own[i])), jnp.sum(ys)

    (c, d), ys = jax.lax.scan(
        step,
        (p["b"] * s["x"], s["x"]),
        elements(s),
    )
    return jnp.sum(c * d) + jnp.sum(ys)


def in_rounds(p, s):
    """Loops that a computed value ends, and such as the example counts."""

    def goes_on(carry):
        i, c, _ = carry
        return (i < 4) & (jnp.sum(c) < 9)

    def turn(carry):
        i, c, at = carry
        at = (5 * at + i) % c.shape[0]
        c = c.at[at].add(p["a"] * i)
        return i + 1, c.at[i].set(c[at] * p["b"]), at

    i, c, _ = amp.while_loop(
        goes_on,
        turn,
        (
            jnp.int32(0),
            s["x"] * p["a"],
            jnp.int32(0),
        ),
        most=6,
    )
    c = amp.fori_loop(
        s["k"],
        lambda i, c: c.at[i].set(p["a"] * c[i] + p["b"]),
        c,
    )
    return jnp.sum(c**2) + i


def of_whole_numbers(p, s):
    """Counts and truth values, which have no derivative."""

    def step(carry, t):
        seen, counts, total = carry
        i, x, j = t
        total = total + jnp.where(
            seen[j],
            x * p["a"],
            p["b"],
        )
        counts = counts.at[j].set(counts[i] + 1).at[i].add(2)
        return (seen.at[j].set(True), counts, total), None

    start = (
        jnp.zeros(
            s["at"].shape,
            bool,
        ),
        jnp.zeros_like(s["at"]),
        p["b"],
    )
    (seen, counts, total), _ = jax.lax.scan(
        step,
        start,
        elements(s),
    )
    return total + jnp.sum(counts) + jnp.sum(seen)


def agrees(function):
    with jax.enable_x64(True):
        # only the example that runs by itself knows when a loop ends
        check_batch(
            function,
            PARAMS,
            SPEC,
            EXAMPLES,
            is_traced=function is not in_rounds,
        )


@pytest.mark.parametrize("function", [updates, in_branches, in_rounds])
def test_values_and_gradients(function):
    agrees(function)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function",
    [
        parts_of_elements,
        outside,
        in_inner_loops,
        of_whole_numbers,
    ],
)
def test_values_and_gradients_of_others(function):
    agrees(function)


def table(p, s):
    """Values in a table that each step reads at a known place and writes at its own."""

    def step(c, t):
        i, x, j = t
        v = jnp.tanh(p["a"] * c[j] + x)
        return c.at[i].set(v), v

    last, ys = jax.lax.scan(
        step,
        jnp.zeros_like(s["x"]),
        elements(s),
    )
    return jnp.sum(last * ys)


def stack(p, s):
    """A stack, with the number of its top."""

    def step(carry, t):
        c, top = carry
        _, x, _ = t
        c = c.at[top].set(p["a"] * x)
        return (
            c,
            jnp.where(
                x > 0,
                top + 1,
                jnp.maximum(top - 1, 0),
            ),
        ), c[top]

    start = jnp.zeros_like(s["x"]), jnp.int32(0)
    (last, _), ys = jax.lax.scan(
        step,
        start,
        elements(s),
    )
    return p["b"] * jnp.sum(last) + jnp.sum(ys)


def pointer(p, s):
    """The element that the state likes best, of a sequence outside the loop."""
    xs = jnp.asarray(s["x"])

    def step(h, x):
        best = jnp.argmax(xs * h) + jnp.argmin(xs * h)
        return jnp.tanh(p["a"] * xs[best // 2] + p["b"] * h + x), h

    last, ys = jax.lax.scan(
        step,
        jnp.ones_like(p["a"]),
        s["x"],
    )
    return last + jnp.sum(ys)


@pytest.mark.parametrize(
    "function",
    [table, stack, pointer],
)
def test_work_grows_with_the_length_and_not_with_its_square(function):
    n = 40
    examples = [example(seed, n) for seed in range(2)]
    with jax.enable_x64(True):
        check_batch(
            function,
            PARAMS,
            SPEC,
            examples,
            is_traced=True,
        )
        batched = amp.vmap(function, SPEC, params=PARAMS)
        batch = batched.pack(examples)
        grad = jax.make_jaxpr(jax.grad(lambda p: jnp.sum(batched(p, batch))))(PARAMS)
    sizes = [leaf.size for leaf in jax.tree.leaves(batch)]
    for equation in equations_in(grad.jaxpr):
        sizes += [out.aval.size for out in equation.outvars]
    # nothing has a number for each element in each step
    assert max(sizes) < n * n


def test_a_replaced_row_has_no_cotangent_even_where_the_new_one_has_none_that_is_finite():
    at = jnp.array([1, 9])
    _, pull = jax.vjp(
        lambda rows, new: set_rows(rows, at, new),
        jnp.ones(4),
        jnp.ones(2),
    )
    of_rows, of_new = pull(jnp.array([1.0, jnp.nan, 2.0, 3.0]))
    np.testing.assert_array_equal(
        of_rows,
        [1, 0, 2, 3],
    )
    np.testing.assert_array_equal(
        of_new,
        [np.nan, 0],
    )
