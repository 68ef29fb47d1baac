"""A batch of ragged examples as one function: values and gradients agree with the function, example by example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.frontend.batches.ragged_results import RaggedRows

SPEC = {"x": "float32[n,2]", "words": "int32[n]", "chars": "int32[n,c]", "k": "int32[]"}
LENGTHS = (3, 0, 5, 1)


def example(seed, n):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, n)
    return {
        "x": rng.normal(size=(n, 2)).astype(np.float32),
        "words": rng.integers(0, 7, n).astype(np.int32),
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


EXAMPLES = [example(seed, n) for seed, n in enumerate(LENGTHS)]
RNG = np.random.default_rng(9)
PARAMS = {
    "embed": RNG.normal(size=(7, 2)).astype(np.float32),
    "w": RNG.normal(size=(2, 2)).astype(np.float32),
}


def of_words(p, s):
    vectors = amp.map(
        lambda w, x: p["embed"][w] + x @ p["w"],
        s["words"],
        s["x"],
    )
    return amp.sum(
        amp.map(
            lambda a, v: jnp.sum(a * v**2),
            amp.softmax(vectors),
            vectors,
        )
    )


def recurrent(p, s):
    def step(h, x):
        h = jnp.tanh(h @ p["w"] + x)
        return h, jnp.sum(h)

    last, ys = amp.scan(
        step,
        jnp.zeros(2),
        s["x"],
    )
    first, _ = amp.scan(
        step,
        last,
        s["x"],
        reverse=True,
    )
    return jnp.sum(first) + amp.mean(ys)


def spelled(p, s):
    def word(w, chars):
        def spell():
            return amp.scan(
                lambda h, c: (
                    jnp.tanh(h @ p["w"] + p["embed"][c]),
                    None,
                ),
                jnp.zeros(2),
                chars,
            )[0]

        return amp.cond(
            w < 3,
            spell,
            lambda: p["embed"][w],
        )

    return amp.sum(
        amp.map(
            lambda v: jnp.sum(v**2),
            amp.map(word, s["words"], s["chars"]),
        )
    )


def chosen_by_example(p, s):
    def last():
        return amp.take(s["x"], -1) @ p["w"]

    def safe():
        return amp.cond(
            amp.length(s["x"]) > 0,
            last,
            lambda: jnp.ones(2),
        )

    branches = [
        safe,
        lambda: amp.fori_loop(
            s["k"],
            lambda i, h: jnp.sin(h @ p["w"] + i),
            jnp.ones(2),
        ),
        lambda: p["w"][0],
    ]
    return jnp.sum(amp.switch(s["k"], branches))


def attention(p, s):
    values = amp.map(
        lambda x: x @ p["w"],
        s["x"],
    )

    def each(q):
        weights = amp.softmax(
            amp.map(
                lambda v: jnp.dot(q, v),
                values,
            )
        )
        return amp.sum(
            amp.map(
                lambda a, v: a * v,
                weights,
                values,
            )
        )

    return amp.sum(
        amp.map(
            lambda q: jnp.sum(jnp.tanh(each(q))),
            values,
        )
    )


def looped(p, s):
    def test(h):
        return amp.read(jnp.sum(h) < 2)

    h = amp.while_loop(
        test,
        lambda h: h * 1.5 + p["w"][0] ** 2,
        jnp.ones(2) * 0.3,
        most=4,
    )
    total = jnp.sum(amp.sum(s["x"]) * h)
    return amp.cond(
        amp.read(total > 0),
        lambda: jnp.log(total),
        lambda: total * p["w"][0, 0],
    )


def two_layers(p, s):
    """Runs a second loop backwards over the states that the steps of a first loop gave."""

    def step(h, x):
        h = jnp.tanh(h @ p["w"] + x)
        return h, h

    start = jnp.zeros(2)
    _, states = amp.scan(step, start, s["x"])
    last, _ = amp.scan(step, start, states, reverse=True)
    return jnp.sum(last)


def chosen_sequences(p, s):
    """Each example's elements are computed in the branch that the example chooses."""
    chosen = amp.cond(
        s["k"] > 0,
        lambda: amp.map(
            lambda x: jnp.tanh(x @ p["w"]),
            s["x"],
        ),
        lambda: amp.map(lambda x: x**2, s["x"]),
    )
    return amp.sum(
        amp.map(
            lambda v, x: jnp.dot(v, x + 1),
            chosen,
            s["x"],
        )
    )


