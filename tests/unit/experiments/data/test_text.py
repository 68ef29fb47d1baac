"""Text: vocabularies, files, and batches that go on where the one before ended."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ampjax.errors import DataError, SettingsError
from experiments.data import text
from experiments.data.text import Contiguous, Vocabulary


def write(folder: Path, content: bytes, name: str = "text.txt") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_words_are_numbered_by_frequency() -> None:
    vocabulary = Vocabulary.of(
        {
            "b": 2,
            "a": 2,
            "c": 5,
            "d": 1,
            "<unk>": 9,
        },
        min_count=2,
    )
    assert vocabulary.words == ("<unk>", "<s>", "</s>", "c", "a", "b")
    assert len(vocabulary) == 6
    assert vocabulary.encode(["a", "d", "</s>"]) == [4, 0, 2]
    assert vocabulary.decode([4, 3, 2, 5]) == ["a", "c"]
    assert Vocabulary.of({"a": 1, "b": 1}, 4).words[3:] == ("a",)
    assert repr(vocabulary) == "Vocabulary(6 words)"


def test_a_file_becomes_numbers_with_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path, "b a\u00a0 b\r\n\n a  b".encode())
    ids, vocabulary = text.load(path)
    assert [vocabulary.words[i] for i in ids] == ["b", "a\u00a0", "b", "</s>", "a", "b", "</s>"]
    packed = write(tmp_path, gzip.compress(b"b x\n"), "more.gz")
    ids, same = text.load(packed, path, vocabulary=vocabulary)
    assert (
        same is vocabulary
        and ids[:3].tolist() == [3, 0, 2]
        and len(ids) == 10
        and ids.dtype == np.int32
    )
    assert len(text.load(path, size=4)[1]) == 4


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, b"fine\nab\xff\n")
    with pytest.raises(DataError, match="line 2, column 3: expected UTF-8, got the byte 0xff"):
        text.load(path)
    with pytest.raises(DataError, match=r"none\.txt: expected a readable file, got .*No such file"):
        text.load(tmp_path / "none.txt")
    packed = gzip.compress(b"a line\n" * 2000)
    for content in (b"no gzip", packed[:-9], packed[:20] + b"\0" * 20 + packed[40:]):
        with pytest.raises(DataError, match="expected a readable file"):
            text.load(write(tmp_path, content, "bad.gz"))
    with pytest.raises(DataError, match="expected at least one token, got none"):
        text.load(write(tmp_path, b" \n\n"))
    with pytest.raises(DataError, match=r"files \(none\): expected at least one token"):
        text.load()


def test_rows_go_on_where_they_ended() -> None:
    data = Contiguous(
        np.arange(30, dtype=np.int32),
        2,
        4,
        seed=3,
    )
    batches = list(data.epoch())
    assert len(batches) == len(data) == 3
    for b, first in ((0, 0), (1, 12)):
        assert np.concatenate([x["inputs"][b] for x in batches]).tolist() == list(
            range(first, first + 12)
        )
    for x in batches:
        assert np.array_equal(x["targets"], x["inputs"] + 1)
        assert len(set(x["sample_seed"].tolist())) == 1
        assert len(set(x["dropout_seed"].tolist())) == 2


def test_seeds_follow_from_the_seed_and_the_epoch() -> None:
    def seeds(seed: int, epoch: int) -> list:
        data = Contiguous(
            np.arange(30, dtype=np.int32),
            2,
            4,
            seed,
        )
        result = []
        for x in data.epoch(epoch):
            result.append(
                (
                    x["sample_seed"].tolist(),
                    x["dropout_seed"].tolist(),
                )
            )
        return result

    assert seeds(1, 0) == seeds(1, 0)
    assert seeds(1, 0) != seeds(1, 1)
    assert seeds(1, 0) != seeds(2, 0)


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="expected more than 2 × 4 words, a batch, got 8"):
        Contiguous(np.arange(8), 2, 4)
    with pytest.raises(SettingsError, match="`batch`: expected at least 1, got 0"):
        Contiguous(np.arange(8), 0, 4)
    with pytest.raises(SettingsError, match="`size - 3`: expected at least 1, got 0"):
        Vocabulary.of({"a": 1}, 3)
    with pytest.raises(
        DataError, match="expected different words, the first of them <unk>, <s>, </s>"
    ):
        Vocabulary(("a", "b"))
    with pytest.raises(DataError, match="5 words, 4 different ones"):
        Vocabulary((*text.SPECIAL, "a", "a"))
