"""The tagger against an implementation written directly in JAX: scans over the words of one sentence at a time."""

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.frontend.compile_model import Compiled
from experiments.data import wikiner
from experiments.data.wikiner import OUTSIDE, Sentences, plain
from experiments.models.tagger import SPEC, Sizes, init, tagger

pytestmark = [pytest.mark.slow, pytest.mark.users]

NEVER = 1 << 40
SMALL = Sizes(
    char=3,
    char_hidden=4,
    word_hidden=5,
    mlp=6,
    noise=0.0,
)
INTERESTING = {
    "one frequent word": "the|O",
    "one rare word": "Bob|I-PER",
    "a rare word of one character": "x|O the|O",
    "only rare words": "Ann|I-PER lives|O in|O Rome|I-LOC",
    "no rare words": "the|O of|O the|O",
    "150 words": " ".join(
        "ugly|B-ORG" if i % 7 == 0 else ("the|O", "of|I-LOC")[i % 2] for i in range(150)
    ),
}


def sentences(folder: Path, *lines: str) -> Sentences:
    """Sentences of a file in which `the`, `of` and `ugly` are all that is frequent; `ugly` is made rare by its vocabulary."""
    path = folder / "sentences.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    counts = {
        "the": 9,
        "of": 9,
        "ugly": 5,
        "Bob": 1,
        "Ann": 1,
        "x": 1,
        "lives": 1,
    }  # `in` and `Rome` are unseen
    return wikiner.read_sentences(path, wikiner.Vocabulary(counts))


def model(
    data: Sentences,
    sizes: Sizes = SMALL,
    replicas: int = 1,
) -> Compiled:
    params = init(
        jax.random.key(0),
        len(data.vocabulary.words),
        len(data.vocabulary.characters),
        sizes,
    )
    return amp.compile(tagger(sizes.noise, replicas), params, SPEC)


@functools.partial(jax.jit, static_argnums=3)
def lstm(
    x: Any,
    inputs: Any,
    w: Any,
    hidden: int,
) -> Any:
    """All `h [n, H]` of an LSTM over vectors `x [n, features]`."""

    def step(state: Any, x_t: Any) -> Any:
        h, c = state
        z = x_t @ inputs["w"] + h @ w + inputs["b"]
        i, f, o, g = (z[n * hidden : (n + 1) * hidden] for n in range(4))
        c = c / (1 + jnp.exp(-f - 1)) + jnp.tanh(g) / (1 + jnp.exp(-i))
        h = jnp.tanh(c) / (1 + jnp.exp(-o))
        return (h, c), h

    return jax.lax.scan(
        step,
        (jnp.zeros(hidden), jnp.zeros(hidden)),
        x,
    )[1]


def direct_logits(
    params: Any,
    data: Sentences,
    i: int,
    sizes: Sizes = SMALL,
) -> Any:
    """The logits `[n, 9]` of one sentence."""

    def both(kind: str, x: Any, hidden: int) -> Any:
        inputs = params[f"{kind}_input"]
        left = lstm(x, inputs["forward"], params[f"{kind}_forward"], hidden)
        right = lstm(
            x[::-1],
            inputs["backward"],
            params[f"{kind}_backward"],
            hidden,
        )
        return left, right

    vectors = []
    for j in range(
        data.ptr[i],
        data.ptr[i + 1],
    ):
        if data.words[j] >= 0:
            vectors.append(params["embed"][data.words[j]])
        else:
            spelled = params["char_embed"][data.characters[data.char_ptr[j] : data.char_ptr[j + 1]]]
            left, right = both("char", spelled, sizes.char_hidden)
            vectors.append(jnp.concatenate([left[-1], right[-1]]))
    left, right = both("word", jnp.stack(vectors), sizes.word_hidden)
    hidden = jnp.tanh(jnp.concatenate([left, right[::-1]], axis=1) @ params["hidden"])
    return hidden @ params["output"]["w"]


def direct_loss(params: Any, data: Sentences) -> Any:
    """The summed loss of all words of all sentences."""
    total = 0.0
    for i in range(len(data)):
        logits = direct_logits(params, data, i)
        tags = data.tags[data.ptr[i] : data.ptr[i + 1]]
        total += (jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(len(tags)), tags]).sum()
    return total


def random_params(trainer: amp.Trainer) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape, scale=0.5).astype(np.float32),
        trainer.params,
    )


