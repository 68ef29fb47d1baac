"""Sequences as carries of loops in a batch as one function: values and gradients agree with the function, example by example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import DataError, GraphError

SPEC = {
    "x": "float64[n,2]",
    "u": "float64[m,2]",
    "ends": "int32[q,2]",
    "chars": "int32[w,c]",
    "edges": amp.Edges("n", kinds=1),
    "k": "int32[]",
    "key": "key<fry>[]",
}
RNG = np.random.default_rng(9)
PARAMS = {
    "w": RNG.normal(
        size=(2, 2),
    ),
    "b": RNG.normal(size=2),
}
SIZES = [
    (2, 1, 2),
    (0, 2, 3),
    (3, 0, 1),
    (1, 2, 0),
]


def example(seed, n, m, k):
    rng = np.random.default_rng(seed)
    n_edges = int(rng.integers(0, 5)) if n else 0
    ends = rng.integers(
        0,
        max(n, 1),
        (n_edges, 2),
    ).astype(
        np.int32,
    )
    sizes = rng.integers(0, 3, m)
    chars = rng.integers(
        0,
        2,
        int(sizes.sum()),
    ).astype(
        np.int32,
    )
    return {
        "x": rng.normal(size=(n, 2)),
        "u": rng.normal(size=(m, 2)),
        "ends": ends,
        "chars": amp.Ragged(chars, sizes),
        "edges": amp.Edges(
            ends[:, 0],
            ends[:, 1],
        ),
        "k": np.int32(k),
        "key": jax.random.key(seed),
    }


EXAMPLES = [example(seed, *sizes) for seed, sizes in enumerate(SIZES)]


def summed(xs):
    """A number that depends on every entry of a sequence and its place."""
    rows = amp.map(
        lambda x, i: jnp.sum(jnp.cos(x + i)),
        xs,
        jnp.arange(xs.shape[0]),
    )
    return amp.sum(rows)


def agrees(function, examples=EXAMPLES, is_traced=True):
    """Compares a batch with the function on each example."""
    with jax.enable_x64(True):
        check_batch(
            function,
            PARAMS,
            SPEC,
            examples,
            is_traced=is_traced,
        )


# -- bodies


def rounds(p, s):
    def body(i, hs):
        return amp.map(
            lambda h: jnp.tanh(h @ p["w"] + i * p["b"]),
            hs,
        )

    return summed(amp.fori_loop(s["k"], body, s["x"]))


def equally_many(p, s):
    def body(i, hs):
        return amp.map(
            lambda h: jnp.tanh(h @ p["w"] + i * p["b"]),
            hs,
        )

    return summed(amp.fori_loop(3, body, s["x"]))


def with_arrays(p, s):
    """A dictionary of a sequence and an array; a sequence and a number for each step."""

    def body(carry, u):
        total = amp.sum(carry["hs"])
        hs = amp.map(
            lambda h: jnp.sin(h @ p["w"] + u + carry["v"]),
            carry["hs"],
        )
        return {"hs": hs, "v": carry["v"] * 0.5 + total}, (
            hs,
            amp.mean(
                hs,
            ),
        )

    start = {
        "hs": amp.map(
            lambda x: x @ p["w"],
            s["x"],
        ),
        "v": p["b"],
    }
    last, (every, means) = amp.scan(
        body,
        start,
        s["u"],
        reverse=True,
    )
    each = amp.map(
        lambda hs: jnp.sum(amp.sum(hs)),
        every,
    )
    return (
        summed(
            last["hs"],
        )
        + jnp.sum(last["v"])
        + summed(each)
        + summed(means)
    )


def two_lengths(p, s):
    def body(i, carry):
        xs, us = carry
        largest = amp.max(us)
        turned = amp.map(
            lambda x: jnp.where(
                largest > 0,
                x @ p["w"],
                x,
            ),
            xs,
        )
        return turned, amp.map(
            lambda u: jnp.sin(u) + amp.mean(xs),
            us,
        )

    xs, us = amp.fori_loop(
        s["k"],
        body,
        (s["x"], s["u"]),
    )
    return summed(xs) + summed(us)


def whole(p, s):
    """Operations of JAX on the whole carry."""

    def body(hs, u):
        moved = jnp.concatenate([hs[1:], hs[:1]])
        return moved * u + jnp.flip(hs, 0) @ p["w"], None

    return summed(
        amp.scan(body, s["x"], s["u"])[0],
    )


def part(p, s):
    """A sequence of another length than the example's, and results of another sequence of that length."""

    def body(i, hs):
        return (
            jnp.tanh(
                hs @ p["w"],
            )
            + jnp.cumsum(hs, 0)
            + s["x"][:-1]
        )

    return summed(
        amp.fori_loop(
            s["k"],
            body,
            s["x"][1:],
        ),
    )


