"""Reads by number (`amp.take` of a sequence from outside): right wherever they stand, and as dear as there are reads, however long the sequence is."""

import tracemalloc
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.model_laws import Compiled64
from support.parity import assert_equal, ours

import ampjax as amp
from ampjax.errors import DataError

SPEC = {
    "x": "float64[v,2]",
    "i": "int32[v]",
    "next": "int32[v]",
    "near": "int32[v,k]",
    "spans": {"start": "int32[s]", "n": "int32[s]"},
    "words": "int32[w,c]",
    "marks": "int32[w,m]",
    "tree": amp.Tree("int32[t]", "int32[t]", {"at": "int32[t]"}),
    "nodes": "float64[g,2]",
    "edges": amp.Edges("g", kinds=1),
    "pairs": {"a": "int32[p]", "b": "int32[p]"},
}


def parameters(dtype=np.float64):
    def draw(seed, *shape):
        return np.random.default_rng(seed).normal(0, 0.7, shape).astype(dtype)

    return {
        "embed": draw(0, 5, 2),
        "cell": {
            "w": draw(1, 2, 2),
            "b": draw(2, 2),
        },
        "out": draw(3, 2),
        "init": draw(4, 2),
    }


def ragged(rng, sizes, high):
    """For each of some rows, numbers below `high`; none where there is nothing to choose from."""
    result = []
    for n, most in zip(sizes, high, strict=True):
        result.append(
            rng.integers(
                0,
                most,
                n if most else 0,
            ).astype(np.int32)
        )
    return result


