"""Any plain JAX function in lanes (`amp.vmap` without a spec): each element's results are the function's for that element alone, in any batch.

Programs are nested loops, choices and scans whose trips and ways each element decides, in float64.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from support.effort import NIGHTLY

import ampjax as amp
from ampjax.lanes import reversible_loops, splitting

WEIGHTS = np.random.default_rng(0).normal(size=(3, 3)) / 2
numbers = st.integers(0, 4)


def of_simple(name, own, state):
    """An operation without a loop or choice."""
    x, n = state
    if name == "product":
        return jnp.tanh(WEIGHTS @ x + own), n
    if name == "sort":
        return jnp.sort(x) * 0.9, n
    if name == "count":
        return x, (3 * n + own + 1) % 7
    return x.at[n % 3].add(0.1 * own + n), n


def of_while(trips, body, state):
    """A loop whose trips follow from the state before."""
    most = (state[1] + trips) % 6

    def trip(carry):
        i, inner = carry
        return i + 1, body(inner)

    return lax.while_loop(
        lambda carry: carry[0] < most,
        trip,
        (jnp.int32(0), state),
    )[1]


def of_falling(bound, body, state):
    """A loop that goes on until a carried number is small, so that its test needs the body."""

    def trip(carry):
        left, inner = carry
        x, n = body(inner)
        return left - 1 - n % 2, (x, n)

    return lax.while_loop(
        lambda carry: carry[0] > 0,
        trip,
        (state[1] + bound, state),
    )[1]


def of_scan(length, body, state):
    """A scan, forwards or backwards, that reads rows and whose rows are added up."""

    def step(inner, row):
        x, n = body(inner)
        return (x * row, n), (x[0] + row, n)

    rows = jnp.linspace(0.5, 1.0, length)
    (x, n), (sums, counts) = lax.scan(
        step,
        state,
        rows,
        reverse=length % 2 == 0,
    )
    return x + jnp.sum(sums) / (length + 1), (n + jnp.sum(counts).astype(jnp.int32)) % 7


def of_cond(threshold, body, other, state):
    """A choice by a number, or by a value."""
    if threshold % 2:
        which = state[0][0] > 0.1 * threshold
    else:
        which = state[1] > threshold
    return lax.cond(which, body, other, state)


def of_switch(parts, state):
    """A choice of several."""
    return lax.switch(state[1] % len(parts), parts, state)


def chained(parts, state):
    for part in parts:
        state = part(state)
    return state


def larger(inner):
    """Programs that hold others."""
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda parts: partial(chained, parts)),
        st.builds(partial, st.just(of_while), numbers, inner),
        st.builds(partial, st.just(of_falling), numbers, inner),
        st.builds(
            partial,
            st.just(of_scan),
            st.integers(1, 5),
            inner,
        ),
        st.builds(partial, st.just(of_cond), numbers, inner, inner),
        st.builds(partial, st.just(of_switch), several),
    )


simple = st.builds(
    partial,
    st.just(of_simple),
    st.sampled_from(["product", "sort", "count", "add"]),
    numbers,
)
programs = st.recursive(simple, larger, max_leaves=6)


def each_alone(program, xs, ns):
    """Results of the elements, operation by operation."""
    with jax.disable_jit():
        result = []
        for x, k in zip(xs, ns, strict=True):
            result.append(
                program(
                    (
                        jnp.asarray(x),
                        jnp.asarray(k),
                    )
                )
            )
        return result


@settings(max_examples=500 if NIGHTLY else 25)
@given(
    programs,
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 1 << 16),
)
def test_each_element_gets_what_it_gets_alone(program, n, lanes, trips, seed):
    """Elements in another order, with other neighbours, have the same bits."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(splitting, "DEAR", 0)
        xs = rng.normal(size=(n, 3))
        ns = rng.integers(0, 7, n).astype(np.int32)
        run = amp.vmap(
            lambda x, n: program((x, n)),
            lanes=lanes,
            trips=trips,
        )
        found = run(xs, ns)
        again = run(xs[order], ns[order])
        alone = each_alone(program, xs, ns)
    for i, (x, k) in enumerate(alone):
        np.testing.assert_allclose(
            found[0][i],
            x,
            rtol=1e-9,
            atol=1e-9,
        )
        assert found[1][i] == k
    for a, b in zip(found, again, strict=True):
        assert np.asarray(a[order]).tobytes() == np.asarray(b).tobytes()


