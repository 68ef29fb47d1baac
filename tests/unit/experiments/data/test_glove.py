"""Word vectors from text files."""

from pathlib import Path

import jax
import numpy as np
import pytest

from ampjax.errors import DataError
from experiments.data import glove

WORDS = ["<unknown>", "cat", "dog"]


def write(folder: Path, text: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_words_get_their_vectors_and_others_start_at_random(tmp_path: Path) -> None:
    path = write(
        tmp_path, "3 2\ndog 1 2\n. . . 5 6\ncow 3 4\n"
    )  # word2vec's header; a word with spaces
    table = np.asarray(
        glove.table(
            path,
            WORDS,
            2,
        )(jax.random.key(0))
    )
    assert table[2].tolist() == [1, 2]
    assert (np.abs(table[:2]) <= 0.05).all()
    assert table[:2].any()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("cat 1 2\ndog 1 2 3\n", "line 2: expected a word and 2 values, got 3 values"),
        ("cat 1 x\n", "line 1: expected finite numbers, got 'x'"),
        ("cow 1 2\ncat nan 2\n", "line 2: expected finite numbers, got 'nan'"),
        ("cat 1 1e99\n", "line 1: expected finite numbers, got '1e99'"),
        ("cow 1 2\n", "expected vectors of the vocabulary's words, got none of them"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=match) as error:
        glove.table(write(tmp_path, text), WORDS, 2)
    assert str(error.value).count("expected") == 1, "one error, not one inside another"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: expected a readable file"):
        glove.table(tmp_path / "none.txt", WORDS, 2)


def test_empty_lines_are_passed_over_and_brackets_count_for_their_names(tmp_path: Path) -> None:
    path = write(tmp_path, "( 1 2\n\n) 3 4\n-RRB- 5 6\n\n")
    table = np.asarray(
        glove.table(
            path,
            ["<unknown>", "-LRB-", "-RRB-"],
            2,
        )(jax.random.key(0))
    )
    assert table[1:].tolist() == [[1, 2], [5, 6]]
