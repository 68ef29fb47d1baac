"""Programs as a newcomer writes programs, in a batch: values and gradients agree with the function, example by example; advice in errors works."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.lax import associative_scan
from support.effort import (
    left_to_nightly,
)
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import GraphError

XENT = optax.softmax_cross_entropy_with_integer_labels
RNG = np.random.default_rng(0)
PARAMS = {
    "e": RNG.normal(size=(5, 2)),
    "w": 0.5 * RNG.normal(size=(2, 2)),
    "u": 0.5 * RNG.normal(size=(2, 2)),
    "b": RNG.normal(size=2),
}
SPEC = {
    "x": "float64[n,2]",
    "rows": "float64[n,c,2]",
    "i": "int32[n]",
    "y": "float64[m,2]",
}


def example(sizes, m):
    n = len(sizes)
    return {
        "x": RNG.normal(size=(n, 2)),
        "rows": amp.Ragged(
            RNG.normal(size=(sum(sizes), 2)),
            np.array(sizes),
        ),
        "i": RNG.integers(0, 5, n).astype(np.int32),
        "y": RNG.normal(size=(m, 2)),
    }


EXAMPLES = [
    example([2, 1, 3], 2),
    example([4], 1),
    example([1, 2, 0, 3, 1], 4),
]


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


def agrees(function, is_traced=False):
    """Compares a batch with the function on each example."""
    with jax.enable_x64(True):
        check_batch(
            function,
            PARAMS,
            SPEC,
            EXAMPLES,
            is_traced=is_traced,
        )


def weight_on_the_left(p, s):
    """Products with the rows of a loop behind, of as many rows as a weight may have."""

    def step(h, x):
        scores = jnp.outer(h, p["e"] @ x)
        best, _ = jax.lax.top_k(scores.reshape(-1), 2)
        return jnp.tanh(best + p["w"] @ x + p["u"] @ h), h

    last, before = amp.scan(step, p["b"], s["x"])
    return last.sum() + amp.sum(before)[0]


def products(p, s):
    xs = s["x"] * p["b"]
    # a factor of zero has a derivative, and two have none
    xs = xs * (jnp.arange(xs.shape[0]) % 3 > 0)[:, None] + 1e-3 * s["x"]
    inner = amp.map(
        lambda row: jnp.prod(row @ p["w"] + 1),
        s["rows"],
    )
    number = jnp.prod(s["i"])
    return jnp.prod(jnp.cos(xs)) + jnp.sum(jnp.prod(xs, 0)) + amp.sum(inner) + number * p["b"][0]


def extremes(p, s):
    xs = s["x"] @ p["w"]
    largest = jax.lax.cummax(xs) + jax.lax.cummin(xs, reverse=True)
    numbers = jax.lax.cummax(s["i"]) - jax.lax.cummin(s["i"])
    best, at = jax.lax.top_k(xs @ p["e"].T, 3)
    rest = jnp.sum(best * jnp.cos(at)) + jnp.sum(numbers * xs[:, 0])
    return jnp.sum((largest + jax.lax.cumlogsumexp(xs)) * xs) + rest


def updates(p, s):
    xs = s["x"] @ p["w"]
    at = jnp.argmax(xs[:, 0])
    changed = [
        xs.at[at].set(p["b"]),
        xs.at[0].add(xs[-1]),
        xs.at[-1, 1].multiply(p["b"][0]),
        xs.at[at, 0].max(0.3),
        xs.at[:, 0].set(p["b"][1]),
        xs.at[:, 1].add(xs[:, 0]),
        xs.at[at + 7].set(p["b"]),
        xs.at[amp.length(s["x"]) // 2].min(0.0),
    ]
    return sum(jnp.sum(jnp.sin(each) * (1 + i) * xs) for i, each in enumerate(changed))


def updates_at_arrays(p, s):
    """Updates at several numbers of an array: one twice, and one above the lengths of all sequences."""
    xs = s["x"] @ p["w"]
    numbers = jnp.array([0, 1, -1, 7, 1])
    changes = xs[0, 0] + jnp.arange(5)
    beside = numbers % 2
    changed = [
        xs.at[numbers].add(p["e"]),
        xs.at[numbers, 1].max(changes - 2.5),
        xs.at[numbers, beside].min(0.1),
        xs.at[numbers[:4]].multiply(
            p["e"][:4],
            unique_indices=True,
            mode="drop",
        ),
        xs.at[s["i"][0] + numbers[:2]].set(p["b"]),
        jax.vmap(lambda row: jnp.sum(xs.at[numbers[:2]].max(row)))(xs),
    ]
    return sum(jnp.sum(jnp.sin(each) * (1 + i)) for i, each in enumerate(changed))


def reads_of_columns(p, s):
    """Reads along the elements' axis behind another axis, as in a `jax.vmap` of columns."""
    xs = s["x"] @ p["w"]
    ys = s["y"] * p["b"]
    numbers = jnp.array([0, -1, 0])
    of_columns = lambda read: jax.vmap(read, in_axes=1, out_axes=1)(xs)
    read = [
        of_columns(lambda column: column[::-1]),
        of_columns(lambda column: column[1:]),
        of_columns(lambda column: column[numbers]),
        xs.T[1, ::-1],
        jnp.flip(
            jnp.einsum("ih,jh->hij", xs, ys),
            (0, 2),
        ),
    ]
    return sum(weighted(jnp.sin(each)) * (1 + i) for i, each in enumerate(read))


