"""Zipf's law: frequencies, copies, and translations by a dictionary."""

import numpy as np
import pytest

from ampjax.errors import SettingsError
from experiments.data import zipf


def test_probabilities() -> None:
    assert zipf.probabilities(3, 1.0) == pytest.approx(np.array([6, 3, 2]) / 11)
    assert zipf.probabilities(4, 0.0) == pytest.approx(np.full(4, 0.25))


@pytest.mark.parametrize("copy", [0.0, 0.7])
def test_words_follow_the_law_with_and_without_copies(copy: float) -> None:
    n = 60_000
    words = zipf.tokens(
        n,
        20,
        1.2,
        copy,
        lag=3,
        seed=1,
    )
    p = zipf.probabilities(20, 1.2)
    seen = np.bincount(words, minlength=20) / n
    # Copies come in runs of 1 / (1 - copy), so there are that many fewer independent words.
    assert (np.abs(seen - p) < 5 * np.sqrt(p * (1 - p) * 2 / (n * (1 - copy)))).all()
    again = (words[3:] == words[:-3]).mean()
    assert again == pytest.approx(
        copy + (1 - copy) * (p**2).sum(),
        abs=0.02,
    )
    assert words.dtype == np.int32 and len(words) == n


def test_a_copy_of_all_repeats_the_beginning() -> None:
    words = zipf.tokens(10, 1000, 0.0, copy=1.0, lag=4)
    assert np.array_equal(words, np.resize(words[:4], 10))


def test_pairs_are_translated_by_one_dictionary() -> None:
    data = zipf.pairs(50, 30, max_length=4, seed=1)
    other = zipf.pairs(50, 30, max_length=4, seed=2)
    dictionary: dict[int, int] = {}
    for pairs in (data, other):
        for i in range(len(pairs)):
            for word, translated in zip(
                pairs.source[i],
                pairs.target[i][::-1],
                strict=True,
            ):
                assert dictionary.setdefault(int(word), int(translated)) == translated
    assert len(set(dictionary.values())) == len(dictionary)
    assert min(dictionary) >= 3
    assert data.source.lengths.min() >= 1
    assert data.source.lengths.max() <= 4
    assert not np.array_equal(data.source.ptr, other.source.ptr)


def test_a_seed_gives_the_same_again() -> None:
    assert np.array_equal(
        zipf.tokens(50, 9, seed=4),
        zipf.tokens(50, 9, seed=4),
    )
    assert not np.array_equal(
        zipf.tokens(50, 9, seed=4),
        zipf.tokens(50, 9, seed=5),
    )
    assert np.array_equal(
        zipf.pairs(5, 9, seed=4).target.words,
        zipf.pairs(5, 9, seed=4).target.words,
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingsError, match="`vocabulary`: expected at least 1, got 0"):
        zipf.tokens(5, 0)
    with pytest.raises(SettingsError, match="`alpha`: expected a number of at least 0, got -1"):
        zipf.tokens(5, 5, -1)
    with pytest.raises(SettingsError, match="`alpha`: expected a number of at least 0, got nan"):
        zipf.probabilities(5, float("nan"))
    with pytest.raises(SettingsError, match=r"`copy`: expected a probability, got 1\.5"):
        zipf.tokens(5, 5, copy=1.5)
    with pytest.raises(SettingsError, match="`vocabulary - 3`: expected at least 1, got 0"):
        zipf.pairs(5, 3)