def instance(
    seed,
    v=5,
    w=3,
    g=4,
    dtype=np.float64,
):
    """An instance in which some elements are read often and some never; also one with empty sequences."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(
        0,
        max(v, 1),
        3 if v else 0,
    )
    lengths = rng.integers(0, 4, w)
    n_nodes = 2 * int(rng.integers(0, 3)) + 1
    parent = np.array(
        [
            -1,
            *((np.arange(1, n_nodes) - 1) // 2),
        ],
        np.int32,
    )
    n_edges, n_pairs = (6, 5) if g else (0, 0)
    return {
        "x": rng.normal(size=(v, 2)).astype(dtype),
        "i": np.arange(v, dtype=np.int32),
        "next": rng.integers(
            -v,
            max(v, 1),
            v,
        ).astype(np.int32),
        "near": ragged(
            rng,
            rng.integers(0, 4, v),
            [v] * v,
        ),
        "spans": {
            "start": starts.astype(np.int32),
            "n": np.minimum(
                rng.integers(0, 4, len(starts)),
                v - starts,
            ).astype(np.int32),
        },
        "words": [rng.integers(0, 5, n).astype(np.int32) for n in lengths],
        "marks": ragged(rng, rng.integers(0, 4, w), lengths),
        "tree": amp.Tree(
            parent,
            np.where(
                parent < 0,
                0,
                (np.arange(n_nodes) + 1) % 2,
            ).astype(np.int32),
            {
                "at": rng.integers(
                    0,
                    max(v, 1),
                    n_nodes,
                ).astype(np.int32)
            },
        ),
        "nodes": rng.normal(size=(g, 2)).astype(dtype),
        "edges": amp.Edges(
            *(rng.integers(0, max(g, 1), n_edges) for _ in range(2)),
            np.zeros(n_edges, np.int64),
        ),
        "pairs": {k: rng.integers(0, max(g, 1), n_pairs).astype(np.int32) for k in "ab"},
    }


def cell(p, x):
    return jnp.tanh(x @ p["cell"]["w"] + p["cell"]["b"])


def hidden(p, s):
    return amp.map(lambda x: cell(p, x), s["x"])


def square(p, x):
    return jnp.sum(p["out"] * x**2)


def pointers(p, s):
    h = hidden(p, s)
    return amp.sum(
        amp.map(
            lambda j: square(p, amp.take(h, j)),
            s["next"],
        )
    )


def two_at_once(p, s):
    """Two reads by each row, one of them of what is read elsewhere too."""
    h = hidden(p, s)
    return amp.sum(
        amp.map(
            lambda j, x: jnp.sum(amp.take(h, j) * amp.take(h, -1) * x),
            s["next"],
            s["x"],
        )
    )


def attention_over_neighbours(p, s):
    h = hidden(p, s)

    def each(x, near):
        there = amp.map(lambda j: amp.take(h, j), near)
        weights = amp.softmax(
            amp.map(
                lambda other: jnp.sum(x * other),
                there,
            )
        )
        return square(
            p,
            x
            + amp.sum(
                amp.map(
                    lambda a, other: a * other,
                    weights,
                    there,
                )
            ),
        )

    return amp.sum(amp.map(each, h, s["near"]))


def spans(p, s):
    h = hidden(p, s)

    def inside(start, n):
        return amp.fori_loop(
            n,
            lambda i, total: total + amp.take(h, start + i),
            jnp.zeros(2),
        )

    return amp.sum(
        amp.map(
            lambda start, n: square(p, inside(start, n)),
            s["spans"]["start"],
            s["spans"]["n"],
        )
    )


def states_of_a_scan(p, s):
    _, ys = amp.scan(
        lambda h, x: (cell(p, h + x),) * 2,
        p["init"],
        s["x"],
    )
    return amp.sum(
        amp.map(
            lambda j: square(p, amp.take(ys, j)),
            s["next"],
        )
    )


def in_a_scan(p, s):
    h = hidden(p, s)
    last, _ = amp.scan(
        lambda c, j: (
            jnp.tanh(c * amp.take(h, j) + amp.take(s["x"], j)),
            None,
        ),
        p["init"],
        s["next"],
    )
    return square(p, last)


def where_the_instance_chooses(p, s):
    h = hidden(p, s)

    def chosen(j):
        return amp.cond(
            j % 2 == 0,
            lambda: amp.take(h, j),
            lambda: (
                -amp.take(
                    h,
                    j - 1 + 2 * (j == 0),
                )
                * amp.take(h, j)
            ),
        )

    return amp.sum(
        amp.map(
            lambda j: square(
                p,
                amp.cond(
                    j >= 1,
                    lambda: chosen(j),
                    lambda: p["init"],
                ),
            ),
            s["next"],
        )
    )


def in_a_recursion(p, s):
    h = hidden(p, s)

    def each(recur, x, near):
        return cell(
            p,
            x
            + amp.sum(
                amp.map(
                    lambda j: amp.take(h, j),
                    near,
                )
            )
            + recur(-1),
        )

    return amp.sum(
        amp.map(
            lambda y: square(p, y),
            amp.recurse(
                each,
                p["init"],
                s["x"],
                s["near"],
            ),
        )
    )


def results_of_a_recursion(p, s):
    h = amp.recurse(
        lambda recur, x, i: cell(p, x + recur(i - 1)),
        p["init"],
        s["x"],
        s["i"],
    )
    return amp.sum(
        amp.map(
            lambda j: square(p, amp.take(h, j)),
            s["next"],
        )
    )


def in_a_tree(p, s):
    h = hidden(p, s)
    leaf = lambda n: amp.take(h, n["at"])
    _, root = amp.fold_tree(
        leaf,
        lambda n, kids: cell(
            p,
            amp.sum(kids) * amp.take(h, n["at"]),
        ),
        s["tree"],
    )
    return square(p, root)


def states_of_a_tree(p, s):
    states, _ = amp.fold_tree(
        lambda n: p["init"] * n["at"],
        lambda n, a, b: cell(p, a - b),
        s["tree"],
        arity=2,
    )
    return amp.sum(
        amp.map(
            lambda up: square(p, amp.take(states, up)),
            s["tree"].parent,
        )
    )


def within_each_word(p, s):
    """The sequence that is read is an outer row's own."""

    def word(chars, marks):
        h = amp.map(
            lambda c: cell(p, p["embed"][c]),
            chars,
        )
        return amp.sum(
            amp.map(
                lambda j: square(p, amp.take(h, j)),
                marks,
            )
        )

    return amp.sum(
        amp.map(
            word,
            s["words"],
            s["marks"],
        )
    )


def from_two_spaces_out(p, s):
    h = hidden(p, s)

    def total(marks):
        return amp.sum(
            amp.map(
                lambda j: amp.take(h, j % amp.length(h)) * amp.take(s["x"], -1)[0],
                marks,
            )
        )

    return amp.sum(
        amp.map(
            lambda marks: square(p, total(marks)),
            s["marks"],
        )
    )


def pointers_to_pointers(p, s):
    h = hidden(p, s)
    return amp.sum(
        amp.map(
            lambda j: square(
                p,
                amp.take(
                    h,
                    amp.take(
                        s["next"],
                        amp.take(s["next"], j),
                    ),
                ),
            ),
            s["next"],
        )
    )


def of_two_types(p, s):
    pairs = amp.map(
        lambda x: (
            cell(p, x),
            jnp.argmax(p["out"] * x),
        ),
        s["x"],
    )

    def each(j):
        h, i = amp.take(pairs, j)
        return square(p, h) * (1 + i)

    return amp.sum(amp.map(each, s["next"]))


