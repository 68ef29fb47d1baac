"""Whole programs of one example in a batch, as researchers write such programs with JAX alone: values and gradients agree with the function, example by example.

Sequences of no elements and of one are among the examples, and rows that fill a batch up.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from support.effort import left_to_nightly
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import DataError, GraphError

XENT = optax.softmax_cross_entropy_with_integer_labels
SPEC = {
    "x": "float64[t,3]",
    "tags": "int32[t]",
    "y": "float64[m,3]",
    "labels": "int32[m]",
    "k": "int32[]",
}
RNG = np.random.default_rng(3)
PARAMS = {
    "w": 0.5 * RNG.normal(size=(3, 3)),
    "b": RNG.normal(size=3),
    "out": RNG.normal(size=(3, 5)),
    "table": RNG.normal(size=(12, 3)),
    "kernel": RNG.normal(size=(3, 3, 3)),
    "next": RNG.normal(size=(5, 5)),
}


def example(seed, t, m):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(t, 3)),
        "tags": rng.integers(
            0,
            5,
            t,
        ).astype(np.int32),
        "y": rng.normal(size=(m, 3)),
        "labels": rng.integers(
            0,
            5,
            m,
        ).astype(np.int32),
        "k": np.int32(rng.integers(0, 4)),
    }


EXAMPLES = [
    example(
        seed,
        *sizes,
    )
    for seed, sizes in enumerate([(3, 2), (0, 1), (1, 3), (6, 2)])
]
FILLED = [each for each in EXAMPLES if len(each["x"])]


def agrees(function, examples=EXAMPLES, params=PARAMS):
    """Compares a batch with the function on each example."""
    with jax.enable_x64(True):
        is_traced = function is not inside_of_others
        check_batch(function, params, SPEC, examples, is_traced=is_traced)


def hidden(p, s):
    return jnp.tanh(s["x"] @ p["w"] + p["b"])


def total(x):
    return jnp.sum(jnp.sin(x))


def next_tokens(p, s):
    logits = hidden(p, s) @ p["out"]
    tags = s["tags"]
    n = tags.shape[0]
    picked = jax.nn.log_softmax(logits)[:-1]
    return (
        XENT(
            logits[:-1],
            tags[1:],
        ).sum()
        + jnp.take_along_axis(
            picked,
            tags[1:, None],
            1,
        ).sum()
        - picked[jnp.arange(n - 1), tags[1:]].sum()
        + p["next"][tags[:-1], tags[1:]].sum()
        + jax.vmap(XENT)(
            logits[:-1],
            tags[1:],
        ).sum()
    )


def positions(p, s):
    v = hidden(p, s)
    n = v.shape[0]
    bias = p["table"] @ p["table"].T
    return (
        total(v + p["table"][:n])
        + total(v * p["table"][2 : n + 2])
        + total(
            lax.dynamic_slice_in_dim(
                p["table"],
                s["k"],
                n,
            )
            * v
        )
        + total(v @ v.T + bias[:n, :n])
        + total(p["table"][n:])
    )


def updates(p, s):
    v = hidden(p, s)
    n = v.shape[0]
    return (
        total(v.at[1:].set(2 * v[:-1]))
        + total(v.at[:-1].add(p["b"]))
        + total(v.at[1:, 0].multiply(v[:-1, 1]))
        + total(v.at[-2:].max(0.1))
        + total(p["table"].at[:n].set(v))
        + total(
            lax.dynamic_update_slice_in_dim(
                v,
                v[:-1],
                1,
                0,
            )
        )
        + total(
            lax.dynamic_update_slice(
                p["table"],
                v,
                (0, 0),
            )
        )
    )


def updates_of_some(p, s):
    v = hidden(p, s)
    i = jnp.argmax(v[:, 0])
    return (
        total(
            lax.dynamic_update_slice(
                v,
                p["b"][None],
                (i, 0),
            )
        )
        + total(
            lax.dynamic_update_slice(
                v,
                p["b"][None, :2],
                (s["k"], jnp.int32(1)),
            )
        )
        + total(lax.dynamic_slice_in_dim(v, i, 1))
        + total(
            lax.dynamic_slice_in_dim(
                v,
                1,
                v.shape[0] - 1,
            )
        )
    )


def contrastive(p, s):
    a, b = (
        hidden(
            p,
            s,
        ),
        jnp.sin(s["x"]),
    )
    scores = a @ b.T
    return (
        jnp.diagonal(
            jax.nn.log_softmax(
                scores,
                axis=1,
            )
        ).sum()
        + jnp.diag(
            jax.nn.log_softmax(
                scores,
                axis=0,
            )
        ).sum()
        + total(jnp.einsum("ii->i", scores))
        + XENT(
            scores.T,
            jnp.arange(a.shape[0]),
        ).sum()
        + total(scores.T @ a)
        + total(scores[1:, 1:] - scores[:-1, :-1])
    )


def columns(p, s):
    scores = hidden(p, s) @ s["y"].T
    return (
        total(jax.nn.softmax(scores, axis=0))
        + total(jnp.log(jnp.exp(scores).sum(0)))
        + total(scores.T)
        + total(scores.reshape(-1) * jnp.arange(scores.size))
        + total(scores[:, s["labels"] % 2])
    )


def rounds(p, s):
    def normalised(i, scores):
        scores = scores - jax.nn.logsumexp(
            scores,
            axis=0,
            keepdims=True,
        )
        return scores - jax.nn.logsumexp(
            scores,
            axis=1,
            keepdims=True,
        )

    scores = hidden(p, s) @ s["y"].T
    by_example = amp.fori_loop(s["k"], normalised, scores)
    return total(by_example) + total(
        lax.fori_loop(
            0,
            2,
            normalised,
            scores,
        )
    )


def rows_of_pairs(p, s):
    v = hidden(p, s)
    scores = v @ v.T
    i = jnp.argmax(v[:, 0])
    return (
        total(scores[0] * scores[-1])
        + total(scores[:, 0])
        + scores[0, 0]
        + total(scores[::-1] * scores)
        + total(v[i]) * v[i, 1]
        + total(v[s["k"] - 3])
    )


def loops(p, s):
    def step(c, given):
        x, tag = given
        c = jnp.tanh(c @ p["w"] + x)
        return c, XENT(c @ p["out"], tag)

    def layer(states, w):
        return jnp.tanh(states @ w + states.sum(0)), states.sum()

    v = hidden(p, s)
    last, losses = lax.scan(
        step,
        p["b"],
        (s["x"], s["tags"]),
    )
    _, backwards = lax.scan(
        step,
        p["b"],
        (s["x"], s["tags"]),
        reverse=True,
    )
    states, sums = lax.scan(
        layer,
        v,
        p["kernel"],
    )
    mapped = lax.map(
        lambda x: x @ p["w"],
        v,
    )
    return total(last) + total(losses * backwards) + total(states) + total(sums) + total(mapped)


def choices(p, s):
    v = hidden(p, s)
    return total(
        lax.cond(
            s["k"] > 1,
            lambda v: v @ p["w"],
            lambda v: v + 1,
            v,
        )
    ) + total(
        lax.switch(
            s["k"],
            [
                lambda: v[::-1],
                lambda: 2 * v,
                lambda: v * p["b"],
            ],
        )
    )


def convolutions(p, s):
    numbers = ("NWC", "WIO", "NWC")

    def convolved(x, **options):
        given = {"window_strides": (1,), "padding": "SAME", **options}
        return lax.conv_general_dilated(
            x[None],
            p["kernel"],
            dimension_numbers=numbers,
            **given,
        )[0]

    def pooled(x, start, operate):
        return lax.reduce_window(
            x,
            start,
            operate,
            (2, 1),
            (2, 1),
            "SAME",
        )

    v = hidden(p, s)
    return (
        total(convolved(convolved(v)))
        + total(
            convolved(
                v,
                padding=[(4, 0)],
                rhs_dilation=(2,),
            )
        )
        + total(convolved(v, window_strides=(2,)))
        + total(
            pooled(
                v,
                -jnp.inf,
                lax.max,
            )
            * pooled(v, 0.0, lax.add)
        )
    )


def other_shapes(p, s):
    v = hidden(p, s)
    n = v.shape[0] // 2
    return (
        total(v.reshape(-1) * jnp.arange(3 * v.shape[0]))
        + total(
            jnp.repeat(
                v,
                2,
                axis=0,
            )
            * jnp.arange(2 * v.shape[0])[:, None]
        )
        + total(
            v[: 2 * n]
            .reshape(
                n,
                2,
                3,
            )
            .max(1)
        )
        + total(jnp.flip(v) * v)
        + total(
            (
                v[
                    jnp.clip(
                        jnp.arange(v.shape[0])[:, None] + jnp.arange(2),
                        0,
                        0,
                    )
                ]
            ).sum(1)
        )
    )


def inside_of_others(p, s):
    v = hidden(p, s)

    def one(a):
        scores = (v * a) @ v.T
        return amp.cond(
            a[0] > 0,
            lambda: (
                total(
                    jax.nn.softmax(
                        scores,
                        axis=0,
                    )
                )
                + total(v[jnp.argmax(v @ a)])
            ),
            lambda: total(v.at[1:].set(a * v[:-1])) + total(p["table"][: v.shape[0]] * a),
        )

    return amp.sum(amp.map(one, v))


def apart_by_two(p, s):
    v = hidden(p, s)
    return (
        total(v[2:] - 2 * v[1:-1] + v[:-2])
        + total(v[-3:] * v[:3])
        + total(
            jnp.diff(
                v,
                n=2,
                axis=0,
            )
        )
        + total(v.at[2:].set(2 * v[:-2]))
        + total((v @ v.T)[2:, 2:] * (v @ v.T)[:-2, :-2])
        + total(jnp.concatenate([p["table"][:2], v])[: v.shape[0]] * v)
    )


def along_the_elements(p, s):
    v = hidden(p, s)
    order = jnp.argsort(v, axis=0)
    blocks = v[:, :, None] * p["b"]
    return (
        total(
            jnp.take_along_axis(
                v,
                order,
                axis=0,
            )
            * v
        )
        + total(
            jnp.take_along_axis(
                blocks,
                jnp.argsort(blocks, axis=0)[::-1],
                axis=0,
            )
            * v[:, :, None]
        )
        + total(
            jnp.take_along_axis(
                v,
                order[1:],
                axis=0,
            )
        )
    )


def products_of_pairs(p, s):
    """Matrices of pairs multiplied with one another: rows and columns of the same sequence."""
    v = hidden(p, s)
    a = jnp.tanh((v * p["b"]) @ v.T)
    b = jnp.sin(v @ (p["w"] @ v.T))
    rows = jax.vmap(lambda row: row @ a)(b)
    return (
        total((a @ b) * b)
        + total((a.T @ b) * a)
        + total((jax.nn.softmax(a) @ b.T) * a)
        + total(jnp.einsum("ij,kj->ik", a, b) * b)
        + total(rows * b)
        + total((a @ a @ v) * v)
    )


ORDINARY = [next_tokens, positions, updates, columns, loops, choices, products_of_pairs]
LONGER = [apart_by_two, along_the_elements, rounds, contrastive, convolutions, inside_of_others]


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [*ORDINARY, *left_to_nightly(LONGER)],
)
def test_a_batch_computes_what_the_function_does(function):
    agrees(function)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [updates_of_some, rows_of_pairs, other_shapes],
)
def test_what_an_empty_sequence_has_not_is_refused_for_it_alone(function):
    agrees(function, FILLED)


@pytest.mark.slow
def test_few_rounds_of_a_matrix_of_pairs():
    """Examples of unlike numbers of rounds, in which a matrix that is done keeps its place."""

    def function(p, s):
        def turn(i, scores):
            return jnp.tanh(scores - scores.sum(0) * p["b"][0])

        return total(
            amp.fori_loop(
                s["k"],
                turn,
                hidden(p, s) @ s["y"].T,
            )
        )

    agrees(function)


@pytest.mark.slow
def test_the_largest_elements():
    def function(p, s):
        v = hidden(p, s)
        values, places = lax.top_k(
            v[:, 0],
            2,
        )
        of_columns, rows = lax.top_k(v, 1, axis=0)
        # of equal ones the first comes first
        _, of_equal = lax.top_k(
            s["tags"] // 3,
            2,
        )
        return (
            total(values * v[places, 1])
            + total(of_columns + rows)
            + total(
                v[of_equal]
                * jnp.arange(
                    1,
                    3,
                )[:, None]
            )
            + total(jnp.median(v, axis=0))
            + total(
                jnp.quantile(
                    v[:, 0],
                    jnp.array([0.2, 0.7]),
                )
            )
        )

    agrees(
        function,
        [each for each in EXAMPLES if len(each["x"]) > 1],
    )
    with jax.enable_x64(True):
        batched = amp.vmap(function, SPEC, params=PARAMS)
        with pytest.raises(
            DataError, match=r"test_whole_programs.py:\d+.*instance 2: expected at least 2 elements"
        ):
            batched.pack(FILLED[:1] + FILLED[2:] + FILLED[1:2])


def test_numbers_that_are_none_are_the_largest():
    def function(p, s):
        return (
            lax.top_k(
                s["x"],
                2,
            )[0]
            * p
        )

    given = {
        "x": np.array(
            [1.0, np.nan, 3.0, -np.inf],
            np.float32,
        )
    }
    found = amp.vmap(function, {"x": "float32[t]"})(
        1.0,
        [
            given,
            {"x": np.array([2, 5], np.float32)},
        ],
    )
    np.testing.assert_array_equal(
        found,
        [[np.nan, 3], [5, 2]],
    )


def test_a_table_that_is_too_short_is_told_with_the_example():
    def sliced(p, s):
        return total(p["table"][: s["x"].shape[0]] + s["x"])

    def filled(p, s):
        return total(p["table"].at[: s["x"].shape[0]].set(s["x"]))

    def cut(p, s):
        return total(
            lax.dynamic_slice_in_dim(
                p["table"],
                0,
                s["x"].shape[0],
            )
        )

    long = [
        EXAMPLES[0],
        example(
            9,
            13,
            1,
        ),
    ]
    with jax.enable_x64(True):
        for function in (sliced, filled, cut):
            batched = amp.vmap(function, SPEC, params=PARAMS)
            assert batched(PARAMS, EXAMPLES).shape == (4,)
            with pytest.raises(
                DataError,
                match=r"instance 1: expected at most 12 elements, .*got 13 elements.*Make the array longer",
            ):
                batched.pack(long)


def of_tree(p, s):
    """Attention among the children of each node, and to a sequence."""

    def branch(digit, children):
        attended = jax.nn.softmax(children @ children.T, axis=0) @ children
        beside = children @ s["x"].T @ s["x"]
        ends = children[0] * amp.take(children, -1) + children.max(0)
        return jnp.tanh(p["table"][digit] + attended.sum(0) + beside.sum(0) + ends)

    states, root = amp.fold_tree(
        lambda digit: p["table"][digit],
        branch,
        s["tree"],
    )
    return total(root) + total(states[1:] * states[:-1])


@pytest.mark.nightly
def test_children_attend_to_each_other():
    trees = [
        amp.Tree(
            parent=[-1, 0, 0, 2, 2],
            side=[0, 0, 1, 0, 1],
            value=[1, 4, 3, 0, 2],
        ),
        amp.Tree(
            parent=[-1],
            side=[0],
            value=[2],
        ),
        amp.Tree(
            parent=[-1, 0, 0, 0],
            side=[0, 0, 1, 2],
            value=[1, 2, 3, 4],
        ),
    ]
    given = []
    for tree, each in zip(trees, EXAMPLES, strict=False):
        given.append({"tree": tree, "x": each["x"]})
    spec = {
        "tree": amp.Tree("int32[v]", "int32[v]", "int32[v]"),
        "x": SPEC["x"],
    }
    with jax.enable_x64(True):
        check_batch(of_tree, PARAMS, spec, given)


def test_the_largest_of_no_differences_is_told_with_the_example():
    def steps(p, s):
        v = hidden(p, s)
        apart = jnp.diff(
            v,
            axis=0,
        )
        return apart.max() + v[jnp.argmin(apart[:, 0]), 0] + total(v[2:].min(0))

    def with_initial(p, s):
        return jnp.diff(
            hidden(p, s),
            axis=0,
        ).max(initial=0.5)

    agrees(steps, [EXAMPLES[0], EXAMPLES[3]])
    agrees(with_initial)
    with jax.enable_x64(True):
        batched = amp.vmap(steps, SPEC, params=PARAMS)
        with pytest.raises(
            DataError,
            match=r"instance 1: expected an element, as the (larg|small)est of `t - 1` elements.*got none.*initial=",
        ):
            batched.pack([EXAMPLES[0], EXAMPLES[2]])


ADVICE = {
    "Choose among all pairs": lambda p, v: (v @ v.T).at[0].set(p["b"][0]),
    "Read rows of `m` elements": lambda p, v: (v @ v.T).reshape(-1).reshape((v.shape[0],) * 2),
    "Name the axis": lambda p, v: jnp.squeeze(v @ p["w"][:, :1]),
    "Subtract neighbours": lambda p, v: jnp.gradient(v, axis=0),
    "Sum what lies between": lambda p, v: jnp.trapezoid(v, axis=0),
    "places <= x": lambda p, v: jnp.interp(
        p["b"],
        v[:, 0],
        v[:, 1],
    ),
    "`accumulate` .* `jax.lax.cummax": lambda p, v: jnp.maximum.accumulate(v[:, 0]),
    "`digitize` .* count those": lambda p, v: jnp.digitize(
        p["b"],
        v[:, 0],
    ),
    "Update along the first axis": lambda p, v: v.T.at[:, jnp.array([0, 1])].max(0.5),
    "cut what both give": lambda p, v: jnp.concatenate([p["table"][:2], v[:-2]]) + v,
    "Cut it": lambda p, v: jnp.split(v, [2])[0],
}


@pytest.mark.parametrize("advice", ADVICE)
def test_what_is_refused_is_told_with_what_to_write(advice):
    def function(p, s):
        return total(
            ADVICE[advice](
                p,
                hidden(
                    p,
                    s,
                ),
            )
        )

    with jax.enable_x64(True), pytest.raises(GraphError, match=advice):
        amp.vmap(function, SPEC, params=PARAMS)(PARAMS, EXAMPLES)


def test_messages_tell_how_first_rows_are_read():
    def function(p, s):
        return total(p["table"][: s["x"].shape[0]])

    with (
        jax.enable_x64(True),
        pytest.raises(GraphError, match=r"`table\[jnp\.arange\(xs\.shape\[0\]\)\]`"),
    ):
        amp.compile(function, PARAMS, SPEC)


class Tagger(nn.Module):
    """A layer of each kind, and a language model's loss."""

    @nn.compact
    def __call__(self, words, x):
        double = {"param_dtype": jnp.float64}
        places = self.param(
            "places",
            nn.initializers.normal(),
            (12, 4),
            jnp.float64,
        )
        v = (
            nn.Embed(
                5,
                4,
                **double,
            )(words)
            + places[: words.shape[0]]
        )
        v = nn.LayerNorm(**double)(
            nn.Dense(4, **double)(
                jnp.concatenate(
                    [v, x],
                    -1,
                )
            )
        )
        v = nn.relu(
            nn.Conv(
                4,
                (3,),
                **double,
            )(v)
        )
        heads = nn.MultiHeadDotProductAttention(num_heads=2, **double)
        v = v + heads(
            v,
            v,
            mask=nn.make_causal_mask(words),
        )
        v = v + nn.RNN(
            nn.GRUCell(4, **double),
            reverse=True,
            keep_order=True,
        )(v)
        return nn.Dense(5, **double)(v)