FUNCTIONS = [
    of_words,
    recurrent,
    spelled,
    chosen_by_example,
    chosen_sequences,
    attention,
    looped,
    two_layers,
]


def compare(one, other, tolerance=2e-5):
    for a, b in zip(
        jax.tree.leaves(one),
        jax.tree.leaves(other),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.first_case
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_and_gradients_are_those_of_the_function(function):
    batched = amp.vmap(function, SPEC)
    compare(
        batched(PARAMS, EXAMPLES),
        jnp.stack([function(PARAMS, each) for each in EXAMPLES]),
    )
    batch = batched.pack(EXAMPLES)
    grads = jax.jit(jax.grad(lambda p: batched(p, batch).mean()))(PARAMS)
    want = jax.grad(lambda p: sum(function(p, each) for each in EXAMPLES) / len(EXAMPLES))(PARAMS)
    compare(grads, want)


def test_a_batch_is_an_argument_of_jit_and_shapes_decide_what_is_compiled():
    batched = amp.vmap(of_words, SPEC, params=PARAMS)
    traces = []

    @jax.jit
    def step(p, batch):
        traces.append(1)
        return jnp.sum(batched(p, batch) * batch.weights)

    first = batched.pack(EXAMPLES)
    second = batched.pack(EXAMPLES[::-1])
    compare(step(PARAMS, first), step(PARAMS, second))
    assert len(traces) == 1


@pytest.mark.nightly
def test_a_list_of_examples_is_packed_where_the_call_is_traced():
    batched = amp.vmap(recurrent, SPEC)
    grads = jax.jit(jax.grad(lambda p: batched(p, EXAMPLES).sum()))(PARAMS)
    compare(
        grads,
        jax.grad(lambda p: sum(recurrent(p, each) for each in EXAMPLES))(PARAMS),
    )


def test_parameters_of_another_dtype_take_the_same_batch():
    batched = amp.vmap(of_words, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES)
    half = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.bfloat16),
        PARAMS,
    )
    compare(batched(half, batch), batched(PARAMS, batch), 0.05)  # bfloat16 has 8 bits
    again = amp.vmap(of_words, SPEC, params=half)
    assert (
        again.pack(EXAMPLES).layout
        == batch.layout
        != amp.vmap(recurrent, SPEC, params=PARAMS).pack(EXAMPLES).layout
    )


def test_copies_fill_a_batch_up_to_its_size():
    batched = amp.vmap(of_words, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES[:3], size=5)
    assert (batch.size, batch.n_examples) == (5, 3)
    assert batch.weights.tolist() == [1, 1, 1, 0, 0]
    compare(
        batched(PARAMS, batch)[:3],
        batched(PARAMS, EXAMPLES[:3]),
    )
    assert repr(batch).startswith("Batch(3 of 5 examples, ")


def test_nothing_comes_from_rows_that_are_not_there():
    """Derivatives that are finite only at the examples' own values stay finite in a padded batch."""

    def inverse(p, s):
        def root(x):
            return jnp.sum(jnp.sqrt(x * p["w"][0, 0] ** 2))

        by_example = amp.cond(
            amp.length(s["x"]) > 0,
            lambda: amp.sum(amp.map(root, s["x"])),
            lambda: 1.0,
        )
        carried, _ = amp.scan(
            lambda h, x: (
                h / jnp.sqrt(h - 0.9 + 0 * x[0]),
                None,
            ),
            1.0,
            s["x"],
        )

        def guarded(x):
            return amp.cond(
                amp.read(x[0] > 1),
                lambda: jnp.log(x[0] - 1),
                lambda: p["w"][1, 1],
            )

        return by_example + carried + amp.sum(amp.map(guarded, s["x"]))

    examples = []
    for each in EXAMPLES:
        examples.append(
            {
                **each,
                "x": np.abs(each["x"]) + 0.1,
            }
        )
    batched = amp.vmap(inverse, SPEC, params=PARAMS)
    batch = batched.pack(examples, size=6)
    grads = jax.grad(lambda p: jnp.sum(batched(p, batch) * batch.weights))(PARAMS)
    compare(
        grads,
        jax.grad(lambda p: sum(inverse(p, each) for each in examples))(PARAMS),
        1e-4,
    )