def attention(p, s):
    def body(i, hs):
        def of(h):
            weights = amp.softmax(
                amp.map(
                    lambda g: h @ (p["w"] @ g),
                    hs,
                ),
            )
            return h + amp.sum(
                amp.map(
                    lambda w, g: w * jnp.tanh(g + p["b"]),
                    weights,
                    hs,
                ),
            )

        return amp.map(of, hs)

    return summed(amp.fori_loop(s["k"], body, s["x"]))


def ends_of_edges(p, s):
    def body(i, hs):
        def sent(at):
            return jnp.tanh(
                amp.take(hs, at[0]) @ p["w"] - amp.take(hs, at[1]),
            )

        total = amp.sum(amp.map(sent, s["ends"]))
        return amp.map(lambda h: jnp.cos(h + total), hs)

    return summed(amp.fori_loop(s["k"], body, s["x"]))


def graph(p, s):
    def body(i, hs):
        got = amp.propagate(
            lambda h: h @ p["w"],
            s["edges"],
            hs,
        )
        return amp.map(
            lambda h, m: jnp.tanh(h + m),
            hs,
            got,
        )

    return summed(amp.fori_loop(s["k"], body, s["x"]))


def memory(p, s):
    """A memory of as many cells as the example says, read and written at computed places."""

    def body(carry, x):
        cells, at = carry
        h = jnp.tanh(
            x @ p["w"]
            + amp.take(
                cells,
                jnp.argmax(
                    amp.map(
                        lambda c: c[0],
                        cells,
                    )
                ),
            ),
        )
        numbers = jnp.arange(cells.shape[0])
        cells = amp.map(
            lambda c, i: jnp.where(i == at, h, c * 0.9),
            cells,
            numbers,
        )
        return (cells, (at + 1) % amp.length(cells)), None

    (cells, _), _ = amp.scan(
        body,
        (jnp.zeros_like(s["u"]) + p["b"], 0),
        s["x"],
    )
    return summed(cells)


def in_a_map(p, s):
    """Carries of an inner space: one made there, one from outside."""

    def each(u):
        def body(i, carry):
            own, given = carry
            turned = amp.map(
                lambda a, b: jnp.sin(a @ p["w"] + u + b),
                own,
                given,
            )
            return turned, amp.map(
                lambda b, x: b * x + u,
                given,
                s["x"],
            )

        own, given = amp.fori_loop(
            s["k"],
            body,
            (
                amp.map(lambda x: x * u, s["x"]),
                s["x"],
            ),
        )
        return summed(own) + summed(given)

    return amp.sum(amp.map(each, s["u"]))


def in_a_loop(p, s):
    """A loop in a loop, whose trips the number of the outer turn says."""

    def outer(hs, u):
        def inner(j, own):
            return amp.map(
                lambda a, h: jnp.sin(a @ p["w"] + u + h + j),
                own,
                hs,
            )

        return amp.fori_loop(
            s["k"],
            inner,
            hs,
        ), amp.sum(hs)

    def turn(i, hs):
        return amp.fori_loop(
            i,
            lambda j, own: amp.map(
                lambda h: h * p["b"] + j,
                own,
            ),
            hs,
        )

    hs, totals = amp.scan(outer, s["x"], s["u"])
    return summed(
        amp.fori_loop(s["k"], turn, hs),
    ) + summed(totals)