def weighted(x):
    """The sum of an array's entries, each times a number of its own."""
    for _ in range(x.ndim):
        x = jnp.sum(
            x * (1 + jnp.arange(x.shape[0])).reshape(-1, *[1] * (x.ndim - 1)),
            0,
        )
    return x


def sums_by_number(p, s):
    """Sums, maxima and replacements by numbers of elements: of other sequences, of arrays, in a map, and in the choices of a loop."""
    xs = s["x"] @ p["w"]
    ys = s["y"] * p["b"]
    best = jnp.argmax(xs, 1)
    arrived = jax.ops.segment_sum(
        xs,
        s["i"],
        ys.shape[0],
    )  # numbers beyond change nothing
    order = jnp.argsort(xs[:, 0])
    largest = jax.ops.segment_max(
        xs[:, 1],
        order % 2,
        xs.shape[0],
    )
    changed = [
        jnp.zeros(5).at[s["i"]].add(1.0) * p["e"][:, 0],
        jnp.zeros((5, 2)).at[s["i"], best].add(xs[:, 0]),
        jnp.full((3, 2), -0.1).at[-1 - s["i"]].max(xs),
        xs.at[order].set(s["x"] * p["b"]),
        xs.at[order, best].min(0.1),
        ys.at[best].multiply(1.5) * p["b"][0],
    ]

    def of_row(row, x):
        return jnp.zeros(2).at[jnp.argmax(row, 1)].add(row @ p["w"] @ x)

    def step(h, row):
        at = jnp.argmin(row, 1)
        sent = jnp.zeros_like(xs).at[at].add(row * h)
        chosen = amp.cond(
            h[0] > 0,
            lambda: p["b"].at[at].add(row @ h),
            lambda: amp.sum(sent),
        )
        return jnp.tanh(h + amp.sum(jnp.sin(sent)) + chosen), None

    last, _ = amp.scan(step, p["b"], s["rows"])
    inner = amp.map(of_row, s["rows"], s["x"])
    found = last.sum()
    for i, each in enumerate(changed):
        found += jnp.sum(jnp.sin(each) * (1 + i))
    is_there = jnp.isfinite(largest)
    found += jnp.sum(
        jnp.where(
            is_there,
            largest,
            0,
        )
    )
    found += jnp.sum(jnp.tanh(arrived))
    return found + jnp.sum(jnp.sin(inner))


def stack_machine(p, s):
    """Pushes and pops by the word: a sequence that is carried holds the stack."""

    def step(carry, pair):
        top, stack = carry
        i, x = pair
        h = jnp.tanh(x @ p["w"] + stack[jnp.maximum(top - 1, 0)])
        stack = jnp.where(
            i > 1,
            stack.at[top].set(h),
            stack,
        )
        return (
            jnp.where(
                i > 1,
                top + 1,
                jnp.maximum(top - 1, 0),
            ),
            stack,
        ), h

    start = (
        jnp.int32(0),
        jnp.zeros_like(s["x"]),
    )
    (_, stack), hs = amp.scan(
        step,
        start,
        (s["i"], s["x"]),
    )
    return jnp.sum(stack**2) + amp.sum(hs).sum()


