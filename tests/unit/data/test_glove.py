"""Word vectors from text files."""

from pathlib import Path

import jax
import numpy as np
import pytest

from ampjax.data import glove
from ampjax.errors import DataError

WORDS = ["<unknown>", "cat", "dog"]


def write(folder: Path, text: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_words_get_their_vectors_and_others_start_at_random(tmp_path: Path) -> None:
    path = write(tmp_path, "3 2\ndog 1 2\n. . . 5 6\ncow 3 4\n")  # word2vec's header; a word with spaces
    table = np.asarray(glove.table(path, WORDS, 2)(jax.random.key(0)))
    assert table[2].tolist() == [1, 2]
    assert (np.abs(table[:2]) <= 0.05).all() and table[:2].any()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("cat 1 2\ndog 1 2 3\n", "line 2: expected a word and 2 values, got 3 values"),
        ("cat 1 x\n", "expected word vectors as UTF-8 text, got could not convert"),
        ("cow 1 2\n", "expected vectors of the vocabulary's words, got none of them"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        glove.table(write(tmp_path, text), WORDS, 2)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected word vectors"):
        glove.table(tmp_path / "none.txt", WORDS, 2)