def pairs_of_nodes(p, s):
    """The nodes of a graph travel in one message; each pair reads two of them."""
    h = amp.propagate(
        [lambda h: h @ p["cell"]["w"]],
        s["edges"],
        amp.map(lambda x: x * p["out"], s["nodes"]),
    )
    return amp.sum(
        amp.map(
            lambda a, b: jnp.sum(amp.take(h, a) * jnp.tanh(amp.take(h, b))),
            s["pairs"]["a"],
            s["pairs"]["b"],
        )
    )


def pairs_in_rounds(p, s):
    """Likewise in each round of a loop that carries the nodes."""

    def turn(i, carry):
        h, total = carry
        h = amp.propagate(
            [lambda h: jnp.tanh(h @ p["cell"]["w"])],
            s["edges"],
            h,
        )
        read = amp.map(
            lambda a, b: jnp.sum(amp.take(h, a) * amp.take(h, b)),
            s["pairs"]["a"],
            s["pairs"]["b"],
        )
        return h, total + amp.sum(read)

    h = amp.map(
        lambda x: x * p["out"],
        s["nodes"],
    )
    return amp.fori_loop(
        2,
        turn,
        (h, jnp.zeros(())),
    )[1]


def after_it_was_gone_through(p, s):
    """One place goes through the whole sequence, another reads single elements."""
    h = hidden(p, s)

    def every(j):
        return amp.sum(
            amp.map(
                lambda other: jnp.sum(other * amp.take(h, j)),
                h,
            )
        )

    return amp.sum(amp.map(every, s["next"]))


MODELS = [
    pointers,
    two_at_once,
    attention_over_neighbours,
    spans,
    states_of_a_scan,
    in_a_scan,
    where_the_instance_chooses,
    in_a_recursion,
    results_of_a_recursion,
    in_a_tree,
    states_of_a_tree,
    within_each_word,
    from_two_spaces_out,
    pointers_to_pointers,
    of_two_types,
    after_it_was_gone_through,
]

OF_NODES = [pairs_of_nodes, pairs_in_rounds]


def instances(dtype=np.float64):
    return [
        instance(0, dtype=dtype),
        instance(1, v=2, dtype=dtype),
        instance(2, w=1, dtype=dtype),
    ]


@pytest.mark.first_case
@pytest.mark.parametrize("model", MODELS)
def test_the_graph_computes_what_the_model_does(model):
    with jax.enable_x64(True):
        Compiled64(model, parameters(), SPEC, instances()).check_direction()


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize("model", OF_NODES)
def test_the_graph_computes_what_the_model_does_with_nodes(model):
    with jax.enable_x64(True):
        Compiled64(model, parameters(), SPEC, instances()).check_gradients()


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    st.sampled_from([m for m in MODELS if m not in (in_a_tree, from_two_spaces_out)]),
    st.integers(0, 1 << 16),
    st.data(),
)
def test_any_sizes(model, seed, data):
    sizes = st.tuples(
        st.integers(0, 5),
        st.integers(0, 3),
    )
    some = []
    for i, (v, w) in enumerate(
        data.draw(
            st.lists(
                sizes,
                min_size=1,
                max_size=3,
            )
        )
    ):
        some.append(instance(seed + i, v, w))
    with jax.enable_x64(True):
        Compiled64(model, parameters(), SPEC, some).check_direction(seed)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("model", [attention_over_neighbours, pairs_in_rounds])
def test_the_engine_computes_it(model):
    params = {}
    for key in ("cell", "out"):
        params[key] = parameters(np.float32)[key]
    spec = SPEC | {"x": "float32[v,2]", "nodes": "float32[g,2]"}
    compiled = amp.compile(model, params, spec)
    some = instances(np.float32)
    _, total, grads = ours(
        compiled.graph,
        compiled.data(some),
        max_dispatch_size=8,
    )
    want, by_key = jax.value_and_grad(lambda p: compiled.loss(p, some))(params)
    assert_equal((total, grads), (want, compiled.node_params(by_key)))


