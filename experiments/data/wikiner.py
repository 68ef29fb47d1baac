"""WikiNER, English (Nothman et al. 2013; AMPNet's B.5 takes it from DyNet's benchmark): sentences with a named-entity tag on every word.

One sentence a line, `word|TAG` separated by ASCII spaces; a token is split at its last `|`. Tags are IOB1: `B-` only stands where an entity
follows another one of its kind. Words seen more than 5 times in training are *frequent* and have a number; all others, those never seen
included, are *rare*: they are spelled, `<*>` before and after.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.combinators.structures import Ragged, Stacked
from ampjax.ir.instances import Messages
from experiments.data.readers.data_checks import at_least_one
from experiments.data.readers.data_files import Remote, find
from experiments.data.readers.lines import read_lines

TAGS = (
    "O",
    "I-LOC",
    "I-MISC",
    "I-ORG",
    "I-PER",
    "B-LOC",
    "B-MISC",
    "B-ORG",
    "B-PER",
)
N_TAGS = len(TAGS)
OUTSIDE = 0
"""The number of the tag `O`: outside of entities."""
RARE = -1
"""The number of words that are spelled."""
UNKNOWN = 0
BOUNDARY = 1
"""The numbers of characters that training words don't have, and of `<*>`."""
FREQUENT_ABOVE = 5
MOST_WORDS = 500
MOST_ENDS = 16
"""Words of a sentence at most, and how many of them may end one; the corpus has up to 144, and 3 of these."""

SOURCE = "https://github.com/neubig/nn4nlp-code (data/tags)"
FILES = {split: Remote("wikiner_en", f"{split}.txt", source=SOURCE) for split in ("train", "dev")}


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Words and characters of training sentences.

    Args:
      counts: How often each word was seen.
      more_than: Words that were seen more often than this are frequent.
    """

    counts: Mapping[str, int]
    more_than: int = FREQUENT_ABOVE
    words: Sequence[str] = field(init=False)
    """The frequent words; a word's number is its place."""
    characters: Sequence[str] = field(init=False)
    """The characters of all words; the first stands for all unknown ones, the second is `<*>`."""

    def __post_init__(self) -> None:
        words = tuple(word for word, count in self.counts.items() if count > self.more_than)
        characters = (
            "<unknown>",
            "<*>",
            *sorted(set().union(*self.counts)),
        )
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "characters", characters)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.counts)} words, {len(self.words)} of them frequent, {len(self.characters)} characters)"


@dataclass(frozen=True)
class Sentences:
    """Tagged sentences as columns.

    Args:
      ptr: `[n + 1]`: sentence `i` has the words `ptr[i] ... ptr[i + 1] - 1`, at least one.
      words: `[words]`: the number of a frequent word in `vocabulary`; -1 for rare ones.
      tags: `[words]` int32: numbers in `TAGS`.
      char_ptr: `[words + 1]`: word `j` is spelled with the characters `char_ptr[j] ... char_ptr[j + 1] - 1`, none for a frequent word.
      characters: `[characters]` int32: numbers in `vocabulary`.
      vocabulary: The vocabulary of the training sentences.

    Raises:
      DataError: If the columns do not fit each other, a sentence has no words, or a word is neither frequent nor spelled, or both.
    """

    ptr: np.ndarray
    words: np.ndarray
    tags: np.ndarray
    char_ptr: np.ndarray
    characters: np.ndarray
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        n = len(self.words)
        ends = (
            int(self.ptr[-1]),
            int(self.char_ptr[-1]),
        )
        if len(self.tags) != n or len(self.char_ptr) != n + 1 or ends != (n, len(self.characters)):
            raise DataError(
                "Sentences",
                f"{n} words with as many tags and spellings",
                f"{len(self.tags)} tags, {len(self.char_ptr) - 1} spellings, pointers that end at {ends}",
                "Let the columns fit each other.",
            )
        if (np.diff(self.ptr) < 1).any() or (
            (self.words < 0) != (np.diff(self.char_ptr) > 0)
        ).any():
            raise DataError(
                "Sentences",
                "at least one word in each sentence, and characters for each rare word and no other",
                "something else",
                "Leave empty sentences out, and spell the words whose number is -1.",
            )

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __repr__(self) -> str:
        return f"Sentences({len(self)} sentences, {len(self.words)} words, {int((self.words < 0).sum())} of them rare)"


def load(
    data_dir: str | os.PathLike[str] | None = None,
    n_train: int | None = None,
    n_valid: int | None = None,
) -> tuple[Sentences, Sentences]:
    """Loads the training and the development sentences.

    Args:
      data_dir: The folder with `train.txt` and `dev.txt` (or with a folder `wikiner_en` that holds them); else `AMPJAX_DATA`.
      n_train: The number of training sentences, taken from the beginning; they alone make the vocabulary.
      n_valid: The number of development sentences, taken from the beginning.

    Returns:
      `(train, valid)`, with the vocabulary of the training sentences.

    Raises:
      SettingsError: If a number is below 1.
      DataError: If a file is missing or holds something else than such sentences; names file, line and column.
    """
    given = {"n_train": n_train, "n_valid": n_valid}
    at_least_one(
        "wikiner.load",
        **{name: n for name, n in given.items() if n is not None},
    )
    train, valid = (_read(find(FILES[split], data_dir)) for split in ("train", "dev"))
    return _numbered(train[:n_train], valid[:n_valid])


