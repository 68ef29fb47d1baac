r"""The Stanford Sentiment Treebank (Socher et al. 2013): binary trees of words, a sentiment label from 0 to 4 on every node.

One tree a line, `(3 (2 It) (4 (4 (2 's) ...))`. Words are kept as they are, cased, but for backslashes (`\/`, `\*`), which are left out as
in TensorFlow Fold's reader; fields are separated by the ASCII space only, since some words hold a no-break space.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.combinators.structures import Ragged, Stacked, Tree
from ampjax.ir.instances import Messages
from experiments.data.readers.data_checks import at_least_one
from experiments.data.readers.data_files import Remote, find
from experiments.data.readers.lines import read_lines

N_CLASSES = 5
UNKNOWN = 0
"""The id of words that the vocabulary does not hold."""

SOURCE = "https://nlp.stanford.edu/sentiment/ (trainDevTestTrees_PTB.zip)"
_FIX = f"The file is damaged, or no treebank: get it from {SOURCE}."
FILES = {split: Remote("sst", f"{split}.txt", source=SOURCE) for split in ("train", "dev")}
LEFT = 0
RIGHT = 1
ROOT = 2


@dataclass(frozen=True)
class Trees:
    """Trees as columns. The nodes of a tree are consecutive, children before parents, so its root is last.

    Args:
      ptr: `[n + 1]`: tree `i` has the nodes `ptr[i] ... ptr[i + 1] - 1`.
      words: `[nodes]`: the word of a leaf, by its number in `vocabulary`; -1 for branches.
      labels: `[nodes]` int32, 0 to 4.
      parents: `[nodes]`: the parent's number within the tree; -1 for roots.
      sides: `[nodes]`: 0 for a left child, 1 for a right one, 2 for a root.
      vocabulary: The words; the first stands for all unknown ones.
    """

    ptr: np.ndarray
    words: np.ndarray
    labels: np.ndarray
    parents: np.ndarray
    sides: np.ndarray
    vocabulary: Sequence[str]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @property
    def n_nodes(self) -> int:
        """Nodes of all trees."""
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Trees({len(self)} trees, {self.n_nodes} nodes, {len(self.vocabulary)} words)"


def load(
    data_dir: str | os.PathLike[str] | None = None,
    min_count: int = 1,
) -> tuple[Trees, Trees]:
    """Loads the training and the development trees.

    Args:
      data_dir: The folder with `train.txt` and `dev.txt` (or with a folder `sst` that holds them); else `AMPJAX_DATA`.
      min_count: Words seen fewer times in training are unknown.

    Returns:
      `(train, valid)`, with the words of the training trees as their vocabulary.

    Raises:
      DataError: If a file is missing or holds something else than such trees; names file, line and column.
    """
    train, valid = (_Parsed(find(FILES[split], data_dir)) for split in ("train", "dev"))
    counts = Counter(train.words)
    counts.pop("", None)
    vocabulary = [
        "<unknown>",
        *(word for word, count in counts.items() if count >= min_count),
    ]
    return train.trees(vocabulary), valid.trees(vocabulary)


def read_trees(
    path: str | os.PathLike[str],
    vocabulary: Sequence[str] | None = None,
) -> Trees:
    """Reads the trees of one file.

    Args:
      path: The file.
      vocabulary: The words that get numbers; None for those of the file itself.

    Returns:
      The trees.

    Raises:
      DataError: As `load`.
    """
    parsed = _Parsed(Path(path))
    words = [
        "<unknown>",
        *dict.fromkeys(word for word in parsed.words if word),
    ]
    return parsed.trees(words if vocabulary is None else vocabulary)


def synthetic(
    n_train: int = 1000,
    n_valid: int = 200,
    seed: int = 0,
) -> tuple[Trees, Trees]:
    """Draws trees of random shape whose labels follow from their words: a twin for runs without data.

    Half of the 100 words carry a sentiment from -2 to 2; words like `not` on the left reverse a phrase's sentiment. A node's label is
    the clipped sum of its children's sentiments.

    Args:
      n_train: Training trees.
      n_valid: Validation trees.
      seed: Same seed, same trees.

    Returns:
      Training and validation trees.

    Raises:
      SettingsError: If a count is below 1.
    """
    at_least_one("synthetic", n_train=n_train, n_valid=n_valid)
    streams = np.random.SeedSequence(seed).spawn(2)
    return tuple(
        _draw(n, np.random.default_rng(s)) for n, s in zip((n_train, n_valid), streams, strict=True)
    )  # type: ignore[return-value]


@dataclass(frozen=True)
class TreeInstances:
    """Instances of one tree each (`ampjax.ir.instances.Instances`).

    A message's state says where it goes: `at` is the node that it belongs to, `up` that node's parent (-1 at the root), `side` whether it
    is the left (0) or the right (1) child of the parent, or the root (2).

    Pumps, all with these fields: `words`, shape `()` int32, one message for each leaf; `branches`, shape `()` int32 (zeros that are not
    used), one for each branch; `labels`, shape `(2,)` int32, one for each node: its label, and 1 for a root or else 0.

    Args:
      data: The trees.
    """

    data: Trees

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the trees `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        ids = np.asarray(ids, np.int64)
        first = self.data.ptr[ids]
        sizes = np.diff(self.data.ptr)[ids]
        instance = np.repeat(np.arange(len(ids)), sizes)
        at = np.arange(len(instance)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        nodes = first[instance] + at
        words = self.data.words[nodes].astype(np.int32)
        labels = np.stack([self.data.labels[nodes], self.data.sides[nodes] == ROOT], axis=1).astype(
            np.int32
        )

        def messages(payload: np.ndarray, chosen: np.ndarray) -> Messages:
            own = nodes[chosen]
            fields = {
                "at": at[chosen],
                "up": self.data.parents[own],
                "side": self.data.sides[own],
            }
            return Messages(payload[chosen], instance[chosen], fields)

        return {
            "words": messages(words, np.flatnonzero(words >= 0)),
            "branches": messages(np.zeros_like(words), np.flatnonzero(words < 0)),
            "labels": messages(labels, np.arange(len(nodes))),
        }


def plain(data: Trees) -> Stacked:
    """Makes the instances of `experiments.models.tree_lstm`.

    Args:
      data: The trees.

    Returns:
      Instances with a `tree`, whose nodes' values are `word` (-1 for branches) and `label`, int32.
    """
    sizes = np.diff(data.ptr)
    columns = []
    for column in (data.parents, data.sides % ROOT, data.words):
        columns.append(Ragged(column.astype(np.int32), sizes))
    parent, side, word = columns
    return Stacked(
        {"tree": Tree(parent, side, {"word": word, "label": Ragged(data.labels, sizes)})}
    )


class _Parsed:
    """A file's trees, with their words as text: an empty one for branches."""

    def __init__(self, path: Path):
        self.path = path
        self.words: list[str] = []
        self.labels: list[int] = []
        self.parents: list[int] = []
        self.sides: list[int] = []
        self.ptr = [0]
        for self.line, text in enumerate(read_lines(path, _FIX), 1):
            if text.strip(" "):
                self._tree(text)
        if len(self.ptr) == 1:
            raise DataError(f"file {path}", "at least one tree", "none", f"Get it from {SOURCE}.")

    def trees(self, vocabulary: Sequence[str]) -> Trees:
        """With words numbered by a vocabulary."""
        number = {word: i for i, word in enumerate(vocabulary)}
        words = []
        for word in self.words:
            words.append(number.get(word, UNKNOWN) if word else -1)
        return Trees(
            np.array(self.ptr),
            np.array(words),
            np.array(self.labels, np.int32),
            np.array(self.parents),
            np.array(self.sides),
            tuple(vocabulary),
        )

    def _tree(self, text: str) -> None:
        """Reads one line without recursion, however deep the tree; nodes are numbered when they close."""
        start = len(self.words)
        open_: list[
            tuple[int, list[int]]
        ] = []  # label and children of each node that is still open
        i = 0
        while i < len(text):
            symbol = text[i]
            if symbol == " ":
                i += 1
            elif symbol == "(":
                if len(self.words) > start and not open_:
                    raise self._foreign(i, "the end of the line after the tree", "another tree")
                if open_ and len(open_[-1][1]) == 2:
                    raise self._foreign(i, "binary trees", "a third child")
                label = text[i + 1 : i + 2]
                if label not in tuple("01234") or text[i + 2 : i + 3] != " ":
                    raise self._foreign(
                        i + 1, "a label from 0 to 4 and a space", repr(text[i + 1 : i + 3])
                    )
                open_.append((int(label), []))
                i += 3
            elif symbol == ")":
                if not open_:
                    raise self._foreign(i, "the end of the line after the tree", "another `)`")
                if len(open_[-1][1]) != 2:
                    raise self._foreign(
                        i, "a word or two children", f"{len(open_[-1][1])} children"
                    )
                self._close(start, *open_.pop(), "", open_)
                i += 1
            else:
                end = text.find(")", i)
                word = text[i:end]
                if not open_ or open_[-1][1] or end < 0 or " " in word or "(" in word:
                    raise self._foreign(
                        i,
                        "`(`, `)` or a leaf's one word",
                        repr(text[i : i + 20]),
                    )
                self._close(
                    start,
                    *open_.pop(),
                    word.replace("\\", ""),
                    open_,
                )
                i = end + 1
        if open_ or len(self.words) == start:
            raise self._foreign(
                len(text), f"{len(open_)} more `)`" if open_ else "a tree", "the line's end"
            )
        self.sides[-1] = ROOT
        self.ptr.append(len(self.words))

    def _close(
        self,
        start: int,
        label: int,
        children: list[int],
        word: str,
        open_: list[tuple[int, list[int]]],
    ) -> None:
        number = len(self.words) - start
        for side, child in enumerate(children):
            self.parents[start + child] = number
            self.sides[start + child] = side
        self.words.append(word)
        self.labels.append(label)
        self.parents.append(-1)
        self.sides.append(ROOT)
        if open_:
            open_[-1][1].append(number)

    def _foreign(self, column: int, expected: str, got: str) -> DataError:
        return DataError(
            f"file {self.path}, line {self.line}, column {column + 1}", expected, got, _FIX
        )


