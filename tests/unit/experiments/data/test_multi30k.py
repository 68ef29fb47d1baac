"""Multi30k: both languages of its three files, and every way in which they can be wrong."""

import gzip
import os
from pathlib import Path

import pytest

from ampjax.errors import DataError, SettingsError
from experiments.data import multi30k


def write(
    folder: Path,
    split: str,
    en: str,
    de: str,
) -> None:
    (folder / "tok").mkdir(exist_ok=True)
    for language, content in (("en", en), ("de", de)):
        name = f"{multi30k.SPLITS[split]}.lc.norm.tok.{language}.gz"
        (folder / "tok" / name).write_bytes(gzip.compress(content.encode()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "train", "a man .\na dog .\n", "ein mann .\nein hund .\n")
    write(tmp_path, "valid", "a cat .\n", "ein kater .\n")
    write(tmp_path, "test", "dog\n", "hund\n")
    return tmp_path


def test_pairs_have_the_numbers_of_the_training_words(folder: Path) -> None:
    data = multi30k.load(folder)
    assert data.source_vocabulary.words[3:] == (".", "a")
    assert data.target_vocabulary.words[3:] == (
        ".",
        "ein",
    )
    assert data.train.source[0].tolist() == [4, 0, 3] and data.valid.target[0].tolist() == [4, 0, 3]
    swapped = multi30k.load(folder, "de", min_count=1, n_train=1)
    assert swapped.source_vocabulary.words[3:] == (".", "ein", "mann")
    assert len(swapped.train) == 1
    assert swapped.test.source[0].tolist() == [0]


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"`source`: expected one of \['en', 'de'\], got 'fr'"):
        multi30k.load(folder, "fr")
    with pytest.raises(SettingsError, match="`n_train`: expected at least 1, got 0"):
        multi30k.load(folder, n_train=0)
    write(folder, "valid", "a\n\n", "ein\nzwei\n")
    with pytest.raises(
        DataError,
        match=r"val\.lc\.norm\.tok\.en\.gz, line 2: expected a sentence, got an empty line",
    ):
        multi30k.load(folder)
    write(folder, "valid", "a\nb\n", "ein\n")
    with pytest.raises(DataError, match="expected as many lines in both, got 2 and 1"):
        multi30k.load(folder)
    (folder / "tok" / "val.lc.norm.tok.de.gz").unlink()
    with pytest.raises(
        DataError, match=r"data set `multi30k`: expected the file tok/val\.lc\.norm\.tok\.de\.gz or"
    ):
        multi30k.load(folder)


@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real files are only read where AMPJAX_DATA names their folder",
)
def test_the_real_pairs() -> None:
    data = multi30k.load(min_count=1)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [29_000, 1_014, 1_000]
    assert len(data.source_vocabulary) == 10_210 + 3
    assert len(data.target_vocabulary) == 18_722 + 3
    assert (
        len(data.train.source.words),
        len(data.train.target.words),
    ) == (377_534, 360_706)
