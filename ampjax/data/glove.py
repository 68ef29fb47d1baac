"""Word vectors as text, one word a line: `word 0.1 -0.2 ...` (GloVe, Pennington et al. 2014; also word2vec's text format, whose first line counts)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError

SOURCE = "https://nlp.stanford.edu/projects/glove/ (glove.840B.300d.zip)"


def table(path: str | os.PathLike[str], vocabulary: Sequence[str], features: int) -> Callable[[jax.Array], jax.Array]:
    """From a PRNG key to a table with a row for each word: its vector, or uniform within 0.05 where the file has none.

    Args:
      path: The file; only the vocabulary's words are kept, so it may be large.
      vocabulary: The words.
      features: Length of a vector.

    Raises:
      DataError: If the file can't be read, a line has another number of values, or one is no number; names the line.
    """
    wanted = {word: i for i, word in enumerate(vocabulary)}
    rows: dict[int, np.ndarray] = {}
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                word, *values = line.rstrip("\r\n ").split(" ")
                if number == 1 and len(values) == 1:
                    continue  # word2vec's header: how many words, and their features
                if len(values) != features and word not in wanted:
                    word = " ".join([word, *values[: len(values) - features]])  # a few of GloVe's words hold spaces
                    values = values[-features:]
                if len(values) != features:
                    raise DataError(
                        f"file {path}, line {number}",
                        f"a word and {features} values",
                        f"{len(values)} values",
                        "Choose the file with vectors of this length, or set the embedding's features to it.",
                    )
                if word in wanted:
                    rows[wanted[word]] = np.array(values, np.float32)
    except (OSError, ValueError) as error:
        raise DataError(
            f"file {path}", "word vectors as UTF-8 text", f"{error}", f"Get a file from {SOURCE}."
        ) from error
    if not rows:
        raise DataError(
            f"file {path}",
            "vectors of the vocabulary's words",
            "none of them",
            "Check that it is of the same language.",
        )
    places, known = np.array(list(rows)), np.stack(list(rows.values()))

    def make(key: jax.Array) -> jax.Array:
        start = jax.random.uniform(key, (len(vocabulary), features), jnp.float32, -0.05, 0.05)
        return start.at[places].set(known)

    return make