def test_a_compiled_model_has_it():
    compiled = amp.compile(of_words, PARAMS, SPEC)
    compare(
        compiled.batched(PARAMS, EXAMPLES).sum(),
        compiled.loss(PARAMS, EXAMPLES),
    )
    assert compiled.batched is compiled.batched and repr(compiled.batched) == "vmap(of_words)"


@pytest.mark.nightly
def test_an_ensemble_is_a_vmap_over_parameters():
    batched = amp.vmap(recurrent, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES)
    several = jax.tree.map(
        lambda x: jnp.stack([x, 0.5 * x]),
        PARAMS,
    )
    both = jax.vmap(batched, in_axes=(0, None))(
        several,
        batch,
    )
    compare(
        both[1],
        batched(
            jax.tree.map(lambda x: 0.5 * x, PARAMS),
            batch,
        ),
    )


def test_an_element_at_a_computed_place_is_taken():
    def model(p, s):
        place = amp.sum(
            amp.map(
                lambda x: (x @ p["w"])[0] > 0,
                s["x"],
            )
        )
        return amp.cond(
            amp.length(s["x"]) > 0,
            lambda: jnp.sum(amp.take(s["x"], place - 1) @ p["w"]),
            lambda: 0.0,
        )

    def want(p, s):
        place = int(np.sum(np.asarray(s["x"] @ PARAMS["w"])[:, 0] > 0))
        if len(s["x"]):
            return jnp.sum(s["x"][place - 1] @ p["w"])
        return 0.0

    batched = amp.vmap(model, SPEC, params=PARAMS)
    compare(
        batched(PARAMS, EXAMPLES),
        jnp.stack([jnp.asarray(want(PARAMS, each)) for each in EXAMPLES]),
    )
    grads = jax.grad(
        lambda p: batched(
            p,
            batched.pack(EXAMPLES),
        ).sum()
    )(PARAMS)
    compare(
        grads,
        jax.grad(lambda p: sum(want(p, each) for each in EXAMPLES))(PARAMS),
    )


@pytest.mark.nightly
def test_whole_sequences_are_turned_around_and_summed_up():
    def model(p, s):
        vectors = amp.map(
            lambda x: x @ p["w"],
            s["x"],
        )
        scores = amp.map(lambda v: v[0], vectors)
        known = amp.cond(
            amp.length(scores) > 0,
            lambda: amp.take(vectors, jnp.argmax(scores)),
            lambda: jnp.zeros(2),
        )
        least = amp.cond(
            amp.length(scores) > 0,
            lambda: jnp.argmin(s["words"]),
            lambda: 0,
        )
        back = amp.sum(
            amp.map(
                lambda a, b: jnp.dot(a, b) * b[1],
                vectors,
                jnp.flip(vectors, 0),
            )
        )
        return (
            back
            + jnp.sum(known)
            + least
            + jnp.sum(jnp.sum(vectors, 0) ** 2)
            + jnp.sum(jnp.flip(vectors, 0), 0)[0]
        )

    batched = amp.vmap(model, SPEC, params=PARAMS)
    compare(
        batched(PARAMS, EXAMPLES),
        jnp.stack([model(PARAMS, each) for each in EXAMPLES]),
        1e-4,
    )
    grads = jax.grad(
        lambda p: batched(
            p,
            batched.pack(EXAMPLES),
        ).sum()
    )(PARAMS)
    compare(
        grads,
        jax.grad(lambda p: sum(model_of_arrays(p, each) for each in EXAMPLES))(PARAMS),
        1e-4,
    )


def model_of_arrays(p, s):
    v = s["x"] @ p["w"]
    if not len(v):
        return 0.0
    back = jnp.sum(jnp.sum(v * v[::-1], 1) * v[::-1, 1])
    return back + jnp.sum(v[jnp.argmax(v[:, 0])]) + jnp.sum(jnp.sum(v, 0) ** 2) + jnp.sum(v, 0)[0]


