"""Lines of text files: ends of lines, byte order marks, and what can't be read."""

import gzip
from pathlib import Path

import pytest

from ampjax.data import babi15, glove, sst, wikiner
from ampjax.data.lines import read_lines
from ampjax.errors import DataError

MARK = "\ufeff"


def write(folder: Path, content: bytes, name: str = "text.txt") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_lines_end_where_a_person_sees_them_end(tmp_path: Path) -> None:
    path = write(tmp_path, "a\u2028b\x0bc\r\n\nlast".encode())
    assert list(read_lines(path, "")) == ["a\u2028b\x0bc", "", "last"]
    assert list(read_lines(write(tmp_path, gzip.compress(b"a\nb"), "text.gz"), "")) == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path, f"{MARK}a\n{MARK}b".encode()), "")) == ["a", f"{MARK}b"]


def test_every_reader_passes_over_a_byte_order_mark(tmp_path: Path) -> None:
    assert sst.read_trees(write(tmp_path, f"{MARK}(2 a)".encode())).vocabulary == ("<unknown>", "a")
    assert list(wikiner.read_sentences(write(tmp_path, f"{MARK}a|O".encode())).vocabulary.counts) == ["a"]
    texts = {"graphs": "1 1 2\n? 1 1 2", "nodes": "a=1\nb=2", "edges": "is=1\nhas_fear=2", "asked": "has_fear=1"}
    files = [write(tmp_path, f"{MARK}{text}".encode(), name) for name, text in texts.items()]
    assert len(babi15.read(*files)) == 1
    vectors = write(tmp_path, f"{MARK}a 1 2\n".encode())
    assert glove.table(vectors, ["a"], 2) is not None


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (
            "text.txt",
            "fine\né".encode() + b"\xff",
            "text.txt, line 2, column 2: expected UTF-8, got the byte 0xff. Mend it.",
        ),
        (
            "text.gz",
            gzip.compress(b"a\n" * 9999)[:-9],
            "text.gz, after line .*: expected a readable file, got Compressed",
        ),
        ("text.gz", b"no gzip", "text.gz: expected a readable file, got Not a gzipped file"),
    ],
    ids=[
        "not UTF-8",
        "cut short",
        "no gzip",
    ],  # else the bytes, which hold the time, and workers would not agree on the names
)
def test_where_a_file_goes_wrong_is_told(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    with pytest.raises(DataError, match=match):
        list(read_lines(write(tmp_path, content, name), "Mend it."))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(DataError, match=f"file {path}: expected a readable file"):
            list(read_lines(path, ""))
