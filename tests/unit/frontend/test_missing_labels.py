"""Data for `predict` alone: labels may be missing, if no output depends on them."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import DataError, SettingsError

PARAMS = {"embed": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)}
SPEC = {"words": "int32[t]", "tags": "int32[t]", "next": "int32[u]", "label": "int32[]"}
BARE = [{"words": [1, 2]}, {"words": []}, {"words": [3]}]
XENT = optax.softmax_cross_entropy_with_integer_labels


def tagger(p, s):
    """Its outputs read words; a tag of each word and a label of the whole are read by losses and a metric."""
    logits = amp.map(lambda w: p["embed"][w], s["words"])
    total = amp.sum(logits)
    amp.output("total", total)
    amp.metric("right", total.argmax() == s["label"])
    return XENT(total, s["label"]) + amp.sum(amp.map(XENT, logits, s["tags"]))


@pytest.fixture(scope="module")
def compiled():
    return amp.compile(tagger, PARAMS, {name: SPEC[name] for name in ("words", "tags", "label")})


@pytest.fixture(scope="module")
def trainer(compiled):
    return amp.Trainer(compiled.graph, compile_ahead=False)


@pytest.mark.parametrize("stacked", [False, True])
def test_outputs_are_those_of_data_with_labels(compiled, trainer, stacked):
    whole = [{**s, "tags": np.zeros(len(s["words"]), int), "label": 2} for s in BARE]
    bare = amp.Stacked({"words": amp.Ragged.of([s["words"] for s in BARE])}) if stacked else BARE
    got = trainer.predict(compiled.data(bare, labels=False))["total"].payload
    np.testing.assert_array_equal(got, trainer.predict(compiled.data(whole))["total"].payload)


def test_such_data_are_for_predict_alone(compiled, trainer):
    data = compiled.data(BARE, labels=False)
    for use in (trainer.evaluate, trainer.accumulate, trainer.fit, lambda data: amp.verify(compiled.graph, data)):
        with pytest.raises(
            SettingsError,
            match=r"expected all that losses need, got data without `\['label'\]`, `\['tags'\]`\. Such data",
        ):
            use(data)


def test_a_label_that_some_have_is_missing_in_the_others(compiled):
    with pytest.raises(DataError, match=r"instance 1: expected `\['label'\]`, got \['words'\]\. Give every instance"):
        compiled.data([{"words": [1], "label": 1}, {"words": [2]}], labels=False)
    with pytest.raises(DataError, match=r"with `labels=False`, what only losses read may be missing\."):
        compiled.data(BARE)


def payload(p, s):
    total = amp.sum(amp.map(lambda w: p["embed"][w], s["words"]))
    amp.output("total", total * s["label"])
    return jnp.sum(total)


def choice(p, s):
    total = amp.sum(amp.map(lambda w: p["embed"][w], s["words"]))
    amp.output("total", amp.cond(s["label"] > 0, lambda: total, lambda: 2 * total))
    return jnp.sum(total)


def length(p, s):
    total = amp.sum(amp.map(lambda w: p["embed"][w], s["words"]))
    amp.output("total", amp.fori_loop(amp.length(s["next"]), lambda i, h: h * 2, total))
    return jnp.sum(total)


def taken(p, s):
    amp.output("total", amp.take(amp.map(lambda w: p["embed"][w], s["words"]), s["label"]))
    return 0.0


@pytest.mark.parametrize(("model", "leaf"), [(payload, "label"), (choice, "label"), (length, "next"), (taken, "label")])
def test_what_an_output_depends_on_may_not_be_missing(model, leaf):
    compiled = amp.compile(model, PARAMS, {name: SPEC[name] for name in ("words", leaf)})
    with pytest.raises(DataError) as caught:
        compiled.data([{"words": [1, 2]}, {"words": []}], labels=False)
    told = str(caught.value)
    assert told.startswith(
        f"data, labels=False: expected instances with what outputs depend on: `['{leaf}']`, got none, and test_missing_labels.py:"
    )
    assert "Give each instance this leaf." in told