def time_warping(p, s):
    def row(above, x):
        def cell(left, pair):
            y, up = pair
            value = jnp.sum((x @ p["w"] - y) ** 2) + jax.nn.logsumexp(jnp.stack([left, up]))
            return value, value

        return amp.scan(
            cell,
            jnp.asarray(1.0),
            (s["y"], above),
        )[1], None

    start = amp.map(
        lambda y: jnp.zeros(()) + 1.0,
        s["y"],
    )
    return amp.sum(amp.scan(row, start, s["x"])[0])


def choices_in_a_loop(p, s):
    def step(h, row):
        number = jnp.argmax(
            jnp.stack(
                [
                    h[0],
                    h[1],
                    0 * h[0],
                ]
            )
        )
        branches = [
            lambda: amp.sum(row),
            lambda: jnp.tanh(
                amp.sum(
                    amp.map(
                        lambda c: c @ p["w"],
                        row,
                    )
                )
            ),
            lambda: h @ p["u"],
        ]
        mapped = amp.cond(
            h[0] > 0,
            lambda: amp.map(
                lambda c: c @ p["w"],
                row,
            ),
            lambda: amp.map(lambda c: c * h, row),
        )
        return jnp.tanh(h + amp.switch(number, branches) + amp.sum(mapped)), None

    return amp.scan(
        step,
        p["b"],
        s["rows"],
    )[0].sum()


def walk(p, s):
    """A loop carries a place, and goes on from the place by the element there."""
    xs = amp.map(
        lambda x: jnp.tanh(x @ p["w"]),
        s["x"],
    )
    n = amp.length(s["x"])

    def step(carry, x):
        at, h = carry
        h = jnp.tanh(h + amp.take(xs, at))
        return (
            ((at + 1 + jnp.sum(h > 0)) % n).astype(jnp.int32),
            h,
        ), None

    (_, h), _ = amp.scan(
        step,
        (jnp.int32(0), p["b"]),
        s["x"],
    )
    return h.sum()


def checkpointed(p, s):
    """Parts of a model that are computed again: a layer of whole sequences, a cell with inner sequences, one in another."""

    @jax.checkpoint
    def layer(xs):
        scores = jax.nn.softmax(
            xs @ p["w"] @ xs.T,
            axis=1,
        )
        return amp.map(
            lambda x, y: jnp.tanh(x + y),
            xs,
            scores @ xs,
        )

    @jax.checkpoint
    def step(h, row):
        inner = jax.checkpoint(
            lambda h: amp.map(
                lambda c: jnp.tanh(c @ p["u"] + h),
                row,
            )
        )
        return jnp.tanh(h + amp.sum(inner(h))), h

    last, hs = amp.scan(step, p["b"], s["rows"])
    return last.sum() + amp.sum(hs).sum() + jnp.sum(layer(layer(s["x"])))


PROGRAMS = [
    weight_on_the_left,
    products,
    extremes,
    updates,
    updates_at_arrays,
    reads_of_columns,
    sums_by_number,
    stack_machine,
    time_warping,
    choices_in_a_loop,
    walk,
    checkpointed,
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        weight_on_the_left,
        products,
        updates,
        *left_to_nightly(
            PROGRAMS,
            weight_on_the_left,
            products,
            updates,
        ),
    ],
)
def test_a_batch_computes_what_the_function_does(
    function,
):
    agrees(function)


def test_second_derivatives_of_products_with_a_zero():
    def model(p, s):
        return jnp.prod(s["x"][:, 0] * p["b"][0] + p["b"][1] * s["x"][:, 1])

    first, *others = EXAMPLES
    zero = {
        **first,
        "x": np.concatenate(
            [
                np.zeros((1, 2)),
                first["x"][1:],
            ]
        ),
    }
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        batch = batched.pack([zero, *others])
        found = jax.hessian(lambda p: batched(p, batch).sum())(PARAMS)["b"]["b"]
        want = 0
        for each in [zero, *others]:
            want += jax.hessian(model)(PARAMS, each)["b"]["b"]
    np.testing.assert_allclose(found, want, rtol=1e-9)


