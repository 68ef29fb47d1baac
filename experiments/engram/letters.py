"""Text as numbers of characters: the English captions of Multi30k, or made-up sentences."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.multi30k import FILES
from experiments.data.readers.data_files import find
from experiments.data.text import read_lines

N_WORDS = 2000
"""Different words of made-up sentences."""


@dataclass(frozen=True)
class Letters:
    """A text in two parts.

    Args:
      name: Where it is from.
      train: `[n]` int32, numbers of characters.
      valid: `[m]` int32.
      n_letters: Different characters.
    """

    name: str
    train: np.ndarray
    valid: np.ndarray
    n_letters: int


def load(
    data_dir: Path | None = None,
    n: int = 2_000_000,
) -> Letters:
    """Reads captions where there are any, else makes sentences.

    Args:
      data_dir: The folder with data; else `AMPJAX_DATA`.
      n: Characters for training at most.

    Raises:
      DataError: If a folder was named and the files are not there.
    """
    if data_dir or os.environ.get("AMPJAX_DATA"):
        parts = []
        for split in ("train", "valid"):
            path = find(FILES[split, "en"], data_dir)
            sentences = [" ".join(words) for words in read_lines(path)]
            parts.append("\n".join(sentences))
        return numbered(
            "Multi30k, English",
            parts[0][:n],
            parts[1],
        )
    rng = np.random.default_rng(0)
    words = made_up_words(N_WORDS, rng)
    n_sentences = 1 + n // 30
    train = "\n".join(sentences_of(words, n_sentences, rng))
    valid = "\n".join(sentences_of(words, 1000, rng))
    return numbered("made up", train[:n], valid)


def numbered(
    name: str,
    train: str,
    valid: str,
) -> Letters:
    """Numbers the characters of the training text; others are left out.

    Args:
      name: Where the text is from.
      train: The training text.
      valid: The validation text.
    """
    letters = sorted(set(train))
    number = {letter: i for i, letter in enumerate(letters)}
    parts = []
    for text in (train, valid):
        known = [number[letter] for letter in text if letter in number]
        parts.append(np.array(known, np.int32))
    return Letters(
        name,
        parts[0],
        parts[1],
        len(letters),
    )


def made_up_words(n: int, rng: np.random.Generator) -> list[str]:
    """Words of consonants and vowels in turn.

    Args:
      n: How many.
      rng: Draws them.
    """
    consonants = list("bdfgklmnprstv")
    vowels = list("aeiou")
    words = []
    for _ in range(n):
        word = ""
        for _ in range(rng.integers(1, 5)):
            word += str(rng.choice(consonants))
            word += str(rng.choice(vowels))
        words.append(word)
    return words


def sentences_of(
    words: list[str],
    n: int,
    rng: np.random.Generator,
) -> list[str]:
    """Draws sentences of words that follow Zipf's law.

    Args:
      words: The words, the most frequent one first.
      n: How many sentences.
      rng: Draws them.
    """
    frequencies = 1 / np.arange(1, 1 + len(words))
    frequencies /= frequencies.sum()
    drawn = rng.choice(
        len(words),
        (n, 9),
        p=frequencies,
    )
    lengths = rng.integers(4, 10, n)
    result = []
    for row, length in zip(drawn, lengths, strict=True):
        chosen = [words[i] for i in row[:length]]
        result.append(" ".join(chosen))
    return result


def windows(
    text: np.ndarray,
    rows: int,
    context: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cuts pieces out of a text at random.

    Args:
      text: `[n]`.
      rows: How many.
      context: Characters that a model sees at once.
      rng: Draws them.

    Returns:
      `[rows, context + 1]` int32.
    """
    starts = rng.integers(0, len(text) - context, rows)
    return text[starts[:, None] + np.arange(context + 1)]


def spread_windows(
    text: np.ndarray,
    rows: int,
    context: int,
) -> np.ndarray:
    """Cuts pieces out of a text at equal distances.

    Args:
      text: `[n]`.
      rows: How many.
      context: As for `windows`.

    Returns:
      `[rows, context + 1]` int32.
    """
    last = len(text) - context - 1
    starts = np.linspace(0, last, rows).astype(int)
    return text[starts[:, None] + np.arange(context + 1)]
