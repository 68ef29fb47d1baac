"""JAX's own operations on whole sequences in a batch as one function: values and gradients agree with the function, example by example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.effort import left_to_nightly
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.frontend.batches.symbolic_lengths import dimension_value, names_in

SPEC = {
    "x": "float32[n,2]",
    "words": "int32[n]",
    "chars": "int32[n,c]",
    "k": "int32[]",
}
RNG = np.random.default_rng(9)
PARAMS = {
    "embed": RNG.normal(size=(7, 2)).astype(np.float32),
    "w": RNG.normal(size=(2, 2)).astype(np.float32),
    "b": RNG.normal(size=2).astype(np.float32),
}


def example(seed, n):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, n)
    return {
        "x": rng.normal(size=(n, 2)).astype(np.float32),
        "words": rng.integers(
            0,
            7,
            n,
        ).astype(np.int32),
        "chars": amp.Ragged(
            rng.integers(
                0,
                7,
                int(sizes.sum()),
            ).astype(np.int32),
            sizes,
        ),
        "k": np.int32(rng.integers(0, 3)),
    }


EXAMPLES = [
    example(
        seed,
        n,
    )
    for seed, n in enumerate((3, 0, 1, 4, 2))
]
FILLED = [each for each in EXAMPLES if len(each["words"])]


def hidden(p, s):
    return amp.map(
        lambda x: jnp.tanh(x @ p["w"]),
        s["x"],
    )


def total(xs):
    """A number that depends on every entry and its place."""
    rows = amp.map(
        lambda v, i: jnp.sum(jnp.sin(v + i)),
        xs,
        jnp.arange(xs.shape[0]),
    )
    return amp.sum(rows)


def totals(*sequences):
    return sum(map(total, sequences))


def agrees(function, examples=EXAMPLES):
    """Compares a batch with the function on each example, in float32."""
    is_traced = function is not decided
    check_batch(function, PARAMS, SPEC, examples, tolerance=1e-4, is_traced=is_traced)


def slices(p, s):
    v = hidden(p, s)
    half = v.shape[0] // 2
    return totals(
        v[1:],
        v[:-1],
        v[2:],
        v[:2],
        v[1:-1],
        v[-2:],
        v[:half],
        v[half:],
        v[1:][1:],
    )


def strides(p, s):
    v = hidden(p, s)
    steps = lax.slice_in_dim(
        v,
        0,
        v.shape[0],
        2,
    )
    return totals(
        v[::2],
        v[1::2],
        v[::-1],
        v[::-2],
        steps,
        s["x"][::3],
    )


def differences(p, s):
    v = hidden(p, s)
    d = v[1:] - v[:-1]
    pairs = amp.map(
        lambda a, b, w: jnp.dot(a, b) * w,
        v[1:],
        d,
        s["words"][1:],
    )
    return total(pairs) + amp.length(d) * p["b"][0] + jnp.sum(amp.mean(d))


def joined(p, s):
    v = hidden(p, s)
    both = jnp.concatenate(
        [
            p["b"][None],
            v,
            jnp.ones((2, 2)),
            v,
        ]
    )
    return totals(
        both,
        jnp.append(v, jnp.ones((1, 2)), 0),
        jnp.concatenate([s["x"], s["x"]]),
    )


def padded(p, s):
    v = hidden(p, s)
    cut = jnp.pad(
        v,
        ((2, 0), (0, 0)),
    )[:-2]
    return totals(
        jnp.pad(
            v,
            ((1, 2), (0, 1)),
        ),
        jnp.roll(v, 1, 0),
        cut,
    )


def by_element(p, s):
    v = (
        hidden(
            p,
            s,
        )
        @ p["w"]
        * 2
        + p["b"]
    )
    v = jnp.where(
        v > 0,
        v,
        0.1 * v,
    ) / (1 + jnp.linalg.norm(v, axis=-1, keepdims=True))
    v = jax.nn.softmax(
        jnp.stack(
            [v[:, 0], v[:, 1]],
            1,
        )
    ) + jax.nn.relu(v)
    places = jnp.arange(v.shape[0])[:, None] * jnp.ones((1, 2))
    return totals(
        v,
        v + places,
        jnp.zeros_like(v),
        p["embed"][s["words"]] * v,
    )


def attention(p, s):
    v = hidden(p, s)
    scores = jnp.einsum("td,ud->tu", v @ p["w"], v)
    return totals(
        jax.nn.softmax(scores) @ v,
        jnp.cumsum(v, 0),
        jnp.cumsum(v, 0, dtype=v.dtype),
    )


def sums(p, s):
    v = hidden(p, s)
    return jnp.sum(v) + jnp.sum(jnp.sin(v[:, 0] @ v)) + jnp.any(v > 0.5) * p["b"][0]


def in_step(p, s):
    v = hidden(p, s)

    def step(h, x):
        h = jnp.tanh(h @ p["w"] + x + amp.sum(v[1:]) * amp.length(v[1:]))
        return h, h

    last, ys = amp.scan(
        step,
        jnp.zeros(2),
        v[:-1],
    )
    inner = amp.map(
        lambda q: amp.sum(
            amp.map(
                lambda a, b: (a * b) @ q,
                v[1:],
                v[:-1],
            )
        ),
        v,
    )
    return jnp.sum(last) + total(ys[1:]) + amp.sum(inner)


def words(p, s):
    def word(w, chars):
        def shifted():
            before = jnp.concatenate(
                [
                    jnp.zeros(1, jnp.int32),
                    chars[:-1],
                ]
            )
            return total(
                amp.map(
                    lambda a, b: p["embed"][a] * p["embed"][b],
                    chars,
                    before,
                )
            )

        some = amp.cond(
            amp.length(chars) > 0,
            shifted,
            lambda: p["b"][0],
        )
        return some + jnp.sum(p["embed"][w]) / (chars.shape[0] + 1)

    return total(
        amp.map(
            word,
            s["words"][1:],
            s["chars"][1:],
        )
    )


def decided(p, s):
    def turned(w):
        return amp.fori_loop(
            w,
            lambda i, h: jnp.sin(h + p["b"][0]),
            1.0,
        )

    def test(carry):
        return amp.read(carry[0] < 2)

    def turn(carry):
        i, h = carry
        return i + 1, jnp.tanh(h + amp.sum(v[1:]) @ p["b"] + total(v * h))

    v = hidden(p, s)
    rounds = amp.while_loop(
        test,
        turn,
        (0, 0.1),
        most=3,
    )[1]
    chosen = amp.cond(
        s["k"] > 0,
        lambda: total(v[1:]),
        lambda: total(v * 2),
    )
    return (
        amp.sum(
            amp.map(
                turned,
                (s["words"] * 2)[1:],
            )
        )
        + rounds
        + chosen
    )


def read_in_each(p, s):
    v = hidden(p, s)
    k = s["words"] % 2
    own = jnp.take_along_axis(
        v,
        k[:, None],
        axis=1,
    )
    each = jax.vmap(lambda row, i: row[i])(v, k)
    twice = jnp.take_along_axis(
        v[:, :, None] * jnp.arange(1.0, 4.0),
        jnp.stack([k, 1 - k, k], 1)[:, None, :],
        axis=1,
    )
    return total(own[:, 0] * each) + total(jnp.sin(twice))


EMPTIES_TOO = [
    slices,
    read_in_each,
    strides,
    differences,
    joined,
    padded,
    by_element,
    attention,
    sums,
    in_step,
    words,
    decided,
]


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize(
    "function", [slices, decided, *left_to_nightly(EMPTIES_TOO, slices, decided)]
)
def test_operations_on_whole_sequences_are_those_of_each_example(function):
    agrees(function)


def test_bits_of_integers_are_joined():
    """JAX has `all` and `any` of truth values, and the bits of integers, in the same operations."""

    def model(params, example):
        xs = example["xs"]
        return (
            jnp.bitwise_or.reduce(xs),
            jnp.bitwise_and.reduce(xs),
            jnp.bitwise_xor.reduce(xs),
        )

    batched = amp.vmap(model, {"xs": "int32[t]"})
    examples = [{"xs": np.array(xs, np.int32)} for xs in ([12, 10, -8], [5], [])]
    found = batched({}, examples)
    want = jnp.array([model({}, jax.tree.map(jnp.asarray, each)) for each in examples])
    assert np.array_equal(jnp.stack(found, 1), want)


def single(p, s):
    v = hidden(p, s)
    k = jnp.argmax(v[:, 0])
    ends = jnp.sum(jnp.cos(v[:1]) + jnp.sin(v[-1:])) + jnp.sum(
        v[
            jnp.array(
                [
                    0,
                    -1,
                ]
            )
        ]
        ** 2
    )
    edges = totals(
        jnp.pad(
            v,
            ((1, 2), (0, 0)),
            mode="edge",
        ),
        lax.pad(
            v,
            p["b"][1],
            ((1, -1, 0), (0, 0, 0)),
        ),
    )
    return v[0] @ v[-1] + v[k, 1] + jnp.min(v) * jnp.max(v) + jnp.std(v) + ends + edges


def shifted(p, s):
    v = hidden(p, s)
    before = jnp.concatenate(
        [
            jnp.zeros((1, 2)),
            v[:-1],
        ]
    )
    n = v.shape[0]
    return amp.sum(
        amp.map(
            jnp.dot,
            v,
            before,
        )
    ) + jnp.sum(v) / n * (n - 1)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [shifted, *left_to_nightly([single])],
)
def test_what_an_empty_sequence_has_not_is_refused_for_it_alone(function):
    agrees(function, FILLED)
    with pytest.raises(DataError, match=r"test_whole_sequences.py:\d+.*, instance 1: expected "):
        amp.vmap(function, SPEC, params=PARAMS).pack(EXAMPLES)


def test_an_example_without_what_is_read_is_named():
    def shift(p, s):
        return total(
            jnp.concatenate(
                [
                    jnp.zeros((1, 2)),
                    s["x"][:-1],
                ]
            )
        )

    def first(p, s):
        return s["x"][0, 0]

    def less(p, s):
        return s["x"].shape[0] - 1

    told = {
        shift: r"parts of `n` elements together, which holds where no sequence is empty, got 1 el",
        first: r"an element that the sequence has, got number 0 of 0 elements",
        less: r"a length `n - 1` from 0, got -1\. Use it only where",
    }
    for function, text in told.items():
        with pytest.raises(DataError, match=f"instance 1: expected {text}"):
            amp.vmap(function, SPEC, params=PARAMS).pack(EXAMPLES)


def test_a_choice_keeps_short_examples_away():
    def model(p, s):
        def shift():
            return total(
                jnp.concatenate(
                    [
                        jnp.zeros((1, 2)),
                        hidden(p, s)[:-1],
                    ]
                )
            )

        return amp.cond(
            amp.length(s["x"]) > 0,
            shift,
            lambda: 0.0,
        )

    agrees(model)


def test_sequences_come_back_cut():
    def model(p, s):
        return hidden(
            p,
            s,
        )[1:], s["chars"][::2]

    rows, chars = amp.vmap(model, SPEC)(PARAMS, EXAMPLES)
    for each, got in zip(
        EXAMPLES,
        rows.tolist(),
        strict=True,
    ):
        np.testing.assert_allclose(
            got,
            np.tanh(each["x"] @ PARAMS["w"])[1:],
            rtol=1e-5,
            atol=1e-6,
        )
    for each, got in zip(
        EXAMPLES,
        chars.tolist(),
        strict=True,
    ):
        want = [
            each["chars"][i].tolist()
            for i in range(
                0,
                len(each["chars"]),
                2,
            )
        ]
        assert [np.asarray(row).tolist() for row in got] == want


@pytest.mark.nightly
def test_rows_that_fill_up_never_show():
    def model(p, s):
        v = hidden(p, s)
        return total(jnp.log(jnp.abs(v[1:] - v[:-1]) + s["x"][1:] ** 2)) + jnp.sum(v)

    agrees(model)


def test_what_is_no_such_operation_is_refused():
    def ordered(p, s):
        return jnp.sum(jnp.abs(jnp.fft.fft(s["x"][:, 0])))

    def mixed(p, s):
        return total(
            amp.take(
                s["chars"],
                0,
            )
            + amp.take(s["chars"], 1)
        )

    with pytest.raises(GraphError, match=r"got `fft` on a whole sequence.*product with a matrix"):
        amp.vmap(ordered, SPEC)(PARAMS, EXAMPLES)
    with pytest.raises(GraphError, match="expected sequences with the same elements"):
        amp.vmap(
            mixed,
            SPEC,
        )(PARAMS, EXAMPLES[3:4])


def test_elements_at_an_array_of_numbers_and_turned_columns():
    """Two updates and reads; the nightly `updates_at_arrays` and `reads_of_columns` have more."""
    numbers = jnp.array([0, -1, 2, 0])

    def model(w, s):
        xs = w * s["x"]
        largest = xs.at[numbers].max(w - 0.5)
        turned = jax.vmap(
            lambda column: column[::-1],
            in_axes=1,
            out_axes=1,
        )(xs)
        return jnp.sum(largest * turned)

    def of_batch(w):
        return jnp.sum(amp.vmap(model, {"x": "float32[n,2]"})(w, examples))

    def of_each(w):
        return sum(model(w, each) for each in examples)

    examples = [{"x": each["x"]} for each in FILLED]
    w = jnp.float32(0.9)
    found = jax.value_and_grad(of_batch)(w)
    np.testing.assert_allclose(
        found,
        jax.value_and_grad(of_each)(w),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    "where",
    [1, np.s_[1:]],
    ids=["one", "range"],
)
def test_functions_of_old_elements_are_no_such_operation(where):
    """`xs.at[i].apply(f)` is JAX's `scatter` of zeros that mean nothing."""

    def model(params, example):
        return (params["w"] * example["xs"]).at[where].apply(jnp.exp)

    params = {"w": jnp.float32(1)}
    batched = amp.vmap(model, {"xs": "float32[t]"})
    with pytest.raises(GraphError, match=r"got `scatter` on a whole sequence.*jnp\.where"):
        batched(
            params,
            [{"xs": np.ones(3, np.float32)}],
        )