def read_sentences(
    path: str | os.PathLike[str],
    vocabulary: Vocabulary | None = None,
) -> Sentences:
    """Reads the sentences of one file.

    Args:
      path: The file.
      vocabulary: The words that get numbers; None for those of the file itself.

    Returns:
      The sentences as columns.

    Raises:
      DataError: As `load`.
    """
    text = _read(Path(path))
    return _columns(
        text,
        Vocabulary(Counter(_words(text))) if vocabulary is None else vocabulary,
    )


def synthetic(
    n_train: int = 1000, n_valid: int = 200, seed: int = 0
) -> tuple[Sentences, Sentences]:
    """Draws sentences whose tags follow from words, neighbours and spelling: a twin for runs without data.

    A frequent name is a person after a title, else an organisation before `inc`, else a place. Rare words are random letters whose ending
    shows the tag: `ov` a person, `ia` a place, `ism` no entity. All other words are outside entities.

    Args:
      n_train: Training sentences.
      n_valid: Validation sentences.
      seed: Same seed, same sentences.

    Returns:
      Training and validation sentences.

    Raises:
      SettingsError: If a count is below 1.
    """
    at_least_one("synthetic", n_train=n_train, n_valid=n_valid)
    streams = np.random.SeedSequence(seed).spawn(2)
    return _numbered(
        *(
            _draw(n, np.random.default_rng(s))
            for n, s in zip((n_train, n_valid), streams, strict=True)
        )
    )


