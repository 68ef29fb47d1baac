"""WikiNER: columns of sentences, messages of instances, and every way in which a file can be wrong."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError, SettingsError
from experiments.data import wikiner
from experiments.data.wikiner import TAGS, Vocabulary


def write(folder: Path, *lines: str) -> Path:
    path = folder / "sentences.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def spelled(data: wikiner.Sentences, word: int) -> list[str]:
    numbers = data.characters[data.char_ptr[word] : data.char_ptr[word + 1]]
    return [data.vocabulary.characters[i] for i in numbers]


def test_sentences_as_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "the|O " * 6 + "a|b|I-LOC", "", "é|B-LOC  the|O")
    data = wikiner.read_sentences(path)
    assert data.ptr.tolist() == [0, 7, 9]
    assert data.words.tolist() == [0, 0, 0, 0, 0, 0, -1, -1, 0]
    assert [TAGS[tag] for tag in data.tags] == ["O"] * 6 + ["I-LOC", "B-LOC", "O"]
    assert data.vocabulary.words == ("the",) and data.vocabulary.counts == {
        "the": 7,
        "a|b": 1,
        "é": 1,
    }
    assert spelled(data, 6) == ["<*>", "a", "|", "b", "<*>"]
    assert spelled(data, 7) == [
        "<*>",
        "é",
        "<*>",
    ]
    assert spelled(data, 0) == []
    assert repr(data) == "Sentences(2 sentences, 9 words, 2 of them rare)"
    assert repr(data.vocabulary) == "Vocabulary(3 words, 1 of them frequent, 9 characters)"


def test_words_are_frequent_from_the_sixth_time_on(tmp_path: Path) -> None:
    data = wikiner.read_sentences(write(tmp_path, "five|O " * 5 + "six|O " * 6))
    assert data.vocabulary.words == ("six",)
    assert (data.words < 0).sum() == 5


def test_words_and_characters_of_another_vocabulary_are_unknown(tmp_path: Path) -> None:
    vocabulary = Vocabulary(Counter({"ab": 6, "c": 1}))
    data = wikiner.read_sentences(write(tmp_path, "ab|O bx|O c|O"), vocabulary)
    assert data.words.tolist() == [0, -1, -1]
    assert spelled(data, 1) == ["<*>", "b", "<unknown>", "<*>"]


def test_words_keep_what_is_no_ascii_space(tmp_path: Path) -> None:
    assert list(wikiner.read_sentences(write(tmp_path, "a\u00a0b|O")).vocabulary.counts) == [
        "a\u00a0b"
    ]


@pytest.mark.parametrize(
    ("line", "column", "expected", "got"),
    [
        (b"a|O word", 5, "`word|TAG`", "'word'"),
        (b"a|O |O", 5, "`word|TAG`", "'|O'"),
        ("é|O b|I-XYZ".encode(), 7, f"one of the tags {', '.join(TAGS)}", "'I-XYZ'"),
        (b"a|O\tb|O c|O", 1, "`word|TAG`", r"'a|O\tb|O'"),
        (b"a|", 3, f"one of the tags {', '.join(TAGS)}", "''"),
        ("é|O b".encode() + b"\xff|O", 6, "UTF-8", "the byte 0xff"),
    ],
)
def test_a_damaged_line_is_named(
    tmp_path: Path, line: bytes, column: int, expected: str, got: str
) -> None:
    path = tmp_path / "sentences.txt"
    path.write_bytes(b"fine|O\n" + line + b"\r\n")
    with pytest.raises(DataError) as error:
        wikiner.read_sentences(path)
    place = f"file {path}, line 2, column {column}"
    assert str(error.value).startswith(
        f"{place}: expected {expected}, got {got}. The file is damaged, or no WikiNER"
    )


def test_files_that_are_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data set `wikiner_en`: expected the file train\.txt"):
        wikiner.load(tmp_path)
    with pytest.raises(DataError, match=r"expected a readable file, got .*No such file"):
        wikiner.read_sentences(tmp_path / "none.txt")
    with pytest.raises(DataError, match="expected at least one sentence, got none"):
        wikiner.read_sentences(write(tmp_path, "", " "))


def test_columns_that_do_not_fit_are_refused() -> None:
    data, _ = wikiner.synthetic(3, 1)
    with pytest.raises(DataError, match="as many tags"):
        replace(data, tags=data.tags[1:])
    with pytest.raises(DataError, match="at least one word in each sentence"):
        replace(
            data,
            ptr=np.array([0, 0, len(data.words)]),
        )
    with pytest.raises(DataError, match="characters for each rare word and no other"):
        replace(data, words=np.zeros_like(data.words))


def test_both_files_share_the_training_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a|O " * 6 + "\n", encoding="utf-8")
    (tmp_path / "dev.txt").write_text("b|O " * 6 + "a|O\n", encoding="utf-8")
    train, valid = wikiner.load(tmp_path)
    assert valid.vocabulary is train.vocabulary
    assert valid.words.tolist() == [-1] * 6 + [0]


def test_the_first_sentences_alone_make_the_vocabulary(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text(
            "a|O " * 3 + "\n" + "a|O " * 3 + "b|O\nc|O\n", encoding="utf-8"
        )
    train, valid = wikiner.load(tmp_path, 2, 1)
    assert (len(train), len(valid)) == (2, 1)
    assert train.vocabulary.counts == {"a": 6, "b": 1}
    with pytest.raises(SettingsError, match="n_valid"):
        wikiner.load(tmp_path, 2, 0)


def test_messages_say_where_they_go(tmp_path: Path) -> None:
    data = wikiner.SentenceInstances(
        wikiner.read_sentences(write(tmp_path, "the|O " * 6, "x|I-PER the|O yz|O"))
    )
    assert len(data) == 2
    batch = data.gather(np.array([1, 0]))
    words = batch["words"]
    labels = batch["labels"]
    characters = batch["characters"]
    assert words.instance.tolist() == [0] * 3 + [1] * 6
    assert words.payload.tolist() == [
        -1,
        0,
        -1,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    assert {name: np.asarray(column, int).tolist() for name, column in words.fields.items()} == {
        "t": [0, 1, 2, 0, 1, 2, 3, 4, 5],
        "first": [1, 0, 0, 1, 0, 0, 0, 0, 0],
        "last": [0, 0, 1, 0, 0, 0, 0, 0, 1],
        "rare": [1, 0, 1, 0, 0, 0, 0, 0, 0],
    }
    assert labels.fields == words.fields
    assert [TAGS[tag] for tag in labels.payload[:3]] == [
        "I-PER",
        "O",
        "O",
    ]
    assert characters.instance.tolist() == [0] * 7
    names = data.data.vocabulary.characters
    assert [names[i] for i in characters.payload] == ["<*>", "x", "<*>", "<*>", "y", "z", "<*>"]
    assert {
        name: np.asarray(column, int).tolist() for name, column in characters.fields.items()
    } == {
        "t": [0, 0, 0, 2, 2, 2, 2],
        "c": [0, 1, 2, 3, 4, 5, 6],
        "first": [1, 0, 0, 1, 0, 0, 0],
        "last": [0, 0, 1, 0, 0, 0, 1],
    }


@given(
    st.integers(0, 20),
    st.integers(1, 30),
    st.randoms(use_true_random=False),
)
def test_a_batch_holds_what_its_instances_hold(seed: int, n: int, random) -> None:
    data = wikiner.SentenceInstances(wikiner.synthetic(n, 1, seed)[0])
    ids = np.array(
        [random.randrange(n) for _ in range(random.randrange(5))],
        np.int64,
    )
    batch = data.gather(ids)
    for position, i in enumerate(ids):
        alone = data.gather(np.array([i]))
        for pump, messages in alone.items():
            chosen = batch[pump].instance == position
            assert np.array_equal(batch[pump].payload[chosen], messages.payload)
            for name, column in messages.fields.items():
                assert np.array_equal(batch[pump].fields[name][chosen], column)
    assert sum(len(messages.instance) for messages in batch.values()) == sum(
        len(messages.instance) for i in ids for messages in data.gather(np.array([i])).values()
    )


def test_synthetic_tags_follow_from_words() -> None:
    a, b, c = (wikiner.synthetic(200, 5, seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(a.words, b.words) and not np.array_equal(
        a.characters,
        c.characters,
    )
    assert 0.1 < (a.words < 0).mean() < 0.2
    assert len(np.unique(a.tags)) == 4
    names = a.vocabulary.words
    for i in range(len(a)):
        for j in range(
            a.ptr[i],
            a.ptr[i + 1],
        ):
            if a.words[j] >= 0 and names[a.words[j]].startswith("name"):
                title = (
                    j > a.ptr[i]
                    and a.words[j - 1] >= 0
                    and names[a.words[j - 1]].startswith("title")
                )
                inc = (
                    j + 1 < a.ptr[i + 1] and a.words[j + 1] >= 0 and names[a.words[j + 1]] == "inc"
                )
                assert TAGS[a.tags[j]] == ("I-PER" if title else "I-ORG" if inc else "I-LOC")
    with pytest.raises(SettingsError, match="n_valid"):
        wikiner.synthetic(3, 0)


@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real files are only read where AMPJAX_DATA names their folder",
)
def test_the_real_sentences() -> None:
    train, valid = wikiner.load()
    assert (len(train), len(valid)) == (10_000, 1_696)
    assert (
        len(train.words),
        len(valid.words),
    ) == (248_038, 39_007)
    assert len(train.vocabulary.counts) == 25_719
    assert len(train.vocabulary.words) == 4_651
    assert (train.words < 0).mean() == pytest.approx(0.145, abs=5e-4)
    assert (valid.words < 0).mean() == pytest.approx(0.232, abs=5e-4)
    assert (valid.tags == wikiner.OUTSIDE).mean() == pytest.approx(0.835, abs=5e-4)
    assert np.unique(train.tags).tolist() == list(range(wikiner.N_TAGS))
    assert (
        np.diff(train.ptr).max(),
        np.diff(valid.ptr).max(),
    ) == (135, 144)