@settings(max_examples=500 if NIGHTLY else 8)
@given(
    programs,
    st.integers(2, 6),
    st.integers(0, 1 << 16),
)
def test_one_after_another_is_what_each_gets_alone(program, n, seed):
    """In one kernel where all operations can be in one, also where XLA knows all arguments."""
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(splitting, "DEAR", 0)
        patch.setattr("ampjax.lanes.lane_function.fastest", lambda *_: "map")
        xs = rng.normal(size=(n, 3))
        ns = rng.integers(0, 7, n).astype(np.int32)
        run = amp.vmap(lambda x, n: program((x, n)))
        found = run(xs, ns)
        known = jax.jit(lambda: run(xs, ns))()
        alone = each_alone(program, xs, ns)
    for i, (x, k) in enumerate(alone):
        np.testing.assert_allclose(
            found[0][i],
            x,
            rtol=1e-9,
            atol=1e-9,
        )
        np.testing.assert_allclose(
            known[0][i],
            x,
            rtol=1e-9,
            atol=1e-9,
        )
        assert found[1][i] == known[1][i] == k


@settings(max_examples=200 if NIGHTLY else 5)
@given(
    programs,
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 4),
    st.integers(0, 1 << 16),
)
def test_gradients_are_those_of_unrolled_loops(program, n, lanes, slots, seed):
    """Of the elements' own numbers and of a shared one, backwards through loops that keep two to four carries."""
    rng = np.random.default_rng(seed)

    def loss(run, scale, xs):
        return jnp.sum(run(scale, xs) * np.arange(1.0, 4.0))

    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(splitting, "DEAR", 0)
        patch.setattr(reversible_loops, "SLOTS", slots)
        xs = rng.normal(size=(n, 3))
        ns = rng.integers(0, 7, n).astype(np.int32)
        one = lambda scale, x, k: program((x * scale, k))[0]
        lanes_of = amp.vmap(
            one,
            in_axes=(None, 0, 0),
            lanes=lanes,
            trips=2,
        )
        run = lambda scale, xs: lanes_of(scale, xs, ns)
        found = jax.jit(
            jax.grad(
                partial(loss, run),
                (0, 1),
            )
        )(
            0.9,
            xs,
        )

        def alone(scale, xs):
            return jnp.stack([one(scale, x, k) for x, k in zip(xs, jnp.asarray(ns), strict=True)])

        with jax.disable_jit():
            expected = jax.grad(partial(loss, alone), (0, 1))(
                0.9,
                jnp.asarray(xs),
            )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@settings(max_examples=100 if NIGHTLY else 3)
@given(
    programs,
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 1 << 16),
)
def test_a_stream_gives_what_a_call_gives(program, n, lanes, trips, block, seed):
    """In blocks of any size, each element once."""
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(splitting, "DEAR", 0)
        xs = rng.normal(size=(n, 3))
        ns = rng.integers(0, 7, n).astype(np.int32)
        run = amp.vmap(
            lambda x, n: program((x, n)),
            lanes=lanes,
            trips=trips,
        )
        expected = run(xs, ns)
        pairs = run.stream(
            zip(xs, ns, strict=True),
            ordered=False,
            block=block,
        )
        found = list(pairs)
    assert sorted(number for number, _ in found) == list(range(n))
    for number, (x, k) in found:
        np.testing.assert_allclose(
            x,
            expected[0][number],
            rtol=1e-9,
            atol=1e-9,
        )
        assert k == expected[1][number]
