"""Data for `predict` alone: labels may be missing, if no output depends on them."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import DataError, SettingsError

PARAMS = {
    "embed": np.linspace(-1, 1, 12, dtype=np.float32).reshape(
        4,
        3,
    ),
}
SPEC = {"words": "int32[t]", "tags": "int32[t]", "next": "int32[u]", "label": "int32[]"}
BARE = [
    {"words": [1, 2]},
    {"words": []},
    {"words": [3]},
]
XENT = optax.softmax_cross_entropy_with_integer_labels


def tagger(p, s):
    """Its outputs read words; a tag of each word and a label of the whole are read by losses and a metric."""
    logits = amp.map(
        lambda w: p["embed"][w],
        s["words"],
    )
    total = amp.sum(logits)
    amp.output("total", total)
    amp.metric("right", total.argmax() == s["label"])
    return XENT(total, s["label"]) + amp.sum(
        amp.map(
            XENT,
            logits,
            s["tags"],
        )
    )


@pytest.fixture(scope="module")
def compiled():
    return amp.compile(
        tagger,
        PARAMS,
        {name: SPEC[name] for name in ("words", "tags", "label")},
    )


@pytest.fixture(scope="module")
def trainer(compiled):
    return amp.Trainer(compiled.graph, compile_ahead=False)


@pytest.mark.parametrize("stacked", [False, True])
def test_outputs_are_those_of_data_with_labels(compiled, trainer, stacked):
    whole = []
    for s in BARE:
        whole.append(
            {
                **s,
                "tags": np.zeros(len(s["words"]), int),
                "label": 2,
            }
        )
    if stacked:
        bare = amp.Stacked({"words": amp.Ragged.of([s["words"] for s in BARE])})
    else:
        bare = BARE
    got = trainer.predict(compiled.data(bare, labels=False))["total"].payload
    np.testing.assert_array_equal(
        got,
        trainer.predict(compiled.data(whole))["total"].payload,
    )


def test_such_data_are_for_predict_alone(compiled, trainer):
    data = compiled.data(BARE, labels=False)
    for use in (
        trainer.evaluate,
        trainer.accumulate,
        trainer.fit,
        lambda data: amp.verify(compiled.graph, data),
    ):
        with pytest.raises(
            SettingsError,
            match=r"expected all that losses need, got data without `\['label'\]`, `\['tags'\]`\. Such data",
        ):
            use(data)


def test_a_label_that_some_have_is_missing_in_the_others(compiled):
    with pytest.raises(
        DataError,
        match=r"instance 1: expected `\['label'\]`, got \['words'\]\. Give every instance",
    ):
        compiled.data(
            [
                {"words": [1], "label": 1},
                {"words": [2]},
            ],
            labels=False,
        )
    with pytest.raises(
        DataError, match=r"with `labels=False`, what only losses read may be missing\."
    ):
        compiled.data(BARE)


def payload(p, s):
    total = amp.sum(
        amp.map(
            lambda w: p["embed"][w],
            s["words"],
        )
    )
    amp.output("total", total * s["label"])
    return jnp.sum(total)


def choice(p, s):
    total = amp.sum(
        amp.map(
            lambda w: p["embed"][w],
            s["words"],
        )
    )
    amp.output(
        "total",
        amp.cond(
            s["label"] > 0,
            lambda: total,
            lambda: 2 * total,
        ),
    )
    return jnp.sum(total)


def length(p, s):
    total = amp.sum(
        amp.map(
            lambda w: p["embed"][w],
            s["words"],
        )
    )
    amp.output(
        "total",
        amp.fori_loop(
            amp.length(s["next"]),
            lambda i, h: h * 2,
            total,
        ),
    )
    return jnp.sum(total)


def taken(p, s):
    amp.output(
        "total",
        amp.take(
            amp.map(
                lambda w: p["embed"][w],
                s["words"],
            ),
            s["label"],
        ),
    )
    return 0.0


@pytest.mark.parametrize(
    ("model", "leaf"),
    [
        (payload, "label"),
        (choice, "label"),
        (length, "next"),
        (taken, "label"),
    ],
)
def test_what_an_output_depends_on_may_not_be_missing(model, leaf):
    compiled = amp.compile(
        model,
        PARAMS,
        {name: SPEC[name] for name in ("words", leaf)},
    )
    with pytest.raises(DataError) as caught:
        compiled.data(
            [{"words": [1, 2]}, {"words": []}],
            labels=False,
        )
    told = str(caught.value)
    assert told.startswith(
        f"data, labels=False: expected instances with what outputs depend on: `['{leaf}']`, got none, and test_missing_labels.py:"
    )
    assert "Give each instance this leaf." in told


def hidden(p, s):
    return amp.map(
        lambda w: jnp.tanh(p["embed"][w]),
        s["words"],
    )


def told(p, s):
    """Tells what is put out: of each word, and of the whole."""
    h = hidden(p, s)
    total = amp.sum(h)
    amp.output("each", h)
    amp.output("total", total)
    return h, total


def beside_each_label(p, s):
    h, total = told(p, s)

    def near(y):
        return jnp.sum(
            amp.sum(
                amp.map(
                    lambda x: x * y,
                    h,
                )
            )
            * total
        )

    return amp.sum(amp.map(near, s["next"]))


def in_a_scan_of_labels(p, s):
    _, total = told(p, s)
    last, _ = amp.scan(
        lambda c, y: (jnp.tanh(c * y), None),
        total,
        s["next"],
    )
    return jnp.sum(last)


def in_rounds_that_a_label_counts(p, s):
    _, total = told(p, s)
    return jnp.sum(
        amp.fori_loop(
            s["label"],
            lambda i, h: h * 2,
            total,
        )
    )


def where_a_label_chooses(p, s):
    h, total = told(p, s)

    def one(x, tag):
        return amp.cond(
            tag > 0,
            lambda: jnp.sum(x),
            lambda: jnp.sum(x * total),
        )

    return amp.sum(
        amp.map(
            one,
            h,
            s["tags"],
        )
    ) + amp.cond(s["label"] > 1, lambda: total[0], lambda: total[1])


def read_by_a_label(p, s):
    h, total = told(p, s)
    read = amp.map(
        lambda j: jnp.sum(amp.take(h, j) * total),
        s["next"],
    )
    return amp.sum(read) + amp.cond(
        amp.length(h) > s["label"],
        lambda: amp.take(h, s["label"])[0],
        lambda: 0.0,
    )


def in_a_recursion_over_labels(p, s):
    h, total = told(p, s)

    def each(recur, x, j):
        return jnp.tanh(x + recur(j - 1) * total)

    return jnp.sum(
        amp.sum(
            amp.recurse(
                each,
                total,
                h,
                s["tags"],
            )
        )
    )


def over_a_tree_of_labels(p, s):
    _, total = told(p, s)
    leaf = lambda n: total * n
    _, root = amp.fold_tree(
        leaf,
        lambda n, kids: jnp.tanh(amp.sum(kids) * total),
        s["tree"],
    )
    return jnp.sum(root)


def over_edges_that_are_labels(p, s):
    _, total = told(p, s)
    x = amp.map(lambda x: x * total, s["nodes"])
    return jnp.sum(
        amp.sum(
            amp.propagate(
                [lambda x: jnp.tanh(x)],
                s["edges"],
                x,
            )
        )
    )


def chosen_by_labels_in_a_loop_of_words(p, s):
    """The loop tells its carry what is chosen in the next round; the choice feeds a loss alone."""

    def step(h, w, tag):
        h = jnp.tanh(h + p["embed"][w])
        amp.output("each", h)
        return h, amp.cond(
            tag > 0,
            lambda: jnp.sum(h),
            lambda: jnp.sum(h**2),
        )

    last, losses = amp.scan(
        lambda h, x: step(h, *x),
        jnp.ones(3),
        (s["words"], s["tags"]),
    )
    amp.output("total", last)
    return amp.sum(losses)


LABELS = {
    "tags": "int32[t]",
    "next": "int32[u]",
    "label": "int32[]",
    "tree": amp.Tree("int32[v]", "int32[v]", "int32[v]"),
    "nodes": "float32[g,3]",
    "edges": amp.Edges("g", kinds=1),
}


def with_labels(s, seed):
    rng = np.random.default_rng(seed)
    n = len(s["words"])
    return {
        **s,
        "tags": np.arange(n),
        "next": rng.integers(
            0,
            max(n, 1),
            2 if n else 0,
        ),
        "label": rng.integers(0, 3),
        "tree": amp.Tree(
            [-1, 0, 0],
            [0, 0, 1],
            [1, 2, 3],
        ),
        "nodes": rng.normal(size=(2, 3)).astype(np.float32),
        "edges": amp.Edges(
            [0, 1],
            [1, 0],
            [0, 0],
        ),
    }


@pytest.mark.first_case
@pytest.mark.parametrize(
    "model",
    [
        beside_each_label,
        in_a_scan_of_labels,
        in_rounds_that_a_label_counts,
        where_a_label_chooses,
        read_by_a_label,
        in_a_recursion_over_labels,
        over_a_tree_of_labels,
        over_edges_that_are_labels,
        chosen_by_labels_in_a_loop_of_words,
    ],
)
def test_labels_may_be_missing_where_what_is_put_out_meets_them_later(model):
    compiled = amp.compile(model, PARAMS, {"words": "int32[t]", **LABELS})
    trainer = amp.Trainer(compiled.graph, compile_ahead=False)
    whole = compiled.data([with_labels(s, i) for i, s in enumerate(BARE)])
    assert np.isfinite(trainer.evaluate(whole)["loss"])
    got = trainer.predict(compiled.data(BARE, labels=False))
    want = trainer.predict(whole)
    assert [*got] == [*want] == ["each", "total"]
    for name, one in got.items():
        np.testing.assert_array_equal(one.payload, want[name].payload)
        np.testing.assert_array_equal(one.instance, want[name].instance)


def test_prediction_runs_nothing_that_only_losses_need():
    """A loop over fifty labels, which are there."""
    model = amp.compile(in_a_scan_of_labels, PARAMS, {"words": "int32[t]", "next": "int32[u]"})
    trainer = amp.Trainer(model.graph, compile_ahead=False)
    trainer.predict(
        model.data(
            [
                {
                    "words": [1, 2, 3],
                    "next": [1] * 50,
                }
            ]
        )
    )
    assert trainer.inference_statistics.messages < 20


def chosen_on_the_way(p, s):
    """The carry itself follows from the labels."""

    def step(h, x):
        return (
            amp.cond(
                x[1] > 0,
                lambda: h + p["embed"][x[0]],
                lambda: h,
            ),
            None,
        )

    amp.output(
        "total",
        amp.scan(step, jnp.ones(3), (s["words"], s["tags"]))[0],
    )
    return 0.0


def read_on_the_way(p, s):
    h = hidden(p, s)
    amp.output(
        "total",
        amp.sum(
            amp.map(
                lambda tag: amp.take(h, tag),
                s["tags"],
            )
        ),
    )
    return 0.0


@pytest.mark.parametrize("model", [chosen_on_the_way, read_on_the_way])
def test_labels_that_decide_what_is_put_out_may_not_be_missing(model):
    compiled = amp.compile(model, PARAMS, {"words": "int32[t]", "tags": "int32[t]"})
    with pytest.raises(
        DataError, match=r"expected instances with what outputs depend on: `\['tags'\]`, got none"
    ):
        compiled.data(BARE, labels=False)