def test_draws_and_products_of_all_pairs_are_told_how_to_be_written():
    def drawn(p, s):
        return total(
            jax.random.normal(
                jax.random.key(0),
                s["x"].shape,
            )
        )

    def running(p, s):
        return total(jnp.cumsum(s["x"] @ s["x"].T, axis=0) @ s["x"])

    def padded(p, s):
        return jnp.sum(
            jnp.pad(
                s["x"] @ s["x"].T,
                ((1, 0), (0, 0)),
            )
        )

    def counted(p, s):
        return lax.fori_loop(
            0,
            s["k"],
            lambda i, c: c + s["x"][i],
            p["b"],
        ).sum()

    told = {
        drawn: r"got `random_bits` on a whole sequence.*jax.random.fold_in\(key, i\)",
        running: r"got `cumsum` on a whole sequence.*`jnp.cumsum\(scores.T, axis=1\).T`",
        padded: r"got `pad` on a whole sequence.*`jnp.pad\(a.T, \(\(0, 0\), \(1, 0\)\)\).T`",
        counted: r"got `while` on a whole sequence.*`amp.fori_loop\(n, body, init\)`",
    }
    for function, text in told.items():
        with pytest.raises(GraphError, match=text):
            amp.vmap(function, SPEC)(PARAMS, EXAMPLES)


