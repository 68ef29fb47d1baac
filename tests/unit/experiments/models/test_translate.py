"""Beam search against all sentences, and a translation by greedy search."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.errors import SettingsError
from experiments.data.text import END, START
from experiments.models import nmt
from experiments.models.layers import functional
from experiments.models.layers.dropout import Dropout
from experiments.models.translate import _search, make_translate

pytestmark = [pytest.mark.slow, pytest.mark.users]

LOGITS = (
    np.random.default_rng(4)
    .normal(
        scale=2,
        size=(2, 5, 5),
    )
    .astype(np.float32)
)
"""Of two sentences: the next word's logits after each word."""


def all_sentences(
    logits: np.ndarray,
    limit: int,
    alpha: float,
) -> dict[tuple[int, ...], float]:
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    scores = {}
    for words in product(range(5), repeat=limit):
        end = words.index(END) if END in words else limit - 1
        words = words[: end + 1]
        total = sum(logp[a, b] for a, b in zip((START, *words), words, strict=False))
        scores[words] = total / ((5 + len(words)) / 6) ** alpha
    return scores


def search(width: int, alpha: float, limit: int = 3):
    def decode(
        state: jax.Array,
        words: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        return state, jnp.asarray(LOGITS)[state, words]

    return jax.jit(
        lambda s: _search(
            decode,
            s,
            2,
            width,
            limit,
            alpha,
        )
    )(jnp.repeat(jnp.arange(2), width))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_sentences(alpha: float) -> None:
    words, scores = search(25, alpha)
    for sentence in range(2):
        expected = all_sentences(LOGITS[sentence], 3, alpha)
        best = sorted(expected.values(), reverse=True)
        # The beam holds all sentences of two words, so nothing good is lost before the third.
        assert np.asarray(scores[sentence, :10]) == pytest.approx(best[:10], abs=1e-5)
        found = tuple(words[sentence, 0].tolist())
        if END in found:
            found = found[: found.index(END) + 1]
        assert expected[found] == pytest.approx(best[0], abs=1e-6)


def test_a_beam_of_one_takes_the_likeliest_word_each_time() -> None:
    words, _ = search(1, 1.0)
    for sentence in range(2):
        last = START
        expected = []
        for _ in range(3):
            if last != END:
                last = int(LOGITS[sentence, last].argmax())
            else:
                last = END
            expected.append(last)
        assert words[sentence, 0].tolist() == expected


@pytest.mark.nightly
def test_a_model_translates_as_its_decoder_says() -> None:
    config = nmt.Config(2, 8, 12, 12, beam=2)
    params = nmt.init(config, 5)
    source = np.array([[3, 4, 5], [6, 7, 2]])
    lengths = np.array([3, 2])
    words, scores = jax.jit(make_translate(config, beam=1, max_length=3))(
        params,
        source,
        lengths,
    )

    @jax.jit
    def greedy(params):
        model = functional.merge(nmt.Translator, config, params)
        memory, state = model.encode(source, lengths, Dropout(None, 0.0))
        last = jnp.full(2, START)
        out = []
        for _ in range(3):
            state, logits = model.decode(memory, state, last)
            last = jnp.where(last == END, END, logits.argmax(-1))
            out.append(last)
        return jnp.stack(out, 1)

    assert (
        np.array_equal(
            words,
            greedy(params),
        )
        and words.shape == (2, 3)
        and scores.shape == (2,)
    )
    with pytest.raises(SettingsError, match="`beam`: expected at least 1, got 0"):
        make_translate(config, beam=0)