def test_a_checkpointed_part_is_computed_again_in_the_backward_pass():
    def model(p, s, wrap):
        layer = wrap(
            lambda xs: amp.map(
                lambda x: jnp.tanh(x @ p["w"]),
                xs,
            )
        )
        return jnp.sum(layer(layer(s["x"])))

    with jax.enable_x64(True):
        counts = []
        for wrap in (
            jax.checkpoint,
            lambda f: f,
        ):
            batched = amp.vmap(
                lambda p, s, wrap=wrap: model(p, s, wrap),
                SPEC,
                params=PARAMS,
            )
            batch = batched.pack(EXAMPLES)
            total = lambda p, batched=batched, batch=batch: batched(p, batch).sum()
            text = str(jax.make_jaxpr(jax.grad(total))(PARAMS))
            counts.append(
                (
                    text.count("prevent_cse=True"),
                    text.count(" tanh "),
                )
            )
    assert counts == [(2, 4), (0, 2)]


def test_messages_take_a_checkpointed_part():
    def model(p, s):
        part = lambda w, xs: amp.scan(
            lambda h, x: (
                jnp.tanh(h @ w + x),
                None,
            ),
            jnp.zeros(2),
            xs,
        )
        return jnp.sum(jax.checkpoint(part)(p["w"], s["x"])[0])

    params = {"w": PARAMS["w"].astype(np.float32)}
    compiled = amp.compile(
        model,
        params,
        {"x": "float32[n,2]"},
    )
    plain = amp.compile(
        lambda p, s: jnp.sum(
            amp.scan(
                lambda h, x: (
                    jnp.tanh(h @ p["w"] + x),
                    None,
                ),
                jnp.zeros(2),
                s["x"],
            )[0]
        ),
        params,
        {"x": "float32[n,2]"},
    )
    assert len(compiled.graph.nodes) == len(plain.graph.nodes)