def over_itself(p, s):
    """A loop over the carried elements, whose turns go through all elements."""

    def outer(hs, x):
        states = amp.scan(
            lambda h, g: (jnp.tanh(h @ p["w"] + g + x),) * 2,
            p["b"],
            hs,
        )[1]
        return states, amp.sum(states)

    hs, totals = amp.scan(outer, s["x"], s["x"])
    return summed(hs) + summed(totals)


def of_characters(p, s):
    """Steps that have a sequence each."""

    def step(hs, chars):
        total = amp.sum(
            amp.map(lambda c: p["w"][c], chars),
        )
        hs = amp.map(lambda h: jnp.tanh(h + total), hs)
        return hs, amp.map(
            lambda c: p["b"][c] * jnp.sum(amp.sum(hs)),
            chars,
        )

    hs, told = amp.scan(step, s["u"], s["chars"])
    return summed(hs) + amp.sum(
        amp.map(amp.sum, told),
    )


def chosen(p, s):
    """Choices in a turn, by its number and by a computed value; and a loop in a chosen branch."""

    def body(i, hs):
        def product():
            return amp.map(lambda h: h @ p["w"], hs)

        hs = amp.cond(
            i % 2 == 0,
            product,
            lambda: jnp.flip(hs, 0) * p["b"],
        )
        return amp.cond(
            jnp.sum(amp.sum(hs)) > 0,
            lambda: hs * p["b"],
            lambda: hs,
        )

    is_large = jnp.sum(amp.sum(s["x"])) > 0.5
    own = amp.cond(
        is_large,
        lambda: rounds(p, s),
        lambda: p["b"][0],
    )
    return (
        summed(
            amp.fori_loop(s["k"], body, s["x"]),
        )
        + own
    )


def by_value(p, s):
    """Rounds in a loop, until a computed value ends the rounds."""

    def goes_on(carry):
        i, hs = carry
        return (
            amp.read(
                (i < 3) & (jnp.sum(amp.sum(hs)) < 2.0),
            )
            == 1
        )

    def outer(hs, u):
        def turn(carry):
            i, own = carry
            return i + 1, amp.map(
                lambda h: jnp.abs(h) * 1.2 + u @ p["w"],
                own,
            )

        i, hs = amp.while_loop(
            goes_on,
            turn,
            (0, hs),
            most=3,
        )
        return hs, i

    hs, numbers = amp.scan(outer, s["x"], s["u"])
    return summed(hs) + amp.sum(numbers) * p["b"][0]


def integers(p, s):
    def body(i, labels):
        least = -amp.max(amp.map(lambda label: -label, labels))
        return amp.map(
            lambda label: jnp.minimum(label, least + 2) + i,
            labels,
        )

    labels = amp.map(
        lambda x: (x[0] * 10).astype(jnp.int32),
        s["x"],
    )
    return summed(
        amp.map(
            lambda label: label * p["b"],
            amp.fori_loop(s["k"], body, labels),
        ),
    )


FIRST = [attention, in_a_loop]
OTHERS = [rounds, with_arrays, equally_many, two_lengths, graph, in_a_map, over_itself]
OTHERS += [of_characters, integers]


@pytest.mark.first_case
@pytest.mark.parametrize("function", FIRST, ids=lambda f: f.__name__)
def test_values_and_gradients(function):
    agrees(function)


@pytest.mark.nightly
def test_choices_in_turns():
    agrees(chosen, is_traced=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function",
    [by_value, ends_of_edges],
    ids=lambda f: f.__name__,
)
def test_values_and_gradients_of_concrete_examples(function):
    agrees(function, is_traced=False)


@pytest.mark.nightly
@pytest.mark.parametrize("function", OTHERS, ids=lambda f: f.__name__)
def test_values_and_gradients_of_others(function):
    agrees(function)


def test_a_memory():
    agrees(memory, [each for each in EXAMPLES if len(each["u"])])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function",
    [whole, part],
    ids=lambda f: f.__name__,
)
def test_whole_sequences(function):
    agrees(function, [each for each in EXAMPLES if len(each["x"])])


@pytest.mark.nightly
def test_loops_of_no_turn_and_sequences_of_no_element():
    none = [
        example(
            1,
            0,
            2,
            3,
        ),
        example(2, 3, 0, 0),
        example(3, 0, 0, 0),
    ]
    agrees(
        lambda p, s: rounds(p, s) + with_arrays(p, s),
        none,
    )


