"""The language model and translation as functions of one sentence: the losses and gradients of the batch models, by `jax.grad` and by the engine."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.sparse import Table
from experiments.data import zipf
from experiments.data.pairs import PairBatches, Pairs, Sentences, plain, plain_sentences
from experiments.models import lm, nmt
from experiments.models.functions import language_model_function, translation_function

pytestmark = [pytest.mark.slow, pytest.mark.users]

LM = lm.Config(
    12,
    None,
    3,
    5,
    4,
    samples=None,
    dropout=0.0,
)
PAIRS = Pairs(
    Sentences.of([[3, 7], [4, 9, 5]]),
    Sentences.of([[5], [8, 3]]),
)
WIDTH = 3  # the first pair's batch is padded, on both sides


def translator(architecture: str) -> nmt.Config:
    """Initial values are large, so that no gradient is lost in rounding."""
    layers = {"gnmt": 3, "bi": 4}[architecture]
    return nmt.Config(
        layers,
        4,
        12,
        12,
        architecture=architecture,
        dropout=0.0,
        scale=1.0,
    )


def language_models() -> Any:
    """The function, its parameters and instances; the batch loss, its parameters and the first instance as a padded batch."""
    params = jax.tree.map(
        lambda x: x + 0.1, language_model_function.init(LM, 1)
    )  # biases too are not 0
    padded = PairBatches(
        Pairs(PAIRS.source, PAIRS.source),
        1,
        WIDTH,
        1,
    ).gather(
        np.arange(1),
        WIDTH,
    )
    batch = {
        "inputs": padded["target_in"],
        "targets": padded["target_out"],
        "length": padded["target_length"],
    }
    function = language_model_function.language_model(LM)
    return function, params, plain_sentences(PAIRS.source), lm.make_loss(LM), params, batch


def translators(architecture: str) -> Any:
    """Likewise of translation."""
    config = translator(architecture)
    batch = PairBatches(PAIRS, 1, WIDTH, 1).gather(
        np.arange(1),
        WIDTH,
    )
    function = translation_function.translation(config)
    params = nmt.init(config, 1)
    return (
        function,
        translation_function.by_layer(params),
        plain(PAIRS),
        nmt.make_loss(config),
        params,
        batch,
    )


CASES = {
    "lm": language_models,
    "nmt, gnmt": lambda: translators("gnmt"),
    "nmt, bi": lambda: translators("bi"),
}


@pytest.mark.parametrize(
    "name",
    [
        "lm",
        pytest.param("nmt, gnmt", marks=pytest.mark.users),
        pytest.param("nmt, bi", marks=pytest.mark.nightly),
    ],
)
def test_a_sentences_loss_and_gradients_are_the_batch_models(name: str) -> None:
    function, params, instances, batch_loss, batch_params, batch = CASES[name]()
    with jax.enable_x64(True):
        params, batch_params = jax.tree.map(
            lambda x: np.asarray(x, np.float64), (params, batch_params)
        )
        want, expected = jax.jit(jax.value_and_grad(batch_loss))(batch_params, batch)
        got, found = jax.jit(jax.value_and_grad(lambda p: function(p, instances[0])))(params)
        expected = expected if name == "lm" else translation_function.by_layer(expected)
        assert float(got) == pytest.approx(float(want), rel=1e-10)
        for path, leaf in jax.tree.leaves_with_path(expected):
            value = np.asarray(dict(jax.tree.leaves_with_path(found))[path])
            largest = np.abs(leaf).max()
            assert value.dtype == np.float64 and largest > 0, path
            np.testing.assert_allclose(
                value,
                leaf,
                rtol=0,
                atol=1e-10 * largest,
                err_msg=str(path),
            )


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_engine_computes_them(name: str) -> None:
    function, params, instances, *_ = CASES[name]()
    spec = language_model_function.SPEC if name == "lm" else translation_function.SPEC
    compiled = amp.compile(function, params, spec)
    assert compiled.verify(
        [instances[0], instances[1]],
        progress=False,
    )


def test_every_layer_is_a_node_and_goes_back_to_its_place() -> None:
    params = nmt.init(translator("bi"))
    layers = translation_function.by_layer(params)
    assert set(layers) == {
        "source_embedding",
        "target_embedding",
        "output",
        *(f"encoder.{way}.{i}" for way in ("forward", "backward") for i in range(2)),
        *(f"decoder.cells.{i}" for i in range(4)),
        "decoder.attention",
        "decoder.join",
    }
    back = translation_function.nested(layers)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True))


def test_embeddings_may_be_tables() -> None:
    params = translation_function.by_layer(nmt.init(translator("bi")))
    keys = "source_embedding", "target_embedding"
    tables = {}
    for key in keys:
        tables[key] = Table(
            np.asarray(params[key]),
            optax.sgd(0.1),
        )
    spec = translation_function.SPEC
    graph = amp.compile(
        translation_function.translation(translator("bi")), params | tables, spec
    ).graph
    assert [graph.nodes[key].table for key in keys] == [tables[key] for key in keys]


def test_no_sentence_is_padded() -> None:
    """A message for each word of each sentence, and none for padding."""
    data = zipf.pairs(20, 12, max_length=5)
    compiled = amp.compile(
        language_model_function.language_model(LM),
        language_model_function.init(LM),
        language_model_function.SPEC,
    )
    rows = compiled.data(plain_sentences(data.target)).gather(np.arange(20))
    words = len(data.target.words) + 20  # and an end mark each
    assert [len(rows[name].payload) for name in ("embedding/in", "softmax/in")] == [words, words]
