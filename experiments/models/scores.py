"""Scores of language models: perplexity, and BLEU of translations (Papineni et al. 2002)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from ampjax.errors import DataError, SettingsError

Sentence = Sequence[Hashable]
"""Words, or numbers of words."""


def perplexity(nats: float, n_words: int) -> float:
    """Computes the perplexity: `exp` of the mean cross entropy; infinite if that overflows.

    Args:
      nats: The words' cross entropies, summed.
      n_words: How many words.

    Returns:
      The perplexity, at least 1 for cross entropies of at least 0.

    Raises:
      SettingsError: If there are no words.

    >>> round(perplexity(3 * math.log(10), 3), 6)
    10.0
    """
    if n_words < 1:
        raise SettingsError("perplexity, `n_words`", "at least 1", f"{n_words}", "Score some text.")
    mean = nats / n_words
    return math.exp(mean) if mean < 700 else math.inf


def bleu(
    hypotheses: Sequence[Sentence],
    references: Sequence[Sentence],
    order: int = 4,
) -> float:
    """Computes BLEU of a corpus, in percent, with one reference a sentence and no smoothing.

    It is the geometric mean of the precisions of 1-grams to `order`-grams. An n-gram counts at most as often as it occurs in its reference,
    and counts are summed over the corpus first. If the translations' `c` words are fewer than the references' `r`, the mean is multiplied by
    the brevity penalty `exp(1 - r / c)`.

    Args:
      hypotheses: The translations.
      references: The right translations, in the same order.
      order: The length of the longest n-grams.

    Returns:
      A number from 0 to 100; 0 if no n-gram of some length is right.

    Raises:
      DataError: If there are no sentences, or not as many references as hypotheses.
      SettingsError: If `order` is below 1.

    >>> bleu(["a b c d e".split()], ["a b c d e".split()])
    100.0
    """
    if order < 1:
        raise SettingsError("bleu, `order`", "at least 1", f"{order}", "The usual one is 4.")
    if not hypotheses or len(hypotheses) != len(references):
        raise DataError(
            "bleu",
            "at least one hypothesis, and a reference for each",
            f"{len(hypotheses)} hypotheses and {len(references)} references",
            "Give two lists of the same order.",
        )
    log_precision = 0.0
    for n in range(1, order + 1):
        grams = [(_grams(h, n), _grams(r, n)) for h, r in zip(hypotheses, references, strict=True)]
        right = sum((h & r).total() for h, r in grams)
        if right == 0:
            return 0.0
        log_precision += math.log(right / sum(h.total() for h, _ in grams)) / order
    c = sum(map(len, hypotheses))
    r = sum(map(len, references))
    return 100 * math.exp(log_precision + min(0.0, 1 - r / c))


def _grams(
    words: Sentence,
    n: int,
) -> Counter[tuple[Hashable, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