ADVICE = {
    "approx_top_k": (
        lambda p, s: jnp.sum(jax.lax.approx_max_k(s["x"][:, 0], 1)[0]),
        r"`jax\.lax\.top_k`.*`jnp\.sort\(xs\)\[::-1\]\[:k\]`",
        lambda p, s, xs: (
            jnp.sum(jnp.sort(xs[:, 0])[::-1][:2]) + jnp.sum(jax.lax.top_k(xs[:, 0], 1)[0])
        ),
    ),
    "diagonal": (
        lambda p, s: jnp.sum(
            jnp.diagonal(
                s["x"] @ s["y"].T,
                offset=1,
            )
        ),
        r"`jnp\.diagonal\(a, offset=1\)`.*`a\[i, j\]`",
        lambda p, s, xs: jnp.sum(
            (xs @ s["y"].T)[
                jnp.arange(xs.shape[0]),
                s["i"] % 1,
            ]
            ** 2
        ),
    ),
    "linspace": (
        lambda p, s: jnp.linspace(
            0,
            1,
            s["x"].shape[0],
            retstep=True,
        )[1],
        r"`jnp\.arange\(xs\.shape\[0\]\) / jnp\.maximum\(amp\.length\(xs\) - 1, 1\)`",
        lambda p, s, xs: jnp.sum(
            xs[:, 0] * jnp.arange(xs.shape[0]) / jnp.maximum(amp.length(xs) - 1, 1)
        ),
    ),
    "delete": (
        lambda p, s: jnp.sum(
            jnp.delete(
                s["x"],
                jnp.array([0, 1]),
                axis=0,
            )
        ),
        r"`jnp\.insert\(xs, 1, x, axis=0\)`.*`xs\[numbers\]`",
        lambda p, s, xs: jnp.sum(xs[jnp.arange(xs.shape[0] - 1)] ** 3),
    ),
    "pad": (
        lambda p, s: jnp.sum(
            jnp.pad(
                s["x"],
                (
                    (0, 16 - s["x"].shape[0]),
                    (0, 0),
                ),
            )
        ),
        r"`jnp\.zeros\(\(16, d\)\)\.at\[: xs\.shape\[0\]\]\.set\(xs\)`",
        lambda p, s, xs: jnp.sum(
            jnp.sin(jnp.zeros((16, 2)).at[: xs.shape[0]].set(xs) + jnp.arange(16)[:, None])
        ),
    ),
    "det": (
        lambda p, s: jnp.linalg.det(s["x"] @ s["x"].T),
        r"decomposed has a fixed size.*`xs\.T @ xs`",
        lambda p, s, xs: jnp.linalg.det(xs.T @ xs),
    ),
    "searchsorted": (
        lambda p, s: jnp.searchsorted(
            jnp.sort(s["x"][:, 0]),
            0.0,
        ),
        r"`jnp\.sum\(xs < x\)`",
        lambda p, s, xs: jnp.sum(xs[:, 0] < 0.0) * p["b"][0],
    ),
    "convolve": (
        lambda p, s: jnp.sum(
            jnp.convolve(
                s["x"][:, 0],
                s["y"][:, 1],
            )
        ),
        r"`amp\.map\(f, amp\.window\(xs, 3\)\)`",
        lambda p, s, xs: amp.sum(
            amp.map(
                lambda w: jnp.sum(w[:2] * w[1:]),
                amp.window(xs, 3),
            )
        ),
    ),
    "scatter-add": (
        lambda p, s: jnp.sum(
            jnp.zeros((5, s["x"].shape[0])).at[s["i"], s["i"]].add(1.0) @ s["x"],
        ),
        r"`jax\.ops\.segment_sum\(xs\[senders\], receivers, n\)`",
        lambda p, s, xs: jnp.sum(
            jnp.tanh(
                jax.ops.segment_sum(
                    xs[s["i"] % 1],
                    s["i"],
                    5,
                )
            ),
        ),
    ),
    "associative_scan": (
        lambda p, s: jnp.sum(associative_scan(jnp.add, s["x"])),
        r"`jax\.lax\.associative_scan\(f, xs\)`; else use `amp\.scan`, or `jnp\.cumsum`",
        lambda p, s, xs: (
            jnp.sum(jnp.cumsum(xs, 0) ** 2)
            + jnp.sum(xs * p["e"][jnp.arange(xs.shape[0])])
            + jnp.sum(
                amp.map(
                    XENT,
                    (xs @ p["e"].T)[:-1],
                    s["i"][1:],
                )
            )
        ),
    ),
    "permutation": (
        lambda p, s: jnp.sum(
            jax.random.permutation(
                jax.random.key(0),
                s["x"],
            )
        ),
        r"`xs\[jnp\.argsort\(draws\)\]`",
        lambda p, s, xs: jnp.sum(xs[jnp.argsort(s["x"][:, 1])] * s["x"]),
    ),
}


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("name", ADVICE)
def test_a_function_without_a_form_is_told_how_to_be_written(
    name,
):
    function, advice, _ = ADVICE[name]
    with pytest.raises(
        GraphError,
        match=rf"test_usual_programs.py:\d+.*got `{name}` on a whole.*{advice}",
    ):
        amp.vmap(
            function,
            SPEC,
            params=PARAMS,
        )


def dropped(p, s):
    """Drops entries of whole sequences, and draws a choice without an operand in a loop."""

    def step(h, row):
        row = amp.dropout(row, 0.2)
        is_taken = amp.stochastic(
            lambda key: jax.random.bernoulli(key, 0.5),
            lambda: jnp.array(True),
        )
        new = jnp.tanh(amp.sum(row) @ p["w"] + h)
        return amp.cond(
            is_taken,
            lambda: new,
            lambda: h @ p["u"],
        ), None

    return amp.scan(step, p["b"], s["rows"])[0].sum() + jnp.sum(
        amp.dropout(
            s["x"] @ p["w"],
            0.5,
        )
    )


