"""`amp.recurse`: what it is equal to, where it may stand, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.model_laws import Compiled64
from support.parity import assert_equal, ours

import ampjax as amp
from ampjax.errors import AmpError, DataError, GraphError

MEND = "Mend the numbers in the data."


def parameters(dtype=np.float64):
    def draw(seed, *shape):
        return np.random.default_rng(seed).normal(0, 0.7, shape).astype(dtype)

    return {
        "cell": {
            "left": draw(0, 2, 2),
            "right": draw(1, 2, 2),
        },
        "init": draw(2, 2),
        "scale": draw(3, 2),
    }


def loss(sequence):
    return amp.sum(
        amp.map(
            lambda h: jnp.sum(h**2),
            sequence,
        )
    )


def cell(p, x, left, right):
    return jnp.tanh(x + left @ p["cell"]["left"] - right @ p["cell"]["right"])


def dag(p, s):
    """Each node has up to two operands, anywhere in the sequence; an operand may serve many nodes, and one node twice."""
    return loss(
        amp.recurse(
            lambda recur, x, a, b: cell(
                p,
                x,
                recur(a),
                recur(b),
            ),
            p["init"],
            s["x"],
            s["a"],
            s["b"],
        )
    )


def dags(seed, sizes, dtype=np.float64):
    """Random acyclic graphs, their nodes in any order."""
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        place = rng.permutation(n)  # of the node that is computed first, second, ...
        numbers = np.zeros((2, n), np.int32)
        for i in range(n):
            for side in range(2):
                if i:
                    operand = rng.integers(-1, i)
                else:
                    operand = -1
                numbers[side, place[i]] = place[operand] if operand >= 0 else -1 - rng.integers(3)
        found.append(
            {
                "x": rng.normal(size=(n, 2)).astype(dtype),
                "a": numbers[0],
                "b": numbers[1],
            }
        )
    return found


DAG = {"x": "float64[n,2]", "a": "int32[n]", "b": "int32[n]"}


@pytest.mark.slow
@settings(max_examples=examples(90))
@given(
    st.integers(0, 1 << 16),
    st.lists(
        st.integers(0, 6),
        min_size=1,
        max_size=3,
    ),
)
def test_any_acyclic_graph(seed, sizes):
    with jax.enable_x64(True):
        Compiled64(
            dag,
            parameters(),
            DAG,
            dags(seed, sizes),
        ).check_direction(seed)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_engine_computes_it():
    instances = dags(3, (1, 5, 0, 7), np.float32)
    params = parameters(np.float32)
    compiled = amp.compile(
        dag,
        params,
        {"x": "float32[n,2]", "a": "int32[n]", "b": "int32[n]"},
    )
    _, total, grads = ours(
        compiled.graph,
        compiled.data(instances),
        max_dispatch_size=8,
    )
    want, by_key = jax.value_and_grad(lambda p: compiled.loss(p, instances))(params)
    by_node = compiled.node_params(by_key)
    assert_equal(
        (total, grads),
        (want, {node: by_node[node] for node in grads}),
    )


TREE = amp.Tree(
    np.int32([1, -1, 1, 0, 0]),
    np.int32([0, 0, 1, 0, 1]),
    {"word": np.int32([3, 0, 1, 4, 2])},
)
INSTANCE = {
    "x": np.random.default_rng(5).normal(size=(5, 2)),
    "i": np.arange(5, dtype=np.int32),
    "t": TREE,
    "kids": amp.Ragged(
        np.int32([3, 4, 0, 2]),
        np.array([2, 2, 0, 0, 0]),
    ),
    "pairs": amp.Ragged(
        np.int32([0, 1, 0, 1, 2]),
        np.array([2, 0, 3, 0, 0]),
    ),
    "k": np.int32(1),
}
SPEC = {
    "x": "float64[v,2]",
    "i": "int32[v]",
    "t": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]"}),
    "kids": "int32[v,c]",
    "pairs": "int32[v,q]",
    "k": "int32[]",
}


def scan(p, s):
    return amp.scan(
        lambda h, x: (cell(p, x, h, h),) * 2,
        p["init"],
        s["x"],
    )[1]


def recurse_as_scan(p, s):
    return amp.recurse(
        lambda recur, x, i: cell(
            p,
            x,
            recur(i - 1),
            recur(i - 1),
        ),
        p["init"],
        s["x"],
        s["i"],
    )


def scan_tree(p, s):
    def step(h, n):
        return jnp.tanh(h @ p["cell"]["left"] + n["word"])

    return amp.scan_tree(step, p["init"], s["t"])


def recurse_as_scan_tree(p, s):
    def step(recur, up, n):
        return jnp.tanh(recur(up) @ p["cell"]["left"] + n["word"])

    return amp.recurse(
        step,
        p["init"],
        s["t"].parent,
        s["t"].value,
    )


def fold_tree(p, s):
    leaf = lambda n: p["scale"] * n["word"]

    def branch(n, kids):
        return jnp.tanh(amp.sum(kids) @ p["cell"]["left"] + n["word"])

    return amp.fold_tree(leaf, branch, s["t"])[0]


def recurse_as_fold_tree(p, s):
    def node(recur, n, kids):
        leaf = lambda: p["scale"] * n["word"]

        def branch():
            return jnp.tanh(amp.sum(amp.map(recur, kids)) @ p["cell"]["left"] + n["word"])

        return amp.cond(amp.length(kids) == 0, leaf, branch)

    return amp.recurse(
        node,
        jnp.zeros(2),
        s["t"].value,
        s["kids"],
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("one", "other"),
    [(scan, recurse_as_scan), (scan_tree, recurse_as_scan_tree), (fold_tree, recurse_as_fold_tree)],
)
def test_scan_and_both_ways_through_trees_are_recursions(one, other):
    with jax.enable_x64(True):
        params = parameters()
        want, got = (
            jax.value_and_grad(lambda p, model=model: loss(model(p, INSTANCE)))(params)
            for model in (one, other)
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12),
            got,
            want,
        )
        Compiled64(
            lambda p, s: loss(other(p, s)),
            params,
            SPEC,
            [INSTANCE] * 2,
        ).check_direction()


def several_types(p, s):
    def each(recur, x, i):
        depth, (low, high) = recur(i // 2 - 1)
        return depth + 1, (jnp.tanh(low + x * p["scale"]), high * 0.5 + x[0] * depth)

    depth, (low, high) = amp.recurse(
        each,
        (jnp.int32(0), (p["init"], 1.0)),
        s["x"],
        s["i"],
    )
    return amp.sum(
        amp.map(
            lambda d, a, b: d * jnp.sum(a) * b,
            depth,
            low,
            high,
        )
    )


def asked_where_the_instance_chooses(p, s):
    def each(recur, x, i):
        def near():
            return recur(i - 1) @ p["cell"]["left"]

        far = lambda: recur(i - 2) * p["scale"]
        return jnp.tanh(x + amp.cond(i % 2 == 0, near, far))

    return loss(
        amp.recurse(
            each,
            jnp.ones(2),
            s["x"],
            s["i"],
        )
    )


def asked_by_a_scan_over_its_pairs(p, s):
    def each(recur, x, i, pairs):
        def step(h, j):
            return (
                jnp.tanh(
                    h @ p["cell"]["left"]
                    + recur(
                        jnp.where(
                            j < i,
                            j,
                            -1,
                        )
                    )
                ),
                None,
            )

        return amp.scan(step, x, pairs)[0]

    return loss(
        amp.recurse(
            each,
            p["init"],
            s["x"],
            s["i"],
            s["pairs"],
        )
    )


def from_computed_values(p, s):
    """What starts it, and what it goes through, are results of other nodes."""
    xs = amp.map(
        lambda x: jnp.tanh(x * p["scale"]),
        s["x"],
    )
    init = amp.sum(xs)
    return loss(
        amp.recurse(
            lambda recur, x, i: cell(
                p,
                x,
                recur(i - 1),
                recur(i - 3),
            ),
            init,
            xs,
            s["i"],
        )
    )


def inside_a_map(p, s):
    """A table of a sequence's own for each row; the inner function asks for results of the outer recursion, too."""

    def row(above, x, i, pairs):
        own = amp.recurse(
            lambda recur, j: jnp.tanh(recur(j - 1) + above(i - 1) * p["scale"]),
            x,
            pairs,
        )
        return x + amp.sum(own)

    return loss(
        amp.recurse(
            row,
            p["init"],
            s["x"],
            s["i"],
            s["pairs"],
        )
    )


