"""Word vectors as text, one word a line: `word 0.1 -0.2 ...` (GloVe, Pennington et al. 2014).

word2vec's text format can be read, too; its first line counts words and features.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from experiments.data.readers.lines import read_lines

SOURCE = "https://nlp.stanford.edu/projects/glove/ (glove.840B.300d.zip)"
BRACKETS = {"(": "-LRB-", ")": "-RRB-"}
"""Treebanks' names of words that GloVe has as they are; a name's own vector, if there is one, comes first."""

_MOST_PARTS = 16
"""Words with spaces have fewer parts than that; a line with more has lost line ends."""


def table(
    path: str | os.PathLike[str],
    vocabulary: Sequence[str],
    features: int,
) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a table with a row for each word: its vector, or uniform within 0.05 if the file has none.

    Args:
      path: The file; only the vocabulary's words are kept, so it may be large.
      vocabulary: The words.
      features: Length of a vector.

    Returns:
      `init(key)`: the table `[words, features]`, float32.

    Raises:
      DataError: If the file can't be read, a line has another number of values, or one of a word that is kept is no finite number; names
        the line. Or if the file's first line counts its words, and it has another number of them.
    """
    rows = _read(
        path,
        {word: i for i, word in enumerate(vocabulary)},
        features,
    )
    if not rows:
        raise DataError(
            f"file {path}",
            "vectors of the vocabulary's words",
            "none of them",
            "Check that it is of the same language.",
        )
    places = np.array(list(rows))
    known = np.stack(list(rows.values()))

    def make(key: jax.Array) -> jax.Array:
        start = jax.random.uniform(
            key,
            (len(vocabulary), features),
            jnp.float32,
            -0.05,
            0.05,
        )
        return start.at[places].set(known)

    return make


def _read(
    path: str | os.PathLike[str],
    numbers: dict[str, int],
    features: int,
) -> dict[int, np.ndarray]:
    """The vectors of the words that have numbers, by number."""
    rows: dict[int, np.ndarray] = {}
    others: dict[int, np.ndarray] = {}
    claimed = None
    n_words = 0
    for line, text in enumerate(read_lines(path, f"Get a file from {SOURCE}."), 1):
        word, *values = text.rstrip(" ").split(" ")
        if line == 1 and len(values) == 1:  # word2vec's header: how many words, and their features
            claimed = int(word) if word.isascii() and word.isdigit() else None
            continue
        if not word and not values:
            continue
        n_words += 1
        if features < len(values) < features + _MOST_PARTS and word not in numbers:
            # a few of GloVe's hold spaces
            word = " ".join([word, *values[:-features]])
            values = values[-features:]
        if len(values) != features:
            raise DataError(
                f"file {path}, line {line}",
                f"a word and {features} values",
                f"{len(values)} values",
                "Choose the file with vectors of this length, or set the embedding's features to it.",
            )
        if word in numbers:
            rows[numbers[word]] = _vector(path, line, values)
        elif (name := BRACKETS.get(word)) in numbers:
            others[numbers[name]] = _vector(path, line, values)
    if claimed not in (None, n_words):
        fix = f"The file was cut off: get one from {SOURCE}."
        raise DataError(
            f"file {path}, line 1", f"a count of the file's words, {n_words}", f"{claimed}", fix
        )
    return others | rows


def _vector(
    path: str | os.PathLike[str],
    line: int,
    values: Sequence[str],
) -> np.ndarray:
    vector = np.array([_number(value) for value in values])
    wrong = np.flatnonzero(~(np.abs(vector) <= np.finfo(np.float32).max))
    if len(wrong):
        fix = f"The file is damaged: get one from {SOURCE}."
        raise DataError(f"file {path}, line {line}", "finite numbers", repr(values[wrong[0]]), fix)
    return vector.astype(np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
