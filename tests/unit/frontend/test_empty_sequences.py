"""The function as it is, `compiled.loss` and the graph agree where sequences are empty, however the data writes that."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.model_laws import Compiled64

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.sequences import least

P = {
    "w": np.eye(2) * 0.7,
    "b": np.ones(2) * 0.3,
    "s": np.float64(1.5),
}


def dense(p, x):
    return jnp.tanh(x @ p["w"] + p["b"])


def none(*shape):
    return np.zeros(shape)


FLAT = {"x": "float64[t,2]"}, [{"x": x} for x in ([], none(0, 2), none(0), np.array([]))]
NESTED = (
    {"x": "float64[t,e,2]"},
    [
        {"x": x}
        for x in (
            [],
            [[]],
            [[], [[1, 2]]],
            [none(0, 2)],
            [np.ones((1, 2)), none(0, 2)],
            amp.Ragged(none(0, 2), np.zeros(2, int)),
            amp.Ragged(none(0), np.zeros(0, int)),
            none(0, 0, 2),
            none(3, 0, 2),
        )
    ],
)
DEEP = (
    {"x": "float64[t,e,f,2]"},
    [
        {"x": x}
        for x in (
            [],
            [[[]]],
            [[], [[], []]],
            [[none(0, 2)], []],
            [
                [none(1, 2), none(2, 2)],
                [none(1, 2)],
            ],
            [
                [[[1.0, 2.0]]],
                [],
                [[], [[1.0, 1.0], [0.0, 1.0]]],
            ],
            amp.Ragged(
                amp.Ragged(none(0, 2), np.zeros(0, int)),
                np.zeros(2, int),
            ),
        )
    ],
)
ASKED = (
    {"x": "float64[v]", "ps": "int32[v,k]"},
    [
        {"x": x, "ps": ps}
        for x, ps in (
            ([], []),
            ([1.0, 2.0], [[], []]),
            (
                [1.0, 2.0],
                [none(0).astype(int), [0, 0]],
            ),
            ([1.0], amp.Ragged(none(0), [0])),
        )
    ],
)


def _tree(nested):
    return amp.Tree.of(
        nested,
        lambda x: {"x": np.array([x, 1.0])},
        {"x": none(2)},
    )


TREES = (
    {"ts": amp.Tree("int32[s,v]", "int32[s,v]", {"x": "float64[s,v,2]"})},
    [
        {"ts": ts}
        for ts in ([], [_tree(1)], [_tree(1), _tree(((1, 2), 3))], amp.Tree([], [], {"x": []}))
    ],
)
GRAPH = (
    {"g": amp.Edges("v", kinds=2), "x": "float64[v,2]"},
    [
        {"g": amp.Edges(*ends), "x": x}
        for ends, x in (
            (([], [], []), []),
            (([], []), none(2, 2)),
            (
                (none(0), none(0), none(0)),
                np.array([]),
            ),
            (
                ([0], [1], [1]),
                [[1.0, 2.0], [3.0, 4.0]],
            ),
            (
                ([0], [1]),
                [[1.0, 2.0], [3.0, 4.0]],
            ),
        )
    ],
)

MODELS = {
    "sum": (
        FLAT,
        lambda p, e: amp.sum(
            amp.map(
                lambda x: dense(p, x),
                e["x"],
            )
        ),
    ),
    "sum of what the data has": (
        FLAT,
        lambda p, e: amp.sum(e["x"]) * p["s"],
    ),
    "mean": (
        FLAT,
        lambda p, e: amp.mean(
            amp.map(
                lambda x: dense(p, x),
                e["x"],
            )
        ),
    ),
    "max": (
        FLAT,
        lambda p, e: jnp.tanh(
            amp.max(
                amp.map(
                    lambda x: dense(p, x),
                    e["x"],
                )
            )
        ),
    ),
    "logsumexp": (
        FLAT,
        lambda p, e: jnp.exp(
            amp.logsumexp(
                amp.map(
                    lambda x: dense(p, x),
                    e["x"],
                )
            )
        ),
    ),
    "softmax": (
        FLAT,
        lambda p, e: (
            amp.sum(
                amp.map(
                    jnp.multiply,
                    amp.softmax(e["x"]),
                    e["x"],
                )
            )
            * p["s"]
        ),
    ),
    "scan": (
        FLAT,
        lambda p, e: amp.sum(
            amp.scan(lambda h, x: (dense(p, h + x), (h, x[0])), jnp.zeros(2), e["x"])[1][0]
        ),
    ),
    "length": (
        FLAT,
        lambda p, e: amp.length(e["x"]) * p["s"] * p["b"],
    ),
    "take": (
        FLAT,
        lambda p, e: amp.cond(
            amp.length(e["x"]) > 0,
            lambda: amp.take(e["x"], -1) @ p["w"],
            lambda: p["b"],
        ),
    ),
    "choice of sequences": (
        FLAT,
        lambda p, e: amp.sum(
            amp.cond(
                amp.length(e["x"]) > 0,
                lambda: amp.map(
                    lambda x: dense(p, x),
                    e["x"],
                ),
                lambda: amp.map(
                    lambda x: x * p["b"],
                    e["x"],
                ),
            )
        ),
    ),
    "while": (
        FLAT,
        lambda p, e: amp.sum(
            amp.map(
                lambda x: amp.while_loop(
                    lambda h: amp.read(jnp.sum(h) < 3),
                    lambda h: h + p["b"] + 0.01,
                    x * p["s"],
                    most=3,
                ),
                e["x"],
            )
        ),
    ),
    "inner sums": (
        NESTED,
        lambda p, e: amp.sum(
            amp.map(
                lambda xs: amp.sum(
                    amp.map(
                        lambda x: dense(p, x),
                        xs,
                    )
                ),
                e["x"],
            )
        ),
    ),
    "inner maxima": (
        NESTED,
        lambda p, e: amp.sum(
            amp.map(
                lambda xs: jnp.tanh(
                    amp.max(
                        amp.map(
                            lambda x: dense(p, x),
                            xs,
                        )
                    )
                ),
                e["x"],
            )
        ),
    ),
    "computed sequences of sequences": (
        NESTED,
        lambda p, e: amp.sum(
            amp.map(
                lambda ys: amp.sum(ys) + p["b"],
                amp.map(
                    lambda xs: amp.map(lambda x: dense(p, x), xs),
                    e["x"],
                ),
            )
        ),
    ),
    "inner scans": (
        NESTED,
        lambda p, e: amp.scan(
            lambda h, xs: (
                h + amp.scan(lambda g, x: (dense(p, g + x), None), h, xs)[0],
                None,
            ),
            p["b"],
            e["x"],
        )[0],
    ),
    "inner choices": (
        NESTED,
        lambda p, e: amp.sum(
            amp.map(
                lambda xs: amp.switch(
                    amp.length(xs),
                    [
                        lambda: p["b"],
                        lambda: amp.take(xs, 0) * p["s"],
                        lambda: amp.sum(xs) * p["s"],
                    ],
                ),
                e["x"],
            )
        ),
    ),
    "three deep": (
        DEEP,
        lambda p, e: amp.sum(
            amp.map(
                lambda ys: amp.sum(amp.map(amp.sum, ys)),
                amp.map(
                    lambda ys: amp.map(
                        lambda xs: amp.map(lambda x: dense(p, x), xs),
                        ys,
                    ),
                    e["x"],
                ),
            )
        ),
    ),
    "lengths three deep": (
        DEEP,
        lambda p, e: amp.sum(
            amp.map(
                lambda ys: amp.sum(
                    amp.map(
                        lambda xs: amp.length(xs) * p["b"],
                        ys,
                    )
                ),
                e["x"],
            )
        ),
    ),
    "recursion": (
        ASKED,
        lambda p, e: amp.sum(
            amp.recurse(
                lambda r, x, ps: x * p["s"] + amp.sum(amp.map(r, ps)),
                np.float64(0),
                e["x"],
                e["ps"],
            )
        ),
    ),
    "recursion with a choice": (
        ASKED,
        lambda p, e: amp.sum(
            amp.recurse(
                lambda r, x, ps: (
                    x * p["s"]
                    + amp.cond(
                        amp.length(ps) > 0,
                        lambda: r(amp.take(ps, 0)),
                        lambda: jnp.float64(1) * p["s"],
                    )
                ),
                np.float64(0),
                e["x"],
                e["ps"],
            )
        ),
    ),
    "trees": (
        TREES,
        lambda p, e: amp.sum(
            amp.map(
                lambda t: amp.fold_tree(
                    lambda n: dense(p, n["x"]),
                    lambda n, k: amp.sum(k) @ p["w"],
                    t,
                )[1],
                e["ts"],
            )
        ),
    ),
    "trees from the root": (
        TREES,
        lambda p, e: amp.sum(
            amp.map(
                lambda t: amp.sum(
                    amp.scan_tree(
                        lambda h, n: dense(p, h + n["x"]),
                        p["b"],
                        t,
                    )
                ),
                e["ts"],
            )
        ),
    ),
    "graphs": (
        GRAPH,
        lambda p, e: amp.sum(
            amp.map(
                lambda a, h: jnp.tanh(a + h),
                amp.propagate(
                    [
                        lambda h: h @ p["w"],
                        lambda h: h * p["b"],
                    ],
                    e["g"],
                    e["x"],
                ),
                e["x"],
            )
        ),
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", MODELS)
def test_all_say_the_same(name):
    (spec, forms), result = MODELS[name]

    def model(p, e):
        return jnp.sum((result(p, e) + p["b"]) ** 2)

    with jax.enable_x64(True):
        for form in forms:
            compiled = Compiled64(model, P, spec, [form])
            compiled.check_gradients()
            assert model(P, form) == pytest.approx(float(compiled.model_loss(P)), rel=1e-12), form


def test_verify_takes_types_from_the_spec():
    (_, forms), result = MODELS["inner sums"]
    single = jax.tree.map(
        lambda x: x.astype(np.float32),
        P,
    )
    compiled = amp.compile(
        lambda p, e: jnp.sum(result(p, e) + p["b"]),
        single,
        {"x": "float32[t,e,2]"},
    )
    assert compiled.verify(forms[:4], progress=False)
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    assert trainer.accumulate(compiled.data(forms[:4]), update=False)["loss_sum"] == pytest.approx(
        float(compiled.loss(single, forms[:4])), rel=1e-6
    )


class Model:
    """A model that is an object."""

    def __init__(self, width):
        self.width = width

    def __call__(self, p, e):
        return self.loss(p, e)

    def loss(self, p, e):
        return jnp.sum(
            amp.sum(
                amp.map(
                    lambda x: jnp.dot(x, p["w"]),
                    e["x"],
                )
            )
            + p["b"]
        )


def _closure(scale):
    return lambda p, e: jnp.sum(
        scale
        * amp.sum(
            amp.map(
                lambda x: jnp.dot(x, p["w"]),
                e["x"],
            )
        )
        + p["b"]
    )


@pytest.mark.parametrize(
    "models",
    [
        [Model(1), Model(2)],
        [Model(1).loss, Model(2).loss],
        [_closure(1), _closure(2)],
        [
            functools.partial(
                lambda scale, p, e: _closure(scale)(p, e),
                1,
            )
        ],
        [lambda *given: _closure(1)(*given)],
    ],
)
def test_functions_of_all_kinds_know_their_own_specs(models):
    """Vectors of another width, and numbers, in models of the same code."""
    for width, model in enumerate(models, 2):
        params = {
            "w": np.ones(width, np.float32),
            "b": np.ones(3, np.float32),
        }
        kept = amp.compile(model, params, {"x": f"float32[t,{width}]"})
        assert model(params, {"x": []}) == 3 == kept.loss(params, [{"x": []}])


def test_an_empty_list_is_one_of_numbers_where_no_spec_is_known():
    def model(p, e):
        return jnp.sum(
            amp.sum(
                amp.map(
                    lambda x: x * p,
                    e,
                )
            )
            + jnp.ones(3)
        )

    assert model(2.0, []) == 3


def test_sums_of_truth_values_and_short_integers_are_counts():
    def model(p, e):
        few = amp.map(
            lambda x: (x * p["s"] > 0).astype(jnp.int8) * 100,
            e["x"],
        )
        above = amp.sum(
            amp.map(
                lambda x: x > 1,
                e["x"],
            )
        )
        return p["s"] * (
            amp.sum(few)
            + above
            + amp.logsumexp(e["n"])
            + amp.max(e["n"])
            + amp.max(few)
            + amp.sum(e["n"])
        )

    params = {"s": np.float64(2)}
    spec = {"x": "float64[t]", "n": "int8[n]"}
    with jax.enable_x64(True):
        for x in ([1.0, 2.0, 3.0], []):
            compiled = Compiled64(
                model,
                params,
                spec,
                [{"x": x, "n": [100, 101]}],
            )
            compiled.check_gradients()
        want = 2 * (300 + 2 + np.log(np.exp([100.0, 101.0]).sum()) + 101 + 100 + 201)
        assert model(
            params,
            {
                "x": np.array([1.0, 2.0, 3.0]),
                "n": np.array([100, 101], np.int8),
            },
        ) == pytest.approx(want)


def test_rows_of_rows_keep_what_is_known_of_their_values():
    known = amp.Ragged.of(
        [
            none(
                0,
                3,
            ).astype(np.float32),
            none(0, 3).astype(np.float32),
        ]
    )
    assert known.values.shape == (0, 3)
    assert known.values.dtype == np.float32
    deep = amp.Ragged.of(
        [
            [],
            [
                none(
                    0,
                    2,
                ),
                none(1, 2),
            ],
        ]
    )
    assert deep.values.values.shape == (1, 2)
    assert deep.sizes.tolist() == [0, 2]
    assert deep.values.sizes.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"Ragged\.of, row 0: expected a list or an array, got 1\."):
        amp.Ragged.of([[1, [2]]])


def test_reductions_of_sequences_of_sequences_are_refused_by_the_function_itself():
    with pytest.raises(
        GraphError, match="expected a sequence of arrays for `sum`, got a sequence of sequences"
    ):
        amp.sum([[1], [2, 3]])


def test_a_message_belongs_to_its_instance_where_the_first_has_none():
    """A sequence in a sequence in a sequence, of which only the second instance has elements, one of each."""

    def model(p, e):
        def each(_):
            v = amp.map(
                lambda _: p["b"] * e["k"],
                e["n"],
            )

            def cell(c, x):
                return (
                    jnp.tanh(c @ p["w"] + x) + 0.5 * c,
                    v,
                )

            ys = amp.scan(
                cell,
                jnp.zeros(2),
                amp.map(lambda _: e["y"], e["n"]),
            )[1]
            return jnp.sum(amp.sum(amp.map(amp.sum, ys)))

        return amp.sum(amp.map(each, e["n"]))

    with jax.enable_x64(True):
        instances = []
        for n in (0, 1, 0, 2):
            instances.append(
                {
                    "n": np.zeros(n, int),
                    "k": 1.0,
                    "y": np.ones(2),
                }
            )
        spec = {"n": "int32[n]", "k": "float64[]", "y": "float64[2]"}
        Compiled64(model, P, spec, instances).check_gradients()


@pytest.mark.parametrize(
    "dtype",
    ["int64", "int32", "uint8", "uint64", "bool", "float64"],
)
def test_the_largest_of_numbers_as_numpy_makes_them(dtype):
    assert (
        int(
            amp.max(
                np.array(
                    [1, 0, 1],
                    dtype,
                )
            )
        )
        == 1
    )
    assert amp.max(np.zeros(0, dtype)) == least(jnp.asarray(np.zeros(0, dtype)).dtype)


def total(p, s):
    return amp.sum(
        amp.map(
            lambda x: p["w"] * x,
            s["x"],
        )
    )


def python_maximum(p, s):
    return total(p, s) / max(s["x"].shape[0], 1)


def python_choice(p, s):
    return total(p, s) if s["x"].shape[0] > 0 else 7.0 * p["w"]


def python_truth(p, s):
    return total(p, s) if s["x"].shape[0] else 7.0 * p["w"]


def maximum_with_numpys_one(p, s):
    return total(p, s) / max(
        s["x"].shape[0],
        np.int64(1),
    )


def numpy_maximum(p, s):
    return total(p, s) / jnp.maximum(s["x"].shape[0], 1)


@pytest.mark.parametrize(
    "model",
    [python_maximum, python_choice, python_truth, maximum_with_numpys_one],
)
@pytest.mark.parametrize("messages", [False, True])
def test_python_is_asked_about_a_length_that_may_be_0(model, messages):
    """JAX answers as if no sequence were empty: so an empty one gives an error, no other number."""
    p = {"w": jnp.float32(2.0)}
    spec = {"x": "float32[t]"}
    full = []
    for n in (1, 3):
        full.append({"x": np.ones(n, np.float32)})
    empty = {"x": np.zeros(0, np.float32)}
    batched = amp.vmap(model, spec)
    want = [float(model(p, s)) for s in full]
    np.testing.assert_allclose(batched(p, full), want, 1e-6)
    with pytest.raises(DataError, match=r"`t` that is not empty.*jnp\.maximum\(n, 1\)"):
        if messages:
            amp.compile(model, p, spec).data([*full, empty])
        else:
            batched(p, [*full, empty])


def test_python_is_asked_whether_a_length_is_1():
    batched = amp.vmap(
        lambda p, s: p["w"] if s["x"].shape[0] == 1 else total(p, s),
        {"x": "float32[t]"},
    )
    with pytest.raises(DataError, match=r"`t` of another length.*with 1, got 1 elements"):
        batched(
            {"w": jnp.float32(2.0)},
            [{"x": np.ones(1, np.float32)}],
        )


def of_two(n, total):
    return {
        "x": np.ones(n, np.float32),
        "y": np.full(total, 2, np.float32),
    }


@pytest.mark.parametrize("messages", [False, True])
def test_python_is_asked_whether_two_lengths_are_equal(messages):
    """For JAX two lengths differ, in all examples: so an example with equal lengths gives an error."""

    def model(p, s):
        x, y = amp.sum(s["x"]), amp.sum(s["y"])
        return p["w"] * (x * y if s["x"].shape[0] == s["y"].shape[0] else x + y)

    p = {"w": jnp.float32(2.0)}
    spec = {"x": "float32[n]", "y": "float32[m]"}
    differ = [of_two(1, 3), of_two(0, 2)]
    equal = of_two(2, 2)
    batched = amp.vmap(model, spec)
    np.testing.assert_allclose(
        batched(p, differ),
        [14, 8],
        1e-6,
    )
    with pytest.raises(DataError, match=r"== 0` to be False.*got 2 along.*amp\.length\(xs\)"):
        if messages:
            amp.compile(model, p, spec).data([*differ, equal])
        else:
            batched(p, [*differ, equal])


def test_two_lengths_as_arrays_are_compared_for_each_example():
    def model(p, s):
        x, y = amp.sum(s["x"]), amp.sum(s["y"])
        is_equal = amp.length(s["x"]) == amp.length(s["y"])
        return p["w"] * jnp.where(is_equal, x * y, x + y)

    batched = amp.vmap(model, {"x": "float32[n]", "y": "float32[m]"})
    found = batched(
        {"w": jnp.float32(2.0)},
        [
            of_two(1, 3),
            of_two(2, 2),
            of_two(0, 2),
        ],
    )
    np.testing.assert_allclose(found, [14, 16, 8], 1e-6)


def test_maximum_of_a_length_is_that_of_each_example():
    p = {"w": jnp.float32(2.0)}
    examples = []
    for n in (0, 1, 3):
        examples.append({"x": np.ones(n, np.float32)})
    found = amp.vmap(numpy_maximum, {"x": "float32[t]"})(p, examples)
    np.testing.assert_allclose(found, [0, 2, 2], 1e-6)