def at_one_place_of_a_choice(p, s):
    def through():
        return amp.take(
            amp.recurse(
                lambda recur, x, i: cell(
                    p,
                    x,
                    recur(i - 1),
                    x,
                ),
                p["init"],
                s["x"],
                s["i"],
            ),
            -1,
        )

    return jnp.sum(
        amp.cond(
            s["k"] == 1,
            through,
            lambda: p["scale"] * s["k"],
        )
    )


MODELS = [
    several_types,
    asked_where_the_instance_chooses,
    asked_by_a_scan_over_its_pairs,
    from_computed_values,
    inside_a_map,
    at_one_place_of_a_choice,
]


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_it_stands_anywhere(model):
    with jax.enable_x64(True):
        other = INSTANCE | {
            "k": np.int32(0),
            "x": INSTANCE["x"][::-1] * 2,
        }
        Compiled64(model, parameters(), SPEC, [INSTANCE, other]).check_direction()


def alignment(p, s):
    """Dynamic programming: a soft edit distance over the cells of a table, row by row."""

    def each(recur, up, left, diagonal, differs):
        costs = jnp.stack(
            [
                recur(up) + 1,
                recur(left) + 1,
                recur(diagonal) + differs * p["scale"][0],
            ]
        )
        return -jax.nn.logsumexp(-costs)

    return amp.take(
        amp.recurse(
            each,
            0.0,
            s["up"],
            s["left"],
            s["diagonal"],
            s["differs"],
        ),
        -1,
    )


