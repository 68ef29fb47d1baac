"""Windows of neighbours (`amp.window`): NumPy's windows, as graphs, as batches and as a plain function, with gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import examples, left_to_nightly
from support.model_laws import Compiled64

import ampjax as amp
from ampjax.errors import GraphError

SPEC = {
    "x": "float64[n,2]",
    "id": "int32[n]",
    "rows": "float64[m,k,2]",
}
FILL = 3
"""The id where there is no neighbour."""

TOLERANCE = 1e-10


def model(size):
    """A model with windows of computed elements, of ids, of inner sequences and of their totals."""

    def scored(p, xs):
        def score(x):
            return jnp.sum(jnp.sin(x * p["w"]))

        scaled = amp.map(lambda x: x * p["scale"], xs)
        return amp.map(score, amp.window(scaled, size))

    def loss(p, s):
        ids = amp.window(s["id"], size, fill=FILL)
        scores = scored(p, s["x"])
        own = amp.map(
            lambda y, near: y * near[0],
            scores,
            ids,
        )

        def total(row):
            return amp.sum(scored(p, row))

        totals = amp.map(total, s["rows"])
        near = amp.window(totals, size, fill=0.5)
        pairs = amp.map(
            lambda t: t[0] * t[-1],
            near,
        )
        return amp.sum(own) + amp.sum(pairs)

    return loss


def cut(xs, size, fill=0):
    """The windows of a sequence, `[n, size, ...]`."""
    n = len(xs)
    result = np.full(
        (n, size, *xs.shape[1:]),
        fill,
        xs.dtype,
    )
    for i in range(n):
        for k in range(size):
            at = i + k - size // 2
            if 0 <= at < n:
                result[i, k] = xs[at]
    return result


def by_numpy(size, p, s):
    """The loss; also for complex parameters."""

    def scored(xs):
        near = cut(xs * p["scale"], size)
        return np.sin(near * p["w"]).sum((1, 2))

    ids = cut(s["id"], size, FILL)
    own = scored(s["x"]) * ids[:, 0]
    totals = [scored(row).sum() for row in s["rows"]]
    pairs = cut(
        np.array(totals, np.complex128),
        size,
        0.5,
    )
    both = pairs[:, 0] * pairs[:, -1]
    return own.sum() + both.sum()


def parameters(size, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(size, 2)),
        "scale": rng.normal(size=2),
    }


def instance(n, sizes):
    rng = np.random.default_rng([n, *sizes])
    return {
        "x": rng.normal(size=(n, 2)),
        "id": rng.integers(1, 9, n).astype(np.int32),
        "rows": [rng.normal(size=(k, 2)) for k in sizes],
    }


def close(found, want):
    np.testing.assert_allclose(
        found,
        want,
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )


@functools.cache
def batched(size):
    return amp.vmap(
        model(size),
        SPEC,
        params=parameters(size),
    )


SIZES = [3, *left_to_nightly([1, 7])]
SHAPES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.integers(0, 3), max_size=2),
    ),
    min_size=1,
    max_size=2,
)


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=examples(32))
@example([(4, [3, 0, 1]), (0, [])])
@given(SHAPES)
def test_windows_are_what_numpy_cuts_out(size, shapes):
    """Values and, by a complex step, derivatives: of the plain model, and of a batch."""
    some = [instance(*shape) for shape in shapes]
    params = parameters(size)
    direction = parameters(size, seed=1)
    step = 1e-30
    moved = {}
    for name, value in params.items():
        moved[name] = value + 1j * step * direction[name]
    want = np.array(
        [
            by_numpy(
                size,
                moved,
                one,
            )
            for one in some
        ]
    )

    with jax.enable_x64(True), jax.disable_jit():
        own = model(size)

        def one_by_one(p):
            return jnp.stack([own(p, one) for one in some])

        by_itself = jax.jvp(
            one_by_one,
            (params,),
            (direction,),
        )
        in_a_batch = batched(size)
        batch = in_a_batch.pack(some)
        values, backward = jax.vjp(
            lambda p: in_a_batch(p, batch),
            params,
        )
        (grads,) = backward(jnp.ones_like(values))
    change = 0.0
    for name in params:
        change += np.vdot(grads[name], direction[name])
    derivatives = want.imag / step
    close(by_itself[0], want.real)
    close(by_itself[1], derivatives)
    close(values, want.real)
    close(change, derivatives.sum())


@pytest.mark.parametrize("size", SIZES)
def test_the_graph_computes_what_the_model_does(size):
    some = [
        instance(4, [3, 0, 1]),
        instance(0, []),
        instance(1, [2]),
    ]
    with jax.enable_x64(True):
        Compiled64(
            model(size),
            parameters(size),
            SPEC,
            some,
        ).check_direction()


def test_windows_in_a_loop_and_of_windows():
    def twice(p, s):
        xs = amp.map(
            lambda x: x * p["scale"],
            s["x"],
        )

        def step(carry, near):
            scaled = amp.map(lambda x: x * carry, xs)
            inside = amp.window(scaled, 3)
            total = amp.sum(amp.map(jnp.sum, inside))
            return jnp.tanh(total + near[1, 0, 0]), ()

        windows = amp.window(amp.window(xs, 3), 3)
        last, _ = amp.scan(step, p["scale"][0], windows)
        return last

    with jax.enable_x64(True):
        some = [instance(3, []), instance(0, [])]
        Compiled64(
            twice,
            parameters(3),
            SPEC,
            some,
        ).check_direction()
        in_a_batch = amp.vmap(
            twice,
            SPEC,
            params=parameters(3),
        )
        found = in_a_batch(
            parameters(3),
            in_a_batch.pack(some),
        )
        want = [
            twice(
                parameters(3),
                one,
            )
            for one in some
        ]
    close(found, want)


def test_pytrees_and_arrays_of_a_fixed_length_keep_their_dtypes():
    with jax.enable_x64(True):
        xs = {
            "a": np.arange(4, dtype=np.int16),
            "b": np.ones((4, 2), np.float32),
        }
        cut_out = functools.partial(
            amp.window,
            size=5,
            fill=-1,
        )
        windows = jax.jit(cut_out)(xs)
    for name, values in xs.items():
        want = cut(values, 5, -1)
        np.testing.assert_array_equal(
            windows[name],
            want,
            strict=True,
        )


@pytest.mark.parametrize("size", [0, 2, -1, 3.0])
def test_a_size_without_a_middle_is_refused(size):
    with pytest.raises(
        GraphError,
        match=r"expected an odd number .* got .*Give 3, 5",
    ):
        amp.window(np.ones(3), size)


@pytest.mark.parametrize("way", ["plain", "batch", "graph"])
def test_windows_of_sequences_are_refused(way):
    def wrong(p, s):
        windows = amp.window(s["rows"], 3)
        return amp.sum(
            amp.map(
                lambda near: p["w"].sum() * near.sum(),
                windows,
            )
        )

    with (
        jax.enable_x64(True),
        pytest.raises(
            GraphError,
            match=r"got a sequence of sequences\. Make windows of the inner",
        ),
    ):
        if way == "plain":
            rows = [
                np.ones((2, 2)),
                np.ones((1, 2)),
            ]
            wrong(parameters(3), {"rows": rows})
        elif way == "batch":
            amp.vmap(wrong, SPEC, params=parameters(3))
        else:
            amp.compile(wrong, parameters(3), SPEC)
