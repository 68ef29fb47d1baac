"""Documents of sentences of words of characters; what counts depends on where words and sentences end."""

from __future__ import annotations

from typing import Any

import numpy as np

import ampjax as amp
from experiments.data.readers.data_checks import at_least_one

N_CHARACTERS = 6
MOST_SENTENCES = 4
MARK = 0
"""The character that marks a word if it is its first one."""
N_CLASSES = MOST_SENTENCES + 1


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[dict[str, Any]]:
    """Draws documents of one to four sentences of one to four words of one to four characters.

    Args:
      n: How many.
      seed: Same seed, same documents.

    Returns:
      Instances: `text` `[sentences, words, characters]` int32, ragged, and the `label`: how many sentences end with a word that begins with
      the character 0.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)

    def size(most):
        return range(int(rng.integers(1, most + 1)))

    documents = []
    for _ in range(n):
        documents.append([[_word(rng) for _ in size(4)] for _ in size(MOST_SENTENCES)])
    result = []
    for document in documents:
        result.append(
            {
                "text": amp.Ragged.of(document, np.int32),
                "label": np.int32(_label(document)),
            }
        )
    return result


def _word(rng: np.random.Generator) -> list[int]:
    word = rng.integers(0, N_CHARACTERS, rng.integers(1, 5))
    if rng.random() < 0.3:
        word[0] = MARK
    return word.tolist()


def _label(document: list[list[list[int]]]) -> int:
    return sum(sentence[-1][0] == MARK for sentence in document)