@pytest.mark.nightly
def test_a_table_of_dynamic_programming():
    def table(a, b):
        i, j = (x.ravel() for x in np.indices((len(a), len(b))))

        def number(i, j):
            return np.where(
                (i >= 0) & (j >= 0),
                i * len(b) + j,
                -1,
            ).astype(np.int32)

        differs = (np.array(list(a))[i] != np.array(list(b))[j]).astype(np.float64)
        return {
            "up": number(i - 1, j),
            "left": number(i, j - 1),
            "diagonal": number(i - 1, j - 1),
            "differs": differs,
        }

    with jax.enable_x64(True):
        spec = {
            "up": "int32[n]",
            "left": "int32[n]",
            "diagonal": "int32[n]",
            "differs": "float64[n]",
        }
        Compiled64(
            alignment,
            parameters(),
            spec,
            [table("kitten", "sitting"), table("a", "b")],
        ).check_direction()


def test_each_element_is_computed_once():
    """Paths double from node to node; a recursion without a memory would make 2**40 calls."""
    n = 40
    calls = []

    def each(recur, a):
        calls.append(int(a))
        return recur(a) + recur(a)

    assert float(amp.recurse(each, 1.0, np.arange(n) - 1)[-1]) == 2.0**n
    assert len(calls) == n


def test_long_chains_do_not_need_pythons_stack():
    """Backwards, each element asks for the next one before that has been computed."""
    n = 1000
    got = amp.recurse(
        lambda recur, after: recur(after) + 1,
        0,
        np.append(np.arange(1, n), -1),
    )
    assert got.tolist() == list(range(n, 0, -1))
    ring = np.roll(np.arange(n), -1)
    with pytest.raises(DataError, match="expected results that are not made of themselves"):
        amp.recurse(lambda recur, after: recur(after) + 1, 0, ring)


def test_no_elements():
    assert amp.recurse(
        lambda recur, a: recur(a),
        jnp.zeros(2),
        np.zeros(0, np.int32),
    ).shape == (
        0,
        2,
    )


# -- what is refused


def model(each, init=0.0):
    return lambda p, s: (
        amp.sum(
            amp.recurse(
                each,
                init,
                s["a"],
            )
        )
        * p["w"]
    )


LEAKED = []


def leaks(p, s):
    def each(recur, a):
        LEAKED[:] = [recur]
        return recur(a)

    return (
        amp.sum(
            amp.recurse(
                each,
                0.0,
                s["a"],
            )
        )
        + LEAKED[0](s["a0"]) * p["w"]
    )


def after_a_read(p, s):
    def each(recur, a):
        return amp.cond(
            amp.read(p["w"] * a > 1),
            lambda: recur(a - 1),
            lambda: 0.0,
        )

    return amp.sum(amp.recurse(each, 0.0, s["a"]))


REFUSED = [
    (
        model(lambda recur, a: recur(jnp.int32(recur(a)))),
        "expected the number of an element, known from the instance, got a computed number. "
        "Take the number from the instance: what the recursion goes through can't depend on parameters.",
    ),
    (
        model(lambda recur, a: recur(0.5 * a)),
        "expected the number of an element, got float32[]. Give an integer that follows from the instance.",
    ),
    (
        model(lambda recur, a: jnp.ones(2) * recur(a)),
        "expected a result of the types of `init`: float32[], got float32[2]. Give both the same shapes",
    ),
    (
        model(lambda recur, a: (recur(a), a)),
        "expected a result as `init` is built, one array, got `(*, *)`. Return what `recur` is to give.",
    ),
    (
        leaks,
        "expected `recur` inside of the function that `amp.recurse` was given, got a call outside. "
        "Pass on what it gave; its function is of this recursion alone.",
    ),
    (
        after_a_read,
        "expected `recur` where the instance decides what runs, got a call where a read value does. "
        "Ask before the choice, and use there what was given.",
    ),
]


@pytest.mark.parametrize(("refused", "text"), REFUSED)
def test_what_is_refused(refused, text):
    with pytest.raises(GraphError, match=r"test_recursion\.py:\d+") as caught:
        amp.compile(
            refused,
            {"w": np.float32(1)},
            {"a": "int32[n]", "a0": "int32[]"},
        )
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([-1, 0, 3], "expected an element below 3, or a negative number, got 3"),
        ([-1, 2, 1], "expected results that are not made of themselves, got element"),
        ([0], "expected results that are not made of themselves, got element"),
    ],
)
def test_numbers_that_do_not_fit(numbers, text):
    """Told by the data of a compiled model, with the instance, and where the model runs as it is."""
    each = lambda recur, a: recur(a) + 1.0
    compiled = amp.compile(
        model(each),
        {"w": np.float32(1)},
        {"a": "int32[n]"},
    )
    with pytest.raises(DataError, match=re.escape(text)) as caught:
        compiled.data(
            [
                {"a": np.int32([-1, 0])},
                {"a": np.int32(numbers)},
            ]
        )
    assert "instance 1" in str(caught.value) and MEND in str(caught.value)
    with pytest.raises(AmpError, match=re.escape(text)) as caught:
        amp.recurse(each, 0.0, np.int32(numbers))
    assert "test_recursion.py" in str(caught.value)