def test_sequences_leave_operations_of_jax_with_their_elements_in_front():
    def turned(p, s):
        return s["x"].T

    def carried(p, s):
        return jnp.sum(
            amp.fori_loop(
                s["k"],
                lambda i, xs: xs * p["b"][0],
                s["x"].T,
            )
        )

    def pairs(p, s):
        return jnp.einsum("id,jd->dij", s["x"], s["x"])

    for function, where, got, fix in (
        (turned, "the model's result", "2,n", "1, 0"),
        (carried, r"test_whole_sequences.py:\d+.*", "2,n", "1, 0"),
        (pairs, "the model's result", "2,n,n", "1, 2, 0"),
    ):
        text = (
            where
            + r": expected a sequence with the axes that count elements first, got `float\d+\["
            + got
            + rf"\]`\. Turn it round before: `jnp\.transpose\(x, \({fix}\)\)`"
        )
        with pytest.raises(GraphError, match=text):
            amp.vmap(function, SPEC)(PARAMS, EXAMPLES)


def test_axes_before_the_elements_stay_before_them():
    """Arrays whose elements' axis is not the first: turned round, reshaped, summed, indexed, and put together with others."""

    def model(p, s):
        heads = jnp.stack(
            [
                s["x"],
                2 * s["x"] @ p["w"],
            ]
        )  # [2, t, 2]
        heads = heads + jnp.arange(2.0)[:, None, None]
        scaled = jax.nn.relu(jnp.moveaxis(heads, -1, 0))  # [2, 2, t]
        flat = scaled.reshape(4, -1) * jnp.arange(s["x"].shape[0])
        first = heads[0] + heads[-1]
        first = first + jnp.sum(
            amp.map(
                jnp.sum,
                s["x"].T,
            )
        )
        return jnp.sum(jnp.tanh(flat)) + jnp.sum(flat.T @ jnp.ones((4, 2)) * first) + flat.sum(1)[2]

    agrees(model)


