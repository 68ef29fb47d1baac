"""BLEU and perplexity by hand."""

import math

import pytest

from ampjax.errors import DataError, SettingsError
from experiments.models.scores import bleu, perplexity


def test_bleu_by_hand() -> None:
    # 1-grams: 5 of 6 right; 2-grams 3 of 5; 3-grams 1 of 4; the lengths are equal.
    hypothesis = ["the", "cat", "sat", "on", "a", "mat"]
    reference = ["the", "cat", "sat", "in", "a", "mat"]
    assert bleu([hypothesis], [reference], 3) == pytest.approx(
        100 * (5 / 6 * 3 / 5 * 1 / 4) ** (1 / 3)
    )
    assert bleu([hypothesis], [reference]) == 0  # no 4-gram is right


def test_counts_are_clipped_and_summed_over_the_corpus() -> None:
    # "the" counts twice at most; the second sentence adds 2 of 2.
    assert bleu(
        [["the", "the", "the"], ["a", "b"]],
        [["the", "the", "x"], ["a", "b"]],
        1,
    ) == pytest.approx(100 * 4 / 5)


def test_short_translations_are_punished_and_long_ones_are_not() -> None:
    assert bleu([[1, 2, 3, 4]], [[1, 2, 3, 4, 5]]) == pytest.approx(100 * math.exp(1 - 5 / 4))
    assert bleu([[1, 2, 3, 4, 5]], [[1, 2, 3, 4]]) == pytest.approx(
        100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    )
    assert bleu([[]], [[1]]) == 0


def test_perplexity() -> None:
    assert perplexity(2 * math.log(8), 2) == pytest.approx(8)
    assert perplexity(1e6, 1) == math.inf


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="got 1 hypotheses and 2 references"):
        bleu([[1]], [[1], [2]])
    with pytest.raises(DataError, match="got 0 hypotheses"):
        bleu([], [])
    with pytest.raises(SettingsError, match="`order`: expected at least 1, got 0"):
        bleu([[1]], [[1]], 0)
    with pytest.raises(SettingsError, match="`n_words`: expected at least 1, got 0"):
        perplexity(1.0, 0)