@pytest.mark.nightly
def test_layers_of_flax():
    model = Tagger()
    first = EXAMPLES[0]

    def function(p, s):
        logits = jnp.asarray(
            model.apply(
                p,
                s["tags"],
                s["x"],
            )
        )
        return XENT(
            logits[:-1],
            s["tags"][1:],
        ).sum()

    with jax.enable_x64(True):
        params = model.init(
            jax.random.key(0),
            first["tags"],
            first["x"],
        )
        found = amp.vmap(function, SPEC, params=params)
        got = jax.grad(
            lambda p: found(
                p,
                FILLED,
            ).sum()
        )(params)
        want = jax.grad(
            lambda p: sum(
                function(
                    p,
                    each,
                )
                for each in FILLED
            )
        )(params)
    for one, other in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(want),
        strict=True,
    ):
        np.testing.assert_allclose(
            one,
            other,
            rtol=1e-9,
            atol=1e-9,
        )


@pytest.mark.slow
def test_a_table_of_ngrams_reads_whole_sequences():
    layer = amp.nn.NgramTable(
        n_rows=2,
        features=3,
        n_hidden=3,
        kernel=2,
    )
    table = layer.init(jax.random.key(0))
    params = {
        name: np.asarray(
            x,
            np.float64,
        )
        + 0.3
        for name, x in table.items()
    }

    def function(p, s):
        return total(
            s["x"]
            + layer(
                p,
                jnp.asarray(s["x"]),
                layer.ids(jnp.asarray(s["tags"])),
            )
        )

    agrees(function, params=params)


def test_the_same_in_each_element_and_numbers_of_pairs():
    """Transforms and draws of each element, the largest elements of columns, and a sequence read by the distances of all pairs."""

    def model(p, s):
        def noise(i, x):
            return x * jax.random.normal(jax.random.fold_in(key, i), (3,))

        key = jax.random.key(0)
        xs = s["x"] @ p["w"]
        numbers = jnp.arange(xs.shape[0])
        near = jnp.abs(numbers[:, None] - numbers)
        waves = jnp.abs(jnp.fft.rfft(xs + p["b"], axis=-1))
        best, at = lax.top_k(xs.T, 1)
        drawn = jax.vmap(noise)(numbers, xs)
        biases = xs[near, 0] + (xs @ s["x"].T)[::-1, ::-1]
        return total(waves) + jnp.sum(best * (1 + at)) + total(drawn) + total(biases @ xs)

    agrees(model, FILLED)
