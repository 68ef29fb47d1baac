"""Words by Zipf's law, `P(k) ∝ 1 / (k + 1)^alpha`: texts and pairs of any size without files, whose sparsity is a setting.

How many different rows of a table a step touches follows from the vocabulary, `alpha` and the words of a batch.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from ampjax.errors import SettingsError
from experiments.data.pairs import Pairs, Sentences
from experiments.data.readers.data_checks import at_least_one
from experiments.data.text import SPECIAL


def probabilities(
    vocabulary: int,
    alpha: float = 1.0,
) -> Float[np.ndarray, " vocabulary"]:
    """Computes the probability `P(k)` of each word, the most frequent first.

    Args:
      vocabulary: Number of words.
      alpha: Exponent of Zipf's law; 0 makes all words equally likely.

    Returns:
      `[vocabulary]` float64; they add up to 1.

    Raises:
      SettingsError: If `vocabulary` is below 1, or `alpha` negative or not finite.
    """
    at_least_one("zipf", vocabulary=vocabulary)
    if not 0 <= alpha < np.inf:
        raise SettingsError(
            "zipf, `alpha`", "a number of at least 0", f"{alpha}", "Text has about 1."
        )
    weights = np.arange(1, vocabulary + 1, dtype=np.float64) ** -alpha
    return weights / weights.sum()


def tokens(
    n: int,
    vocabulary: int,
    alpha: float = 1.0,
    copy: float = 0.0,
    lag: int = 5,
    seed: int = 0,
) -> Int[np.ndarray, " n"]:
    """Draws a text for a language model.

    With probability `copy` a word repeats the one `lag` places before, else it is drawn anew. In both cases words follow Zipf's law, and a
    model can learn to copy.

    Args:
      n: Words of the text.
      vocabulary: Different words; word 0 is the most frequent one.
      alpha: Zipf's exponent.
      copy: The probability that a word is a copy.
      lag: The distance to the word that is copied.
      seed: Same seed, same text.

    Returns:
      `[n]` int32.

    Raises:
      SettingsError: If a count is below 1, `alpha` is negative or not finite, or `copy` is no probability.
    """
    at_least_one("zipf.tokens", n=n, lag=lag)
    if not 0 <= copy <= 1:
        raise SettingsError(
            "zipf.tokens, `copy`", "a probability", f"{copy}", "Give a number from 0 to 1."
        )
    rng = np.random.default_rng(seed)
    words = _draw(rng, n, probabilities(vocabulary, alpha))
    places = np.arange(n)
    copied = (rng.random(n) < copy) & (places >= lag)
    # A copy of a copy is found by going back to the place, on its own lane of stride `lag`, where a word was last drawn.
    lanes = np.where(copied, -1, places)
    lanes = np.concatenate([lanes, np.full(-n % lag, -1)]).reshape(
        -1,
        lag,
    )
    return words[np.maximum.accumulate(lanes, axis=0).ravel()[:n]]


def pairs(
    n: int,
    vocabulary: int,
    alpha: float = 1.0,
    max_length: int = 10,
    seed: int = 0,
) -> Pairs:
    """Draws pairs for a translation model: each word has one translation, and the target is in reverse order.

    Args:
      n: Pairs.
      vocabulary: Words of each language; this includes the special words of `experiments.data.text`, which do not occur.
      alpha: Zipf's exponent of the source.
      max_length: Lengths are uniform from 1 to this.
      seed: Of the pairs; the dictionary is the same for all seeds.

    Returns:
      `n` pairs.

    Raises:
      SettingsError: If a count is below 1, `vocabulary` has only special words, or `alpha` is negative or not finite.
    """
    n_words = vocabulary - len(SPECIAL)
    at_least_one("zipf.pairs", n=n, max_length=max_length, **{"vocabulary - 3": n_words})
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, max_length + 1, n)
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    words = _draw(
        rng,
        int(ptr[-1]),
        probabilities(n_words, alpha),
    )
    dictionary = np.random.default_rng(0).permutation(n_words).astype(np.int32)
    backwards = np.repeat(ptr[:-1] + ptr[1:], lengths) - 1 - np.arange(len(words))
    shift = np.int32(len(SPECIAL))
    return Pairs(
        Sentences(ptr, words + shift),
        Sentences(ptr, dictionary[words[backwards]] + shift),
    )


def _draw(
    rng: np.random.Generator,
    n: int,
    p: np.ndarray,
) -> np.ndarray:
    """`n` words int32 by inverting the cumulative distribution."""
    edges = np.cumsum(p)
    return np.searchsorted(edges / edges[-1], rng.random(n), side="right").astype(np.int32)