_SENTIMENTS = np.concatenate([np.arange(50) % 5 - 2, np.zeros(40, np.int64)])
_N_TURNERS = 10


def _draw(n: int, rng: np.random.Generator) -> Trees:
    vocabulary = (
        "<unknown>",
        *(f"word{i}" for i in range(len(_SENTIMENTS))),
        *(f"not{i}" for i in range(_N_TURNERS)),
    )
    words: list[int] = []
    labels: list[int] = []
    parents: list[int] = []
    sides: list[int] = []
    ptr = [0]
    for _ in range(n):
        start = len(words)
        roots: list[
            tuple[int, int, bool]
        ] = []  # number, sentiment, whether it turns its right neighbour around
        for _ in range(int(rng.integers(1, 20))):
            word = int(rng.integers(1, len(vocabulary)))
            turns = word > len(_SENTIMENTS)
            if turns:
                sentiment = 0
            else:
                sentiment = int(_SENTIMENTS[word - 1])
            roots.append((len(words) - start, sentiment, turns))
            words.append(word)
            labels.append(sentiment + 2)
            parents.append(-1)
            sides.append(ROOT)
        while len(roots) > 1:
            i = int(rng.integers(0, len(roots) - 1))
            left, a, turns = roots[i]
            right, b, _ = roots[i + 1]
            sentiment = int(np.clip(-b if turns else a + b, -2, 2))
            number = len(words) - start
            for side, child in enumerate((left, right)):
                parents[start + child] = number
                sides[start + child] = side
            roots[i : i + 2] = [(number, sentiment, False)]
            words.append(-1)
            labels.append(sentiment + 2)
            parents.append(-1)
            sides.append(ROOT)
        ptr.append(len(words))
    return Trees(
        np.array(ptr),
        np.array(words),
        np.array(labels, np.int32),
        np.array(parents),
        np.array(sides),
        vocabulary,
    )
