"""Multi30k (Elliott et al. 2016): captions of photographs in English with their German translations; 29,000 pairs for training.

The files are lower-cased, normalised and tokenised by Moses, one sentence a line; line i of a file is the translation of line i of the
other. Moses's entities (`&apos;`) are tokens like any others.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ampjax.errors import DataError, SettingsError
from experiments.data.pairs import Pairs, Sentences
from experiments.data.readers.data_checks import at_least_one
from experiments.data.readers.data_files import Remote, find
from experiments.data.text import Vocabulary, read_lines

SOURCE = "https://github.com/multi30k/dataset (data/task1/tok)"
SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
LANGUAGES = ("en", "de")
MOST_WORDS = 250
"""Words of a sentence at most; the data set's longest has 44."""


def _remote(split: str, language: str) -> Remote:
    name = f"{SPLITS[split]}.lc.norm.tok.{language}"
    return Remote(
        "multi30k", f"tok/{name}.gz", also=(f"{name}.gz", f"tok/{name}", name), source=SOURCE
    )


FILES = {(split, language): _remote(split, language) for split in SPLITS for language in LANGUAGES}


@dataclass(frozen=True)
class Multi30k:
    """The pairs of the three files, and the vocabularies of the training pairs.

    Args:
      train: 29,000 pairs.
      valid: 1,014 pairs.
      test: 1,000 pairs, of 2016.
      source_vocabulary: The vocabulary of the source language.
      target_vocabulary: The vocabulary of the target language.
    """

    train: Pairs
    valid: Pairs
    test: Pairs
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary


def load(
    data_dir: str | os.PathLike[str] | None = None,
    source: str = "en",
    size: int | None = None,
    min_count: int = 2,
    n_train: int | None = None,
) -> Multi30k:
    """Reads all pairs and makes the vocabularies.

    Args:
      data_dir: The folder with the six files (or with a folder `multi30k/tok` that holds them); else `AMPJAX_DATA`.
      source: The source language, `en` or `de`; the other is the target.
      size: The most words of a vocabulary.
      min_count: Rarer words are unknown.
      n_train: The number of training pairs, taken from the beginning; they alone make the vocabularies.

    Returns:
      The pairs of the three files, and the vocabularies of the training pairs.

    Raises:
      SettingsError: If `source` is none of the two, or a number is too small.
      DataError: If a file is missing, can't be read or has a line that is empty or too long, or two files differ in their number of lines.
    """
    if source not in LANGUAGES:
        raise SettingsError(
            "multi30k.load, `source`", f"one of {list(LANGUAGES)}", f"{source!r}", "Choose one."
        )
    at_least_one("multi30k.load", **({} if n_train is None else {"n_train": n_train}))
    order = (source, LANGUAGES[1 - LANGUAGES.index(source)])
    text = {}
    for split in SPLITS:
        text[split] = [
            lines[: n_train if split == "train" else None]
            for lines in _read(split, order, data_dir)
        ]
    counts = (Counter(word for line in lines for word in line) for lines in text["train"])
    vocabularies = [Vocabulary.of(count, size, min_count) for count in counts]

    def pairs(split: str) -> Pairs:
        sides = zip(text[split], vocabularies, strict=True)
        return Pairs(
            *(
                Sentences.of([vocabulary.encode(line) for line in lines])
                for lines, vocabulary in sides
            )
        )

    return Multi30k(
        pairs("train"),
        pairs("valid"),
        pairs("test"),
        *vocabularies,
    )


def _read(
    split: str,
    order: tuple[str, str],
    data_dir: str | os.PathLike[str] | None,
) -> list[list[list[str]]]:
    """The sentences of both languages of a split."""
    paths = [find(FILES[split, language], data_dir) for language in order]
    sides = [_sentences(path) for path in paths]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"files {paths[0]} and {paths[1]}",
            "as many lines in both",
            f"{len(sides[0])} and {len(sides[1])}",
            f"Take both from one source: {SOURCE}.",
        )
    return sides


def _sentences(path: Path) -> list[list[str]]:
    lines = []
    for number, line in enumerate(read_lines(path), 1):
        if not 1 <= len(line) <= MOST_WORDS:
            got = f"{len(line)} words: line ends may be lost" if line else "an empty line"
            raise DataError(
                f"file {path}, line {number}", "a sentence", got, f"Get the file from {SOURCE}."
            )
        lines.append(line)
    return lines