@dataclass(frozen=True)
class SentenceInstances:
    """Instances of one sentence each (`ampjax.ir.instances.Instances`).

    Pumps:

    * `words`, shape `()` int32, one message for each word: its number. Fields: `t`, its place in the sentence; `first` and `last`, 1 at the
      sentence's ends; `rare`, 1 if it is spelled.
    * `labels`, shape `()` int32, one message for each word: its tag. The same fields.
    * `characters`, shape `()` int32, one message for each character of a rare word, `<*>` included. Fields: `c`, its place among the
      sentence's characters; `first` and `last`, 1 at the word's ends; `t`, the word's place.

    Args:
      data: The sentences.
    """

    data: Sentences

    @property
    def sizes(self) -> np.ndarray:
        """`[n]`: the number of words in each sentence, so of steps that its LSTMs take one after the other."""
        return np.diff(self.data.ptr)

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the sentences `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        data = self.data
        ids = np.asarray(ids, np.int64)
        lengths = np.diff(data.ptr)[ids]
        instance, t = _ranges(lengths)
        words = data.ptr[ids][instance] + t
        sizes = np.diff(data.char_ptr)[words]
        word, k = _ranges(sizes)  # of each character: its word among `words`, and its place there
        spelled = instance[word]
        _, c = _ranges(np.bincount(instance[word], minlength=len(ids)))
        fields = {
            "t": t,
            "first": t == 0,
            "last": t == lengths[instance] - 1,
            "rare": data.words[words] < 0,
        }
        ends = {"first": k == 0, "last": k == sizes[word] - 1}
        return {
            "words": Messages(data.words[words].astype(np.int32), instance, fields),
            "labels": Messages(data.tags[words], instance, fields),
            "characters": Messages(
                data.characters[data.char_ptr[words][word] + k],
                spelled,
                {"t": t[word], "c": c, **ends},
            ),
        }


def plain(data: Sentences) -> Stacked:
    """Instances of one sentence each, for `experiments.models.tagger`.

    Args:
      data: The sentences.

    Returns:
      Instances with `words` `[w]`, `chars` `[w, c]` and `tags` `[w]`, int32.
    """
    sizes = np.diff(data.ptr)
    chars = Ragged(
        Ragged(data.characters, np.diff(data.char_ptr)),
        sizes,
    )
    return Stacked(
        {
            "words": Ragged(data.words.astype(np.int32), sizes),
            "chars": chars,
            "tags": Ragged(data.tags, sizes),
        }
    )


def _ranges(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`0 ... sizes[i] - 1` for each `i`, one after the other: `i` and the number, each `[sum(sizes)]`."""
    return np.repeat(np.arange(len(sizes)), sizes), np.arange(sizes.sum()) - np.repeat(
        np.cumsum(sizes) - sizes, sizes
    )


Text = list[list[tuple[str, int]]]
"""Sentences as words with the numbers of their tags."""


def _words(text: Text) -> Iterable[str]:
    return (word for sentence in text for word, _ in sentence)


def _numbered(train: Text, valid: Text) -> tuple[Sentences, Sentences]:
    vocabulary = Vocabulary(Counter(_words(train)))
    return _columns(train, vocabulary), _columns(valid, vocabulary)


def _columns(text: Text, vocabulary: Vocabulary) -> Sentences:
    number = {word: i for i, word in enumerate(vocabulary.words)}
    letter = {character: i for i, character in enumerate(vocabulary.characters)}
    spelling: dict[str, list[int]] = {}
    characters: list[int] = []
    char_ptr = [0]
    for word in _words(text):
        if word not in number:
            if word not in spelling:
                spelling[word] = [
                    BOUNDARY,
                    *(letter.get(character, UNKNOWN) for character in word),
                    BOUNDARY,
                ]
            characters += spelling[word]
        char_ptr.append(len(characters))
    return Sentences(
        np.cumsum([0, *map(len, text)]),
        np.array(
            [number.get(word, RARE) for word in _words(text)],
            np.int64,
        ),
        np.array(
            [tag for sentence in text for _, tag in sentence],
            np.int32,
        ),
        np.array(char_ptr),
        np.array(characters, np.int32),
        vocabulary,
    )


def _read(path: Path) -> Text:
    text: Text = []
    for number, line in enumerate(read_lines(path, _FIX, sentences=True), 1):
        if sentence := _sentence(path, number, line):
            text.append(sentence)
    if not text:
        raise DataError(f"file {path}", "at least one sentence", "none", f"Get it from {SOURCE}.")
    return text


_FIX = f"The file is damaged, or no WikiNER: get it from {SOURCE}."
_TOKEN = re.compile("[^ ]+")
_NUMBER = {tag: i for i, tag in enumerate(TAGS)}
_JOINED = re.compile(r"\|(O|[IB]-(LOC|MISC|ORG|PER))")
"""A tag with the next line's first word behind it."""
_ENDS = frozenset(".?!")


def _sentence(
    path: Path,
    line: int,
    text: str,
) -> list[tuple[str, int]]:
    """Reads one line."""

    def foreign(column: int, expected: str, got: str) -> DataError:
        return DataError(f"file {path}, line {line}, column {column + 1}", expected, got, _FIX)

    sentence = []
    for token in _TOKEN.finditer(text):
        word, _, tag = token[0].rpartition("|")
        if not word or "\t" in word:  # a tab between tokens would make one long word of them
            raise foreign(token.start(), "`word|TAG`", repr(token[0]))
        if tag not in _NUMBER:
            raise foreign(
                token.start() + len(word) + 1, f"one of the tags {', '.join(TAGS)}", repr(tag)
            )
        if "|" in word and _JOINED.search(word):
            raise foreign(token.start(), "a space or a line end after a tag", repr(token[0]))
        sentence.append((word, _NUMBER[tag]))
    if len(sentence) > MOST_WORDS or sum(word in _ENDS for word, _ in sentence) > MOST_ENDS:
        expected = (
            f"one sentence: at most {MOST_WORDS} words, {MOST_ENDS} of them a full stop or the like"
        )
        raise foreign(0, expected, f"{len(sentence)} words: line ends may be lost")
    return sentence


_TITLES, _NAMES, _OTHERS = (
    [f"{kind}{i}" for i in range(n)] for kind, n in (("title", 5), ("name", 30), ("word", 40))
)
_ENDINGS = {
    "ov": _NUMBER["I-PER"],
    "ia": _NUMBER["I-LOC"],
    "ism": OUTSIDE,
}


def _draw(n: int, rng: np.random.Generator) -> Text:
    result = []
    for _ in range(n):
        result.append(_draw_sentence(int(rng.integers(1, 21)), rng))
    return result


def _draw_sentence(
    length: int,
    rng: np.random.Generator,
) -> list[tuple[str, int]]:
    kinds = rng.choice(
        5,
        length,
        p=[0.15, 0.25, 0.1, 0.35, 0.15],
    )
    words: list[str] = []
    for kind in kinds:
        if kind < 4:
            words.append(str(rng.choice((_TITLES, _NAMES, ["inc"], _OTHERS)[kind])))
        else:
            stem = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), int(rng.integers(2, 6))))
            words.append(stem + str(rng.choice(list(_ENDINGS))))
    tags = []
    for i, (word, kind) in enumerate(zip(words, kinds, strict=True)):
        tag = OUTSIDE
        if kind == 1:
            after_title = i > 0 and kinds[i - 1] == 0
            before_inc = i + 1 < length and kinds[i + 1] == 2
            tag = _NUMBER["I-PER" if after_title else "I-ORG" if before_inc else "I-LOC"]
        elif kind == 4:
            tag = next(tag for ending, tag in _ENDINGS.items() if word.endswith(ending))
        tags.append(tag)
    return list(zip(words, tags, strict=True))