def test_mistakes_have_errors():
    batched = amp.vmap(of_words, SPEC)
    with pytest.raises(
        GraphError, match=r"pack: expected types of the parameters, got none so far"
    ):
        batched.pack(EXAMPLES)
    batched(PARAMS, EXAMPLES)
    with pytest.raises(DataError, match="at least one example, got none"):
        batched.pack([])
    with pytest.raises(DataError, match="at least 4, the number of examples, got 2"):
        batched.pack(EXAMPLES, size=2)
    for size in ("4", True, 0):
        with pytest.raises(DataError, match=f"size: expected a whole number from 1, got {size!r}"):
            batched.pack(EXAMPLES, size=size)
    for examples in (3, "abc", None, EXAMPLES[0]):
        with pytest.raises(
            DataError, match=f"a list of examples, got one {type(examples).__name__}"
        ):
            batched.pack(examples)
    with pytest.raises(GraphError, match="a function of parameters and one example, got 3"):
        amp.vmap(3, SPEC)
    other = amp.vmap(recurrent, SPEC, params=PARAMS)
    with pytest.raises(DataError, match="what its own `pack` made, got another function's batch"):
        batched(PARAMS, other.pack(EXAMPLES))
    with pytest.raises(DataError, match=r"instance 1: expected `\['chars'\]`, got \['x'\]"):
        batched.pack(
            [
                EXAMPLES[0],
                {"x": np.zeros((2, 2))},
            ]
        )
    with pytest.raises(DataError, match="a number from -7 to 6, of one of 7 entries"):
        batched.pack(
            [
                {
                    **EXAMPLES[0],
                    "words": np.array([0, 7, 1]),
                }
            ]
        )


def test_sequences_come_back_as_values_and_lengths():
    def lengthy(p, s):
        letters = amp.map(
            lambda chars: amp.map(
                lambda c: p["embed"][c],
                chars,
            ),
            s["chars"],
        )
        return {
            "rows": amp.map(
                lambda x: x @ p["w"],
                s["x"],
            ),
            "letters": letters,
            "own": s["words"],
        }

    batched = amp.vmap(lengthy, SPEC, params=PARAMS)
    found = batched(PARAMS, batched.pack(EXAMPLES, size=6))
    assert isinstance(found["rows"], RaggedRows)
    assert found["rows"].lengths[0].tolist() == [
        *LENGTHS,
        0,
        0,
    ]
    for rows, letters, own, each in zip(
        *(found[k].tolist()[:4] for k in ("rows", "letters", "own")),
        EXAMPLES,
        strict=True,
    ):
        want = lengthy(PARAMS, each)
        compare(
            rows,
            np.asarray(want["rows"]).reshape(-1, 2),
        )
        assert own.tolist() == each["words"].tolist()
        assert [len(part) for part in letters] == np.asarray(each["chars"].sizes).tolist()
        compare(
            np.concatenate(
                [
                    np.zeros((0, 2)),
                    *letters,
                ]
            ),
            PARAMS["embed"][np.asarray(each["chars"].values)],
        )


def test_reports_are_metrics_and_outputs():
    def model(p, s):
        def word(w, x):
            y = jnp.sum(p["embed"][w] * x)
            amp.metric("large", w > 3, count=w > 1)
            amp.cond(
                amp.read(y > 0),
                lambda: amp.metric("positive", y),
                lambda: None,
            )
            return y

        def step(h, x):
            h = jnp.tanh(h + x)
            amp.output("states", h)
            amp.cond(
                h[0] > 0,
                lambda: amp.output("above", h[0]),
                lambda: None,
            )
            return h, None

        scores = amp.map(word, s["words"], s["x"])
        amp.output("scores", scores)
        amp.output(
            "last",
            amp.scan(step, jnp.zeros(2), s["x"])[0],
        )
        amp.while_loop(
            lambda h: amp.read(h < 4),
            lambda h: (amp.metric("rounds", h), h + 1)[1],
            s["k"],
            most=5,
        )
        return amp.sum(scores)

    batched = amp.vmap(model, SPEC, params=PARAMS)
    found = batched.reports(PARAMS, batched.pack(EXAMPLES, size=5))
    words = np.concatenate([each["words"] for each in EXAMPLES])
    scores = []
    for each in EXAMPLES:
        scores.append(
            np.sum(
                PARAMS["embed"][each["words"]] * each["x"],
                axis=1,
            )
        )
    every = np.concatenate(scores)
    averages = found.averages()
    assert averages["large"] == pytest.approx((words > 3).sum() / (words > 1).sum())
    assert averages["positive"] == pytest.approx(every[every > 0].mean(), rel=1e-5)
    rounds = []
    for each in EXAMPLES:
        for number in range(int(each["k"]), 4):
            rounds.append(number)
    assert averages["rounds"] == pytest.approx(np.mean(rounds))
    compare(found.outputs["scores"].tolist()[:4], scores)
    for states, above, last, each in zip(
        *(found.outputs[k].tolist()[:4] for k in ("states", "above", "last")), EXAMPLES, strict=True
    ):
        h = np.zeros(2)
        want = []
        for x in each["x"]:
            h = np.tanh(h + x)
            want.append(h)
        compare(states, np.array(want).reshape(-1, 2))
        compare(
            above,
            np.array([h[0] for h in want if h[0] > 0]),
        )
        compare(last, np.array([h]))
    compare(
        found.result[:4],
        np.array([each.sum() for each in scores]),
    )