def test_draws_and_products_of_all_pairs_as_they_are_told_to_be_written():
    def model(p, s):
        def noise(x, i):
            return x + jax.random.normal(
                jax.random.fold_in(key, i),
                (2,),
            )

        key = jax.random.key(0)
        xs = amp.map(
            noise,
            s["x"],
            jnp.arange(s["x"].shape[0]),
        )
        pairs = amp.map(
            lambda x: amp.map(lambda y: x @ y, xs),
            xs,
        )
        scores = xs @ s["x"].T
        running = jnp.cumsum(scores.T, axis=1).T
        wide = jnp.pad(
            scores.T,
            ((0, 0), (1, 0)),
        ).T
        turned = amp.fori_loop(
            xs.shape[0],
            lambda i, c: jnp.tanh(c + i),
            p["b"],
        )
        every = amp.sum(
            amp.map(
                lambda row: amp.sum(amp.map(jnp.sin, row)),
                pairs,
            )
        )
        return every + total(running @ xs) + total(jnp.sin(wide).sum(1)) + jnp.sum(turned)

    agrees(model)


def test_lengths_are_read_as_jax_writes_them():
    n, m = jax.export.symbolic_shape("n, m")
    sizes = {
        "n": np.arange(1, 7),
        "m": np.arange(6, 0, -1),
    }
    expressions = [
        n - 1,
        2 * n * n + m,
        n // 2,
        (n + m) % 3,
        -n % m,
        jax.core.max_dim(n - 3, 0),
        jax.core.min_dim(n, m - 1),
    ]
    plain = [
        sizes["n"] - 1,
        2 * sizes["n"] ** 2 + sizes["m"],
        sizes["n"] // 2,
        (sizes["n"] + sizes["m"]) % 3,
        -sizes["n"] % sizes["m"],
        np.maximum(sizes["n"] - 3, 0),
        np.minimum(sizes["n"], sizes["m"] - 1),
    ]
    for expression, want in zip(expressions, plain, strict=True):
        assert (
            dimension_value(
                str(expression),
                sizes,
            ).tolist()
            == want.tolist()
        )
    assert names_in(str(jax.core.max_dim(n - 3, m))) == [
        "m",
        "n",
    ]
    assert dimension_value("mod(-1, n)", {"n": 0}) == 0


def test_rows_of_rows_are_cut_with_steps():
    rows = amp.Ragged.of(
        [
            [1],
            [2, 3],
            [],
            [4],
        ]
    )
    assert [row.tolist() for row in rows[::2]] == [
        [1],
        [],
    ]
    assert [row.tolist() for row in rows[::-1]] == [
        [4],
        [],
        [2, 3],
        [1],
    ]
    assert len(rows[4::2]) == 0