def test_batches_of_one_shape_of_which_one_has_no_element_or_no_turn():
    examples = []
    for seed, sizes in enumerate(
        [(3, 1, 2), (0, 2, 3), (2, 1, 0)],
    ):
        examples.append(example(seed, *sizes))
    with jax.enable_x64(True):
        batched = amp.vmap(rounds, SPEC, params=PARAMS)
        found = [
            batched(PARAMS, batch)
            for batch in batched.batches(
                examples,
                1,
                seed=None,
            )
        ]
        wanted = [rounds(PARAMS, each) for each in examples]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-9)


def test_what_has_ended_computes_nothing():
    """A turn too many would give NaN, also as a gradient."""

    def roots(p, s):
        def body(i, hs):
            return amp.map(
                lambda h: jnp.sqrt(h - 1) * p["b"] ** 2,
                hs,
            )

        return summed(amp.fori_loop(s["k"], body, s["x"]))

    examples = []
    for k, x in ((1, 1.5), (3, 1e9), (0, 0.5), (2, 1e6)):
        examples.append(
            {
                **example(k, 2, 1, k),
                "x": np.full((2, 2), x),
            },
        )
    agrees(roots, examples)


def test_a_compiled_batch_its_sequences_and_an_ensemble():
    def returned(p, s):
        return amp.fori_loop(
            s["k"],
            lambda i, hs: amp.map(
                lambda h: jnp.tanh(h @ p["w"] + p["b"]),
                hs,
            ),
            s["x"],
        )

    with jax.enable_x64(True):
        batched = amp.vmap(returned, SPEC, params=PARAMS)
        found = batched(PARAMS, EXAMPLES).tolist()
        several = jax.tree.map(
            lambda x: jnp.stack([x, 2 * x]),
            PARAMS,
        )
        both = jax.vmap(batched, (0, None))(
            several,
            batched.pack(EXAMPLES),
        )
        for each, rows in zip(EXAMPLES, found, strict=True):
            np.testing.assert_allclose(rows, returned(PARAMS, each), rtol=1e-9)
        last = returned(
            jax.tree.map(lambda x: 2 * x, PARAMS),
            EXAMPLES[-1],
        )
        at = int(
            both.lengths[0][1].sum(),
        ) - len(last)
        np.testing.assert_allclose(
            both.values[1][at : at + len(last)],
            last,
            rtol=1e-9,
        )


def test_elements_of_a_turn_beside_a_carry_of_the_same_sequence():
    """Each turn has a list of its own length, and carries a sequence over all turns' elements."""

    def model(p, s):
        def turn(xs, own):
            return amp.map(
                lambda x: jnp.tanh(
                    x * p["b"][0]
                    + amp.sum(
                        amp.map(
                            lambda v: v * x,
                            own,
                        )
                    )
                ),
                xs,
            ), 0.0

        def back(xs, own):
            return turn(xs, own)[0], amp.sum(own)

        xs, _ = amp.scan(turn, s["x"], s["lists"])
        xs, sums = amp.scan(back, xs, s["lists"], reverse=True)
        weights = jnp.arange(xs.shape[0])
        return amp.sum(
            amp.map(
                lambda x, y, i: x * jnp.cos(y + i),
                xs,
                sums,
                weights,
            )
        )

    examples = []
    for seed, lengths in enumerate([[2, 1, 3], [1, 0], [], [3]]):
        rng = np.random.default_rng(seed)
        lists = [rng.normal(size=n) for n in lengths]
        examples.append(
            {
                "x": rng.normal(size=len(lengths)),
                "lists": lists,
            }
        )
    spec = {"x": "float64[t]", "lists": "float64[t,n]"}
    with jax.enable_x64(True):
        check_batch(model, PARAMS, spec, examples)