@pytest.mark.parametrize("at", ["each", "computed"])
def test_arrays_of_a_fixed_length_are_read_by_number_too(at):
    """Their length is known, so also a computed number may say which row is read."""

    def fixed(p, s):
        def number(j):
            if at == "each":
                return j
            return jnp.argmax(p["out"] * j)

        h = jnp.tanh(s["table"] @ p["cell"]["w"])
        return amp.sum(
            amp.map(
                lambda j: square(
                    p,
                    amp.take(h, number(j)) * amp.take(s["table"], j),
                ),
                s["next"],
            )
        )

    one = {
        "table": np.random.default_rng(0).normal(size=(4, 2)),
        "next": np.array(
            [3, 0, -4, 3],
            np.int32,
        ),
    }
    with jax.enable_x64(True):
        Compiled64(
            fixed, parameters(), {"table": "float64[4,2]", "next": "int32[n]"}, [one]
        ).check_gradients()


def n_messages(model, spec, instance):
    compiled = amp.compile(model, parameters(np.float32), spec)
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.0),
        min_update_interval=1 << 40,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.accumulate(compiled.data([instance]), update=False)
    return trainer.statistics.messages


@pytest.mark.first_case
@pytest.mark.parametrize("n", [10, 300])
def test_messages_are_as_many_as_reads_and_elements(n):
    """The sequence of 300 elements is computed by 300 messages, which go back, too, and is read `n` times: nothing is 300 times `n`."""
    spec = {"x": "float32[v,2]", "next": "int32[n]"}
    one = {
        "x": np.ones((300, 2), np.float32),
        "next": np.zeros(n, np.int32),
    }
    assert n_messages(pointers, spec, one) <= 3 * 300 + 5 * n


def test_windows_of_words_cost_no_message():
    """The host cuts windows out of the instance's own sequences; each neighbour of a computed element is read by messages."""
    spec = {"x": "float32[v,2]", "next": "int32[v]"}
    one = {
        "x": np.ones((50, 2), np.float32),
        "next": np.zeros(50, np.int32),
    }

    def of_words(p, s):
        def total(near):
            return p["embed"][near].sum()

        windows = amp.window(s["next"], 5)
        return amp.sum(amp.map(total, windows))

    def computed(p, s):
        words = amp.map(
            lambda at: p["embed"][at],
            s["next"],
        )
        windows = amp.window(words, 5)
        return amp.sum(amp.map(jnp.sum, windows))

    assert n_messages(of_words, spec, one) == 50
    assert n_messages(computed, spec, one) <= 50 * (3 * 4 + 2)


@pytest.mark.nightly
def test_messages_of_nodes_are_as_many_as_reads_and_nodes():
    spec = {
        "nodes": "float32[g,2]",
        "edges": amp.Edges("g", kinds=1),
        "pairs": {"a": "int32[p]", "b": "int32[p]"},
    }
    edges = amp.Edges(
        np.arange(300),
        np.arange(300),
        np.zeros(300, np.int64),
    )
    numbers = np.arange(100, dtype=np.int32)
    one = {
        "nodes": np.ones((300, 2), np.float32),
        "edges": edges,
        "pairs": {"a": numbers, "b": numbers},
    }
    assert n_messages(pairs_of_nodes, spec, one) <= 4 * 300 + 10 * 100


def total_of_read(p, s):
    return amp.sum(
        amp.map(
            lambda j: square(p, amp.take(s["x"], j)),
            s["next"],
        )
    )


@pytest.mark.parametrize("model", [pointers, total_of_read])
def test_data_is_as_large_as_reads_and_elements(model):
    """What the columns take at most is a small multiple of what they are made of, not the sequence once for each read."""
    n = 4000
    compiled = amp.compile(
        model,
        parameters(np.float32),
        {"x": "float32[v,2]", "next": "int32[n]"},
    )
    one = {
        "x": np.ones((n, 2), np.float32),
        "next": np.arange(n, dtype=np.int32),
    }
    tracemalloc.start()
    try:
        compiled.data([one]).gather(np.arange(1))
        assert tracemalloc.get_traced_memory()[1] < 100 * n * 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("wrong", "counted"),
    [(4, 4), (-5, -1)],
)
@pytest.mark.parametrize("model", [pointers, total_of_read])
def test_a_number_that_no_element_has_is_an_error_of_the_data(model, wrong, counted):
    compiled = amp.compile(
        model,
        parameters(np.float32),
        {"x": "float32[v,2]", "next": "int32[n]"},
    )
    good = {
        "x": np.ones((9, 2), np.float32),
        "next": np.array([8, -9], np.int32),
    }
    bad = {
        "x": np.ones((4, 2), np.float32),
        "next": np.array([0, wrong], np.int32),
    }
    text = f"instance 1: expected an element that the sequence has, got number {counted} of 4 elements. Take what is there"
    with pytest.raises(DataError, match=text):
        compiled.data([good, bad])