def test_gradients_are_those_of_a_direct_implementation(tmp_path: Path) -> None:
    every = sentences(tmp_path, *INTERESTING.values())
    # One trainer with arenas large enough, so that kernels are compiled once: gradients add up over sentences, on both sides.
    settings = amp.Settings(
        min_update_interval=NEVER, max_active_keys=3, max_dispatch_size=2, arena_rows=2048
    )
    compiled = model(every)
    trainer = amp.Trainer(compiled.graph, settings=settings)
    params = random_params(trainer)
    trainer.set_params(params)
    each = {}
    for name, t in INTERESTING.items():
        each[name] = jax.value_and_grad(direct_loss)(
            params,
            sentences(tmp_path, t),
        )
    together = jax.tree.map(
        lambda *parts: sum(parts), *each.values()
    )  # a loss of several sentences is the sum of theirs
    sums = jax.tree.map(np.zeros_like, params)
    words = 0
    for name, lines in {
        **{name: [text] for name, text in INTERESTING.items()},
        "all": INTERESTING.values(),
    }.items():
        data = sentences(tmp_path, *lines)
        got = trainer.accumulate(compiled.data(plain(data)))
        loss, grads = each.get(name, together)
        assert got["loss_sum"] == pytest.approx(float(loss), rel=1e-5), name
        sums = jax.tree.map(np.add, sums, grads)
        words = words + len(data.words)
        for node, (grad, rows) in trainer.gradients.items():
            for a, b in zip(
                jax.tree.leaves(grad),
                jax.tree.leaves(sums[node]),
                strict=True,
            ):
                assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), (name, node)
            assert rows == words or node not in ("word_input", "hidden", "output")
    rows = {node: rows for node, (_, rows) in trainer.gradients.items()}
    n_words = 2 * len(every.words)
    n_rare = 2 * int((every.words < 0).sum())
    n_spelled = 2 * len(every.characters)
    assert (
        rows["embed"] == n_words - n_rare and rows["char_embed"] == rows["char_input"] == n_spelled
    )
    assert rows["char_forward"] == rows["char_backward"] == n_spelled - n_rare
    assert rows["word_forward"] == rows["word_backward"] == n_words - 2 * len(every)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"workers": 2, "replicas": 2, "max_dispatch_size": 2},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"max_dispatch_size": 1, "max_active_keys": 1},
            marks=pytest.mark.users,
        ),
    ],
)
def test_gradients_stay_with_replicas_workers_and_single_messages(
    tmp_path: Path, options: dict[str, int]
) -> None:
    replicas = options.pop("replicas", 1)
    data = sentences(tmp_path, *[*INTERESTING.values()][:5])
    compiled = model(data, replicas=replicas)
    settings = amp.Settings(min_update_interval=NEVER, replica_sync="none", **options)
    trainer = amp.Trainer(compiled.graph, settings=settings)
    params = random_params(trainer)
    copies = {}
    for way in ("forward", "backward"):
        copies[f"word_{way}"] = [f"word_{way}/{i}" for i in range(replicas)]
    if replicas > 1:
        for name, own in copies.items():
            params |= {copy: params[own[0]] for copy in own}
            params[name] = params[own[0]]
    trainer.set_params({name: params[name] for name in trainer.params})
    trainer.accumulate(compiled.data(plain(data)))
    got = {}
    for name, (grad, _) in trainer.gradients.items():
        got[name] = grad
    if replicas > 1:
        got |= {name: sum(got.pop(copy) for copy in own) for name, own in copies.items()}
    want = jax.grad(direct_loss)(
        {name: params[name] for name in got},
        data,
    )
    for a, b in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(want),
        strict=True,
    ):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_metrics_count_words_and_words_inside_entities(tmp_path: Path) -> None:
    data = sentences(tmp_path, *[*INTERESTING.values()][:5])
    compiled = model(data, replace(SMALL, noise=9.0))
    trainer = amp.Trainer(
        compiled.graph,
        settings=amp.Settings(max_dispatch_size=1),
    )
    instances = compiled.data(plain(data))
    params = random_params(trainer)
    trainer.set_params(params)
    logits = np.concatenate([direct_logits(params, data, i) for i in range(len(data))])
    hits = logits.argmax(axis=1) == data.tags
    inside = data.tags != OUTSIDE
    assert hits[inside].mean() != hits.mean()
    metrics = trainer.evaluate(instances)
    assert metrics["accuracy"] == pytest.approx(hits.mean())
    assert metrics["accuracy_without_o"] == pytest.approx(hits[inside].mean())
    predicted = trainer.predict(instances)["logits"]
    np.testing.assert_allclose(predicted.payload, logits, rtol=1e-4, atol=1e-5)
    assert predicted.fields["w_i"].tolist() == [t for n in np.diff(data.ptr) for t in range(n)]
    loss = direct_loss(params, data) / len(data)
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5), "noise is off in evaluation"
    assert trainer.accumulate(instances)["loss"] != pytest.approx(float(loss), rel=1e-2)