def test_metrics_and_outputs_of_turns():
    def told(p, s):
        def body(i, hs):
            def each(h):
                amp.metric("size", jnp.sum(h**2))
                return jnp.tanh(h @ p["w"])

            amp.metric("turn", jnp.sum(amp.sum(hs)))
            return amp.map(each, hs)

        hs = amp.fori_loop(s["k"], body, s["x"])
        amp.output("last", hs)
        return summed(hs)

    with jax.enable_x64(True):
        reports = amp.vmap(told, SPEC, params=PARAMS).reports(
            PARAMS,
            EXAMPLES,
        )
    sizes = []
    turns = []
    for each in EXAMPLES:
        hs = each["x"]
        for _ in range(each["k"]):
            turns.append(hs.sum())
            sizes += (hs**2).sum(1).tolist()
            hs = np.tanh(hs @ PARAMS["w"])
    found = reports.averages()
    np.testing.assert_allclose(
        found["size"],
        np.mean(sizes),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        found["turn"],
        np.mean(turns),
        rtol=1e-5,
    )


@pytest.mark.nightly
def test_random_numbers_differ_from_turn_to_turn_and_row_to_row():
    def drawn(p, s):
        def body(i, carry):
            hs, sums = carry
            noise = amp.map(lambda h: amp.dropout(h, 0.5), hs)
            return hs, amp.map(
                lambda a, b: 2 * a + b,
                sums,
                noise,
            )

        ones = jnp.ones_like(s["x"])
        return amp.fori_loop(
            8,
            body,
            (ones, jnp.zeros_like(s["x"])),
        )[1]

    def by_example(p, s):
        def body(i, hs):
            key = jax.random.fold_in(s["key"], i)
            return amp.map(
                lambda h: h + jax.random.uniform(key, (2,)) * p["b"],
                hs,
            )

        return summed(amp.fori_loop(s["k"], body, s["x"]))

    agrees(by_example)
    with jax.enable_x64(True):
        found = amp.vmap(drawn, SPEC, params=PARAMS)(
            PARAMS,
            EXAMPLES,
            key=jax.random.key(0),
        )
    values = np.concatenate(
        [np.asarray(rows) for rows in found.tolist()],
    )
    assert len(np.unique(values)) == values.size  # each is made of eight draws


def test_a_sequence_that_changes_is_refused():
    def shorter(p, s):
        return amp.sum(
            amp.fori_loop(
                s["k"],
                lambda i, hs: hs[1:],
                s["x"],
            ),
        )

    def another(p, s):
        return amp.sum(
            amp.while_loop(
                lambda hs: (
                    amp.read(
                        hs.sum() > 0,
                    )
                    == 1
                ),
                lambda hs: s["u"],
                s["x"],
                most=2,
            )
        )

    def ragged(p, s):
        return amp.fori_loop(2, lambda i, chars: chars, s["chars"])

    with jax.enable_x64(True):
        for function in (shorter, another):
            with pytest.raises(GraphError, match="the length of a sequence that it carries"):
                amp.vmap(function, SPEC, params=PARAMS)
        with pytest.raises(GraphError, match=r"matrices of pairs as a carry, got int32\[w,c\]"):
            amp.vmap(ragged, SPEC, params=PARAMS)


def test_a_length_that_only_the_example_tells_is_checked():
    def told(p, s):
        def body(i, hs):
            return jnp.concatenate(
                [jnp.zeros((1, 2)), hs[:-1]],
            )

        return jnp.sum(
            amp.fori_loop(s["k"], body, s["x"]),
        )

    with jax.enable_x64(True):
        batched = amp.vmap(told, SPEC, params=PARAMS)
        with pytest.raises(DataError, match="instance 1"):
            batched.pack(EXAMPLES)


def test_messages_refuse_it_and_name_what_takes_it():
    def plain(p, s):
        turn = lambda i, hs: amp.map(
            lambda h: h @ p["w"],
            hs,
        )
        return jnp.sum(
            amp.sum(
                amp.fori_loop(
                    s["k"],
                    turn,
                    s["x"],
                )
            ),
        )

    spec = {"x": "float64[n,2]", "k": "int32[]"}
    with (
        jax.enable_x64(True),
        pytest.raises(GraphError, match=r"got a sequence.*`amp.vmap` carries sequences"),
    ):
        amp.compile(plain, PARAMS, spec)