def test_random_numbers_come_from_the_examples_key_or_the_batchs():
    spec = {**SPEC, "key": "key<fry>[]"}
    examples = []
    for i, each in enumerate(EXAMPLES):
        examples.append({**each, "key": jax.random.key(i)})

    def own(p, s):
        return (
            jax.random.normal(
                jax.random.fold_in(
                    s["key"],
                    s["k"],
                )
            )
            * p["w"][0, 0]
        )

    compare(
        amp.vmap(own, spec)(PARAMS, examples),
        jnp.stack([own(PARAMS, each) for each in examples]),
    )

    def dropped(p, s):
        return amp.map(
            lambda x: amp.dropout(jnp.ones(200), 0.25),
            s["x"],
        )

    batched = amp.vmap(dropped, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES)
    assert (np.concatenate(batched(PARAMS, batch).tolist()) == 1).all()
    first, second = (
        np.concatenate(batched(PARAMS, batch, key=jax.random.key(i)).tolist()) for i in (0, 1)
    )
    assert len({tuple(row) for row in [*first, *second]}) == 18  # no two rows alike
    assert abs((first > 0).mean() - 0.75) < 0.05
    assert set(np.unique(first)) == {
        0,
        np.float32(1 / 0.75),
    }


def test_labels_may_be_left_out_where_only_outputs_are_wanted():
    def model(p, s):
        score = amp.sum(
            amp.map(
                lambda x: jnp.sum(x @ p["w"]),
                s["x"],
            )
        )
        amp.output("score", score)
        amp.metric(
            "right",
            (score > 0) == (s["k"] > 0),
        )
        return (score - s["k"]) ** 2

    batched = amp.vmap(
        model,
        {"x": "float32[n,2]", "k": "int32[]"},
        params=PARAMS,
    )
    batch = batched.pack(
        [{"x": each["x"]} for each in EXAMPLES],
        labels=False,
    )
    found = batched.reports(PARAMS, batch)
    want = batched.reports(PARAMS, EXAMPLES)
    compare(
        found.outputs["score"].tolist(),
        want.outputs["score"].tolist(),
    )
    assert found.result is None
    assert found.metrics == {}
    assert set(want.averages()) == {"right"}
    with pytest.raises(DataError, match=r"with the leaves behind the result: `\['k'\]`, got none"):
        batched(PARAMS, batch)
    with pytest.raises(DataError, match=r"with the leaves behind the outputs: `\['x'\]`"):
        batched.reports(
            PARAMS,
            batched.pack([{"k": 1}], labels=False),
        )


TREES = {
    "tree": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]"}),
    "nodes": "float32[a,2]",
    "edges": amp.Edges("a", kinds=2),
    "order": "int32[m,2]",
}


def structured(seed, n_inner, n_nodes, n_steps):
    rng = np.random.default_rng(seed)
    parent = [-1]
    side = [0]
    leaves = [0]
    for _ in range(n_inner):
        at = leaves.pop(int(rng.integers(len(leaves))))
        for number in range(int(rng.integers(1, 4))):
            leaves.append(len(parent))
            parent.append(at)
            side.append(number)
    n_edges = 2 * n_nodes
    ends = []
    for _ in range(2):
        ends.append(
            rng.integers(
                0,
                max(n_nodes, 1),
                n_edges,
            ).astype(np.int32)
        )
    earlier = []
    for i in range(n_steps):
        earlier.append([int(rng.integers(-1, i)) if i else -1 for _ in range(2)])
    return {
        "tree": amp.Tree(
            np.array(parent, np.int32),
            np.array(side, np.int32),
            {
                "word": rng.integers(
                    0,
                    7,
                    len(parent),
                ).astype(np.int32)
            },
        ),
        "nodes": rng.normal(size=(n_nodes, 2)).astype(np.float32),
        "edges": amp.Edges(
            *ends,
            rng.integers(0, 2, n_edges).astype(np.int32),
        ),
        "order": np.array(earlier, np.int32).reshape(n_steps, 2),
    }


