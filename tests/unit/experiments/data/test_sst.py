"""The sentiment treebank: columns of trees, messages of instances, and every way in which a file can be wrong."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError, SettingsError
from experiments.data import sst


def write(folder: Path, *lines: str) -> Path:
    path = folder / "trees.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_a_tree_as_columns(tmp_path: Path) -> None:
    trees = sst.read_trees(write(tmp_path, r"(3 (2 \*\*) (4 (1 's) (0 a\/b)))", r"(2 \*\*)"))
    assert trees.vocabulary == ("<unknown>", "**", "'s", "a/b")
    assert trees.ptr.tolist() == [0, 5, 6]
    assert trees.words.tolist() == [1, 2, 3, -1, -1, 1]
    assert trees.labels.tolist() == [2, 1, 0, 4, 3, 2]
    assert trees.parents.tolist() == [4, 3, 3, 4, -1, -1]
    assert trees.sides.tolist() == [0, 0, 1, 1, 2, 2]


def test_words_keep_what_is_no_ascii_space(tmp_path: Path) -> None:
    assert sst.read_trees(write(tmp_path, "(1 (2 a\u00a0b) (3 \u00e9t\u00e9))")).vocabulary[1:] == (
        "a\u00a0b",
        "\u00e9t\u00e9",
    )


def test_words_of_another_vocabulary_are_unknown(tmp_path: Path) -> None:
    trees = sst.read_trees(write(tmp_path, "(1 (2 a) (3 b))"), ["<unknown>", "b"])
    assert trees.words.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("line", "column", "expected", "got"),
    [
        ("(3 (2 It)", 10, "1 more `)`", "the line's end"),
        ("(3 (2 It) (4 a)))", 17, "the end of the line after the tree", "another `)`"),
        ("(3 (2 It) (4 a)) (2 b)", 18, "the end of the line after the tree", "another tree"),
        ("(7 (2 It) (4 a))", 2, "a label from 0 to 4 and a space", "'7 '"),
        ("(3 (2 It))", 10, "a word or two children", "1 children"),
        ("(3 )", 4, "a word or two children", "0 children"),
        ("(3 (2 a) (2 b) (2 c))", 16, "binary trees", "a third child"),
        ("(3 (2 a) (2 b) (2 (1 c) (1 d)))", 16, "binary trees", "a third child"),
        ("(3 a b)", 4, "`(`, `)` or a leaf's one word", "'a b)'"),
        ("(3 (2 a) b)", 10, "`(`, `)` or a leaf's one word", "'b)'"),
        ("hello", 1, "`(`, `)` or a leaf's one word", "'hello'"),
    ],
)
def test_a_damaged_tree_is_named(
    tmp_path: Path, line: str, column: int, expected: str, got: str
) -> None:
    path = write(tmp_path, "(2 fine)", line)
    with pytest.raises(DataError) as error:
        sst.read_trees(path)
    assert str(error.value).startswith(
        f"file {path}, line 2, column {column}: expected {expected}, got {got}."
    )


def test_files_that_are_missing_empty_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data set `sst`: expected the file train\.txt"):
        sst.load(tmp_path)
    with pytest.raises(DataError, match="expected at least one tree, got none"):
        sst.read_trees(write(tmp_path, "", " "))
    (tmp_path / "trees.txt").write_bytes(b"(2 fine)\n(2 \xff)")
    with pytest.raises(DataError, match="line 2, column 4: expected UTF-8, got the byte 0xff"):
        sst.read_trees(tmp_path / "trees.txt")


def test_a_deep_tree_is_read_without_recursion(tmp_path: Path) -> None:
    depth = 5000
    trees = sst.read_trees(
        write(
            tmp_path,
            "(1 (2 a) " * depth + "(2 b)" + ")" * depth,
        )
    )
    assert trees.n_nodes == 2 * depth + 1
    assert trees.parents[-1] == -1


@given(
    st.integers(0, 20),
    st.integers(1, 30),
)
def test_children_stand_before_their_parents(seed: int, n: int) -> None:
    for trees in sst.synthetic(n, 1, seed):
        for i in range(len(trees)):
            span = slice(trees.ptr[i], trees.ptr[i + 1])
            parents = trees.parents[span]
            words = trees.words[span]
            sides = trees.sides[span]
            nodes = np.arange(len(parents))
            assert (parents[:-1] > nodes[:-1]).all()
            assert parents[-1] == -1
            branches = np.flatnonzero(words < 0)
            for branch in branches:
                assert sorted(sides[parents == branch].tolist()) == [sst.LEFT, sst.RIGHT]
            assert len(nodes) == 2 * len(branches) + 1
            assert sides[-1] == sst.ROOT


def test_messages_say_where_they_go(tmp_path: Path) -> None:
    data = sst.TreeInstances(sst.read_trees(write(tmp_path, "(2 alone)", "(3 (2 a) (4 b))")))
    batch = data.gather(np.array([1, 0]))
    words = batch["words"]
    branches = batch["branches"]
    labels = batch["labels"]
    assert words.instance.tolist() == [0, 0, 1]
    assert words.payload.tolist() == [2, 3, 1]
    assert {name: list(column) for name, column in words.fields.items()} == {
        "at": [0, 1, 0],
        "up": [2, 2, -1],
        "side": [0, 1, 2],
    }
    assert branches.instance.tolist() == [0]
    assert branches.fields["at"].tolist() == [2]
    assert labels.payload.tolist() == [[2, 0], [4, 0], [3, 1], [2, 1]]


def test_synthetic_trees_come_from_their_seed() -> None:
    a = sst.synthetic(20, 5, 1)[0]
    b = sst.synthetic(20, 5, 1)[0]
    c = sst.synthetic(20, 5, 2)[0]
    assert np.array_equal(
        a.words,
        b.words,
    ) and not np.array_equal(a.words, c.words)
    assert repr(a) == f"Trees(20 trees, {a.n_nodes} nodes, 101 words)"
    with pytest.raises(SettingsError, match="n_valid"):
        sst.synthetic(3, 0)


@pytest.mark.nightly
@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real files are only read where AMPJAX_DATA names their folder",
)
@pytest.mark.slow
def test_the_real_treebank() -> None:
    train, valid = sst.load()
    assert (len(train), len(valid)) == (8544, 1101)
    assert len(train.vocabulary) == 1 + 18280
    assert (train.words >= 0).sum() / len(train) == pytest.approx(19.14, abs=0.01)
    assert np.diff(train.ptr).max() == 103
    assert len(sst.load(min_count=2)[0].vocabulary) < len(train.vocabulary)
