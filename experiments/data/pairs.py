"""Pairs of sentences for translation: columns, and batches of pairs of about the same length.

A batch is padded to the width of its bucket, so there are as many shapes, and compilations, as buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from ampjax.errors import DataError
from ampjax.frontend.combinators.structures import Ragged, Stacked
from experiments.data.readers.data_checks import at_least_one
from experiments.data.text import END, START


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences as columns.

    Args:
      ptr: `[n + 1]`: sentence `i` has the words `ptr[i] ... ptr[i + 1] - 1`.
      words: `[words]` int32, numbers in a vocabulary.

    Raises:
      DataError: If `ptr` does not rise from 0 to the number of words.
    """

    ptr: Int[np.ndarray, " n1"]
    words: Int[np.ndarray, " w"]

    def __post_init__(self) -> None:
        if self.ptr[0] != 0 or self.ptr[-1] != len(self.words) or (np.diff(self.ptr) < 0).any():
            raise DataError(
                "Sentences",
                f"pointers that rise from 0 to {len(self.words)}",
                f"pointers from {self.ptr[0]} to {self.ptr[-1]}",
                "Make them with `Sentences.of`.",
            )

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> Sentences:
        """Makes columns from lists of numbers.

        Args:
          sentences: For each sentence, the numbers of its words.

        Returns:
          The sentences as columns.
        """
        ptr = np.cumsum([0, *map(len, sentences)])
        return cls(
            ptr,
            np.fromiter(
                (i for words in sentences for i in words),
                np.int32,
                int(ptr[-1]),
            ),
        )

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.words[self.ptr[i] : self.ptr[i + 1]]

    def framed(self) -> tuple[Ragged, Ragged]:
        """Gives what a model reads and what it is to tell: the sentences after `START`, and before `END`.

        Returns:
          Two sequences of sentences, each a word longer than those here.
        """
        sizes = self.lengths + 1
        before = np.insert(
            self.words,
            self.ptr[:-1],
            START,
        )
        behind = np.insert(self.words, self.ptr[1:], END)
        return Ragged(before, sizes), Ragged(behind, sizes)

    @property
    def lengths(self) -> np.ndarray:
        """`[n]`, each sentence's words."""
        return np.diff(self.ptr)

    def padded(self, ids: np.ndarray, width: int) -> np.ndarray:
        """Gives some sentences as rows of one width, filled up with `END`.

        Args:
          ids: `[m]`: which sentences; -1 for one without words.
          width: Words of a row.

        Returns:
          `[m, width]` int32.
        """
        rows = np.full(
            (len(ids), width),
            END,
            np.int32,
        )
        for row, i in zip(rows, ids, strict=True):
            if i >= 0:
                row[: self.lengths[i]] = self[i]
        return rows


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Sentences and their translations.

    Args:
      source: Sentences of the source language.
      target: As many sentences of the target language.

    Raises:
      DataError: If they are not equally many.
    """

    source: Sentences
    target: Sentences

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise DataError(
                "Pairs",
                "as many sources as targets",
                f"{len(self.source)} and {len(self.target)}",
                "Let line i of one file be the translation of line i of the other.",
            )

    def __len__(self) -> int:
        return len(self.source)

    def first(self, n: int) -> Pairs:
        """Gives the first pairs.

        Args:
          n: How many; all, if there are fewer.

        Returns:
          The pairs.
        """
        return self._those(np.arange(min(n, len(self))))

    def up_to(self, max_length: int) -> Pairs:
        """Gives those pairs of which both sentences have some words, and not too many.

        Args:
          max_length: The most words of a sentence.

        Returns:
          The pairs, in their order.
        """
        lengths = np.stack([self.source.lengths, self.target.lengths])
        return self._those(np.flatnonzero((lengths.max(0) <= max_length) & (lengths.min(0) > 0)))

    def _those(self, ids: np.ndarray) -> Pairs:
        return Pairs(
            *(Sentences.of([side[i].tolist() for i in ids]) for side in (self.source, self.target))
        )

    def __repr__(self) -> str:
        return (
            f"Pairs({len(self)} pairs, {len(self.source.words)} and {len(self.target.words)} words)"
        )


@dataclass(frozen=True)
class PairBatches:
    """Batches of pairs that fall into the same bucket by the longer sentence of a pair.

    Pairs with a sentence longer than `max_length` are left out, and so are those with an empty one. A bucket's last batch is filled up
    with rows of length 0 whose `pair` is -1: a loss over words does not see them.

    Args:
      pairs: The pairs.
      batch: Rows of a batch.
      max_length: The most words of a sentence.
      n_buckets: Buckets, equally wide.
      seed: Of the order and of the seeds in the batches.

    Raises:
      SettingsError: If a count is below 1.
      DataError: If no pair is short enough.
    """

    pairs: Pairs
    batch: int = 128
    max_length: int = 50
    n_buckets: int = 5
    seed: int = 0
    _buckets: Sequence[tuple[int, np.ndarray]] = field(
        init=False,
        repr=False,
    )

    def __post_init__(self) -> None:
        at_least_one(
            "PairBatches", batch=self.batch, max_length=self.max_length, n_buckets=self.n_buckets
        )
        lengths = np.stack([self.pairs.source.lengths, self.pairs.target.lengths])
        step = -(-self.max_length // self.n_buckets)
        bucket = (lengths.max(0) - 1) // step
        bucket[(lengths.max(0) > self.max_length) | (lengths.min(0) == 0)] = -1
        widths = ((i, min((i + 1) * step, self.max_length)) for i in range(self.n_buckets))
        members = [(width, np.flatnonzero(bucket == i)) for i, width in widths]
        object.__setattr__(
            self,
            "_buckets",
            [(width, ids) for width, ids in members if len(ids)],
        )
        if not self._buckets:
            raise DataError(
                "PairBatches",
                f"a pair of 1 to {self.max_length} words on both sides",
                "none",
                "Raise `max_length`, or give other pairs.",
            )

    def __len__(self) -> int:
        return sum(-(-len(ids) // self.batch) for _, ids in self._buckets)

    @property
    def n_pairs(self) -> int:
        """The number of pairs in an epoch, without those that are left out."""
        return sum(len(ids) for _, ids in self._buckets)

    def epoch(
        self,
        number: int = 0,
    ) -> Iterator[dict[str, np.ndarray]]:
        """All batches, in a random order of an epoch's own.

        Args:
          number: Which epoch.

        Yields:
          `source` `[batch, width]`, `target_in` and `target_out` `[batch, width + 1]`, `source_length`, `target_length` and `pair`
          `[batch]`, all int32: what `experiments.models.nmt` takes, and the pairs' places. `dropout_seed` `[batch]` uint32.
        """
        rng = np.random.default_rng([self.seed, number])
        batches = [
            (width, ids)
            for width, members in self._buckets
            for ids in self._cut(rng.permutation(members))
        ]
        for i in rng.permutation(len(batches)):
            width, ids = batches[i]
            yield self.gather(ids, width) | {
                "dropout_seed": rng.integers(1 << 32, size=self.batch, dtype=np.uint32)
            }

    def gather(
        self,
        ids: np.ndarray,
        width: int,
    ) -> dict[str, np.ndarray]:
        """One batch without seeds.

        Args:
          ids: Places of pairs, -1 for empty rows.
          width: Words of its longest sentence at most.

        Returns:
          Int32 arrays by name: `source` `[n, width]`, `target_in` and `target_out` `[n, width + 1]`, both lengths and `pair` `[n]`; empty rows are padding.
        """
        source = self.pairs.source
        target = self.pairs.target
        present = ids >= 0
        out = target.padded(ids, width + 1)
        return {
            "source": source.padded(ids, width),
            "source_length": np.where(present, source.lengths[ids], 0).astype(np.int32),
            "target_in": np.concatenate(
                [
                    np.full((len(ids), 1), START, np.int32),
                    out[:, :-1],
                ],
                axis=1,
            ),
            "target_out": out,
            "target_length": np.where(present, target.lengths[ids] + 1, 0).astype(np.int32),
            "pair": ids.astype(np.int32),
        }

    def _cut(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([ids, np.full(-len(ids) % self.batch, -1)]).reshape(
            -1,
            self.batch,
        )


def plain(pairs: Pairs) -> Stacked:
    """Instances of one pair each, for `experiments.models.functions.translation_function`.

    Args:
      pairs: The pairs.

    Returns:
      Instances with `source` `[s]`, `target_in` and `target_out` `[t]`, int32.
    """
    before, behind = pairs.target.framed()
    source = Ragged(pairs.source.words, pairs.source.lengths)
    return Stacked({"source": source, "target_in": before, "target_out": behind})


def plain_sentences(sentences: Sentences) -> Stacked:
    """Instances of one sentence each, for `experiments.models.functions.language_model_function`.

    Args:
      sentences: The sentences.

    Returns:
      Instances with `inputs` and `targets` `[w]`, int32.
    """
    before, behind = sentences.framed()
    return Stacked({"inputs": before, "targets": behind})