STRUCTURED = [
    structured(0, 3, 4, 5),
    structured(1, 0, 0, 0),
    structured(2, 5, 1, 2),
    structured(3, 1, 3, 1),
]


def of_trees(p, s):
    leaf = lambda n: p["embed"][n["word"]]

    def branch(n, kids):
        return jnp.tanh(amp.sum(kids) @ p["w"] + p["embed"][n["word"]])

    states, root = amp.fold_tree(leaf, branch, s["tree"])
    down = amp.scan_tree(
        lambda h, n: jnp.sin(h @ p["w"] + p["embed"][n["word"]]),
        root,
        s["tree"],
    )
    return amp.sum(
        amp.map(
            lambda a, b: jnp.dot(a, b),
            states,
            down,
        )
    )


def of_graphs(p, s):
    sends = [
        lambda h: h @ p["w"],
        lambda h: jnp.tanh(h),
    ]

    def step(_, h):
        return amp.map(
            lambda m, h: jnp.tanh(m + h),
            amp.propagate(sends, s["edges"], h),
            h,
        )

    return amp.sum(
        amp.map(
            lambda h: jnp.sum(h**2),
            step(1, step(0, s["nodes"])),
        )
    )


def of_recursions(p, s):
    def each(recur, ab):
        return jnp.tanh(recur(ab[0]) @ p["w"] + recur(ab[1]) + p["embed"][0])

    return amp.sum(
        amp.map(
            jnp.sum,
            amp.recurse(each, p["embed"][1], s["order"]),
        )
    )


@pytest.mark.first_case
@pytest.mark.parametrize("function", [of_trees, of_graphs, of_recursions])
def test_trees_graphs_and_recursions(function):
    batched = amp.vmap(function, TREES, params=PARAMS)
    compare(
        batched(PARAMS, STRUCTURED),
        jnp.stack([function(PARAMS, each) for each in STRUCTURED]),
    )
    batch = batched.pack(STRUCTURED, size=6)
    grads = jax.jit(jax.grad(lambda p: jnp.sum(batched(p, batch) * batch.weights)))(PARAMS)
    compare(
        grads,
        jax.grad(lambda p: sum(function(p, each) for each in STRUCTURED))(PARAMS),
    )


def test_a_recursion_may_ask_where_a_value_chooses():
    def model(p, s):
        def each(recur, ab):
            score = recur(ab[0])
            return amp.cond(
                amp.read(score[0] > 0),
                lambda: jnp.tanh(recur(ab[1]) @ p["w"]),
                lambda: score * 2 + 0.5,
            )

        return amp.sum(
            amp.map(
                jnp.sum,
                amp.recurse(each, p["embed"][1], s["order"]),
            )
        )

    batched = amp.vmap(model, TREES, params=PARAMS)
    compare(
        batched(PARAMS, STRUCTURED),
        jnp.stack([model(PARAMS, each) for each in STRUCTURED]),
    )


def test_examples_that_are_no_trees_or_graphs_are_named():
    batched = amp.vmap(of_trees, TREES, params=PARAMS)
    wrong = {
        **STRUCTURED[0],
        "tree": amp.Tree(
            np.array([0, 0]),
            np.array([0, 0]),
            {"word": np.array([0, 0])},
        ),
    }
    with pytest.raises(
        DataError, match="instance 1: expected a node whose parent is -1, the root, got none"
    ):
        batched.pack([STRUCTURED[0], wrong])
    batched = amp.vmap(of_graphs, TREES, params=PARAMS)
    wrong = {
        **STRUCTURED[0],
        "edges": amp.Edges(
            [0, 9],
            [1, 1],
            [0, 0],
        ),
    }
    with pytest.raises(
        DataError, match=r"instance 1, edge 1: expected a sender in \[0, 4\), got 9"
    ):
        batched.pack([STRUCTURED[0], wrong])
    batched = amp.vmap(of_recursions, TREES, params=PARAMS)
    with pytest.raises(DataError, match="results that are not made of themselves"):
        batched.pack(
            [
                {
                    **STRUCTURED[0],
                    "order": np.array([[1, 1], [0, 0]]),
                }
            ]
        )