@pytest.mark.slow
def test_what_is_drawn_for_whole_sequences_and_in_loops_has_the_gradient_of_differences():
    agrees(dropped)
    key = jax.random.key(3)
    with jax.enable_x64(True):
        batched = amp.vmap(dropped, SPEC, params=PARAMS)
        batch = batched.pack(EXAMPLES)
        total = jax.jit(jax.value_and_grad(lambda p: batched(p, batch, key=key).sum()))
        value, grads = total(PARAMS)
        assert abs(value - batched(PARAMS, batch).sum()) > 1e-3
        for (
            name,
            array,
        ) in PARAMS.items():
            if name == "e":
                continue
            change = 1e-6 * np.cos(np.arange(array.size)).reshape(array.shape)
            above = total(
                {
                    **PARAMS,
                    name: array + change,
                }
            )[0]
            below = total(
                {
                    **PARAMS,
                    name: array - change,
                }
            )[0]
            want = np.sum(np.asarray(grads[name]) * change)
            np.testing.assert_allclose(
                (above - below) / 2,
                want,
                rtol=1e-5,
                atol=1e-12,
            )


@pytest.mark.usefixtures("wide")
def test_draws_of_a_whole_sequence_are_told_how_to_be_written():
    def drawn(p, s):
        noise = lambda key, xs: xs + jax.random.normal(key, (1, 2))
        return jnp.sum(
            amp.stochastic(
                noise,
                lambda xs: xs,
                s["x"],
            )
        )

    with pytest.raises(
        GraphError,
        match=r"got `amp.stochastic` on a whole.*Draw for each element",
    ):
        amp.vmap(drawn, SPEC, params=PARAMS)


@pytest.mark.slow
def test_what_is_advised_works():
    def model(p, s):
        xs = jnp.asarray(s["x"] @ p["w"])
        return sum(function(p, s, xs) for _, _, function in ADVICE.values())

    agrees(model, is_traced=True)


@pytest.mark.usefixtures("wide")
def test_masks_as_indices_are_told_how_to_be_written():
    with pytest.raises(
        GraphError,
        match=r"got a mask.*`jnp\.where\(mask, xs, 0\)`",
    ):
        amp.vmap(
            lambda p, s: jnp.sum(s["x"][s["i"] > 1]),
            SPEC,
            params=PARAMS,
        )


@pytest.mark.usefixtures("wide")
def test_expressions_of_lengths_as_indices_are_told_how_to_be_written():
    with pytest.raises(
        GraphError,
        match=r"got a length, or an expr.*`xs\.at\[amp\.length\(xs\) // 2\]\.set\(x\)`",
    ):
        amp.vmap(
            lambda p, s: jnp.asarray(s["x"]).at[s["x"].shape[0] // 2, 0].set(0).sum(),
            SPEC,
            params=PARAMS,
        )


@pytest.mark.usefixtures("wide")
def test_shapes_that_do_not_fit_are_told_in_four_parts():
    told = {
        r"got \(n, 2\) and \(m, 2\).*one name in the spec": [
            lambda p, s: jnp.sum(s["x"] + s["y"]),
            lambda p, s: jnp.sum(jnp.stack([s["x"], s["y"]])),
            lambda p, s: jnp.sum(
                jnp.where(
                    s["x"] > 0,
                    s["x"],
                    s["y"],
                )
            ),
        ],
        r"got \(n,\) and \(m,\).*one name in the spec": [lambda p, s: s["x"].T @ s["y"]],
        r"got \(n, 2\) and \(n - 1, 2\).*`xs\[1:\]` and `xs\[:-1\]`": [
            lambda p, s: jnp.sum(s["x"] - s["x"][1:])
        ],
        r"got \(n, 2\) and \(3, 2\).*without their axis, or with 1 there": [
            lambda p, s: jnp.sum(s["x"] + jnp.ones((3, 2)))
        ],
        r"slices whose ends are.*`table\[jnp\.arange\(ys\.shape\[0\]\)\]`": [
            lambda p, s: jnp.sum(p["e"][: amp.length(s["x"])]),
        ],
    }
    for text, functions in told.items():
        for function in functions:
            with pytest.raises(
                GraphError,
                match=rf"test_usual_programs.py:\d+.*{text}",
            ):
                amp.vmap(
                    function,
                    SPEC,
                    params=PARAMS,
                )
    with pytest.raises(
        ValueError,
        match="Incompatible shapes for broadcasting",
    ):
        amp.vmap(
            lambda p, s: p["e"] + p["b"][:1].repeat(3),
            SPEC,
            params=PARAMS,
        )
