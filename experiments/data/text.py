"""Text as lines of tokens between ASCII spaces: vocabularies by frequency, and contiguous batches for a language model.

A file of any tokens will do: words, pieces of words, characters. `experiments.data.pairs` makes batches of pairs of lines.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from ampjax.errors import DataError
from experiments.data.readers import lines
from experiments.data.readers.data_checks import at_least_one

UNKNOWN = 0
START = 1
END = 2
SPECIAL = ("<unk>", "<s>", "</s>")
"""The first words of every vocabulary: for words that it lacks, a sentence's start, and its end."""


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Numbers of words: the special words come first, then the others by falling frequency, as a log-uniform sampler needs.

    Args:
      words: The words; a word's number is its place.

    Raises:
      DataError: If the special words are not the first three, or a word occurs twice.
    """

    words: Sequence[str]
    numbers: Mapping[str, int] = field(init=False, compare=False)
    """The number of each word."""

    def __post_init__(self) -> None:
        numbers = {word: i for i, word in enumerate(self.words)}
        if tuple(self.words[:3]) != SPECIAL or len(numbers) != len(self.words):
            raise DataError(
                "Vocabulary",
                f"different words, the first of them {', '.join(SPECIAL)}",
                f"{len(self.words)} words, {len(numbers)} different ones, beginning with {', '.join(self.words[:3])}",
                "Make it with `Vocabulary.of`.",
            )
        object.__setattr__(self, "numbers", numbers)

    @classmethod
    def of(
        cls,
        counts: Mapping[str, int],
        size: int | None = None,
        min_count: int = 1,
    ) -> Vocabulary:
        """Makes a vocabulary of the most frequent words; equally frequent ones are sorted alphabetically.

        Args:
          counts: How often each word was seen.
          size: The most words, the special ones included.
          min_count: Words seen less often are left out.

        Returns:
          The vocabulary; the special words come first.

        Raises:
          SettingsError: If `min_count` is below 1, or `size` leaves no room for a word.
        """
        at_least_one(
            "Vocabulary.of",
            min_count=min_count,
            **({} if size is None else {"size - 3": size - 3}),
        )
        kept = []
        for word, n in counts.items():
            if n >= min_count and word not in SPECIAL:
                kept.append(word)
        kept.sort(key=lambda word: (-counts[word], word))
        return cls((*SPECIAL, *kept)[:size])

    def encode(self, words: Iterable[str]) -> list[int]:
        """Gives the numbers of words; `UNKNOWN` for words that are not in the vocabulary.

        Args:
          words: The words.

        Returns:
          A number for each word.
        """
        return [self.numbers.get(word, UNKNOWN) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Gives the words of numbers, up to the first `END`.

        Args:
          ids: The numbers.

        Returns:
          The words.
        """
        words = []
        for i in ids:
            if i == END:
                break
            words.append(self.words[i])
        return words

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words)"


def read_lines(path: str | os.PathLike[str]) -> Iterator[list[str]]:
    """Reads the tokens of each line; a file whose name ends in `.gz` is unpacked.

    Args:
      path: The file.

    Returns:
      A list of tokens for each line, one at a time.

    Raises:
      DataError: If the file can't be read, is a damaged gzip file, or a line is no text in UTF-8; names the line. Or if there are many
        words and not one line end.
    """
    fix = "Check its name, or get it again; text must be UTF-8."
    for line in lines.read_lines(path, fix, longest=None, sentences=True):
        yield [token for token in line.split(" ") if token]


def load(
    *paths: str | os.PathLike[str],
    vocabulary: Vocabulary | None = None,
    size: int | None = None,
) -> tuple[Int[np.ndarray, " n"], Vocabulary]:
    """Loads the tokens of some files, one after the other, as numbers; every line that has tokens ends with `END`.

    Args:
      *paths: The files.
      vocabulary: The vocabulary of the training text; by default it is made of these files.
      size: The most words of a vocabulary that is made.

    Returns:
      `[n]` int32, and the vocabulary.

    Raises:
      DataError: As `read_lines`, or if there are no tokens at all.
      SettingsError: As `Vocabulary.of`.
    """
    if vocabulary is None:
        counts = Counter(token for path in paths for line in read_lines(path) for token in line)
        vocabulary = Vocabulary.of(counts, size)
    known = vocabulary
    numbers = (
        i for path in paths for line in read_lines(path) if line for i in (*known.encode(line), END)
    )
    ids = np.fromiter(numbers, np.int32)
    if not len(ids):
        raise DataError(
            f"files {', '.join(map(str, paths)) or '(none)'}",
            "at least one token",
            "none",
            "Name files with text.",
        )
    return ids, vocabulary


@dataclass(frozen=True)
class Contiguous:
    """Batches for a language model that keeps its state: row `b` of a batch continues row `b` of the batch before.

    The text is cut into as many equal parts as a batch has rows; the rest at its end is not used.

    Args:
      ids: `[n]`, the text.
      batch: Rows of a batch.
      steps: Words of a row in a batch.
      seed: The seed of the seeds in the batches.

    Raises:
      SettingsError: If `batch` or `steps` is below 1.
      DataError: If the text is too short for one batch.
    """

    ids: Int[np.ndarray, " n"] = field(repr=False)
    batch: int = 128
    steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one("Contiguous", batch=self.batch, steps=self.steps)
        if not len(self):
            raise DataError(
                "Contiguous",
                f"more than {self.batch} × {self.steps} words, a batch",
                f"{len(self.ids)}",
                "Give a longer text, or a smaller batch.",
            )

    def __len__(self) -> int:
        return (len(self.ids) - 1) // (self.batch * self.steps)

    def epoch(
        self,
        number: int = 0,
    ) -> Iterator[dict[str, np.ndarray]]:
        """The batches from the text's beginning to its end.

        Args:
          number: Which epoch: each has seeds of its own.

        Yields:
          `inputs` and `targets`, each `[batch, steps]` int32, where a target is the word after the input; `sample_seed` `[batch]` uint32,
          the same in all rows; `dropout_seed` `[batch]` uint32, different in each row.
        """
        rng = np.random.default_rng([self.seed, number])
        rows = np.arange(self.batch)[:, None] * (len(self) * self.steps) + np.arange(self.steps)
        for i in range(len(self)):
            places = rows + i * self.steps
            yield {
                "inputs": self.ids[places],
                "targets": self.ids[places + 1],
                "sample_seed": np.full(
                    self.batch,
                    rng.integers(1 << 32),
                    np.uint32,
                ),
                "dropout_seed": rng.integers(1 << 32, size=self.batch, dtype=np.uint32),
            }