@pytest.mark.nightly
def test_it_learns_synthetic_tags() -> None:
    train, valid = wikiner.synthetic(200, 50)
    compiled = model(train, Sizes(8, 16, 16, 16))
    settings = amp.Settings(
        max_active_keys=16, min_update_interval=30, gradient="sum", max_dispatch_size=4
    )
    trainer = amp.Trainer(
        compiled.graph,
        optax.adam(1e-2),
        settings=settings,
    )
    sets = (compiled.data(plain(part)) for part in (train, valid))
    history = trainer.fit(*sets, epochs=4, progress=False)
    assert set(history[-1].valid) == {"loss", "accuracy", "accuracy_without_o"}
    assert history[-1].valid["accuracy_without_o"] > 0.8


def test_an_empty_data_set_is_refused() -> None:
    data, _ = wikiner.synthetic(50, 1)
    none = Sentences(
        data.ptr[:1],
        data.words[:0],
        data.tags[:0],
        data.char_ptr[:1],
        data.characters[:0],
        data.vocabulary,
    )
    with pytest.raises(SettingsError, match="at least one instance"):
        amp.Trainer(model(data).graph).evaluate(model(data).data(plain(none)))


def test_tables_and_matrices_start_as_said() -> None:
    params = init(jax.random.key(0), 500, 100)
    assert {name: jax.tree.map(np.shape, tree) for name, tree in params.items()} == {
        "embed": (500, 128),
        "char_embed": (100, 20),
        "char_input": {way: {"w": (20, 256), "b": (256,)} for way in ("forward", "backward")},
        "char_forward": (64, 256),
        "char_backward": (64, 256),
        "word_input": {way: {"w": (128, 200), "b": (200,)} for way in ("forward", "backward")},
        "word_forward": (50, 200),
        "word_backward": (50, 200),
        "hidden": (100, 32),
        "output": {"w": (32, 9)},
    }
    for leaf, bound in (
        (params["embed"], (6 / 128) ** 0.5),
        (params["char_embed"], (6 / 20) ** 0.5),
        (params["char_input"]["forward"]["w"], (6 / 276) ** 0.5),
        (params["word_forward"], (6 / 250) ** 0.5),
        (params["hidden"], (6 / 132) ** 0.5),
        (params["output"]["w"], (6 / 41) ** 0.5),
    ):
        assert 0.95 * bound < np.abs(leaf).max() <= bound
    assert not np.array_equal(*(params["char_input"][way]["w"] for way in ("forward", "backward")))
    assert not params["word_input"]["backward"]["b"].any()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Sizes(mlp=0), "sizes of at least 1"),
        (lambda: Sizes(noise=-0.1), "noise of at least 0"),
        (
            lambda: init(
                jax.random.key(0),
                0,
                5,
            ),
            "n_words",
        ),
        (
            lambda: init(
                jax.random.key(0),
                5,
                0,
            ),
            "n_characters",
        ),
        (lambda: tagger(replicas=0), "replicas"),
    ],
)
def test_sizes_that_do_not_fit(make, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        make()


@pytest.mark.nightly
@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real files are only read where AMPJAX_DATA names their folder",
)
def test_logits_of_real_sentences_are_those_of_a_direct_implementation() -> None:
    _, data = wikiner.load()
    ids = np.argsort(np.diff(data.ptr))[[0, 100, 200]]
    compiled = model(data, Sizes(noise=0))
    trainer = amp.Trainer(
        compiled.graph,
        settings=amp.Settings(max_dispatch_size=1),
    )
    logits = [direct_logits(trainer.params, data, i, Sizes()) for i in ids]
    hits = []
    for x, i in zip(logits, ids, strict=True):
        hits.append(np.argmax(x, axis=1) == data.tags[data.ptr[i] : data.ptr[i + 1]])
    some = amp.Subset(compiled.data(plain(data)), ids)
    assert trainer.evaluate(some)["accuracy"] == pytest.approx(np.concatenate(hits).mean())
