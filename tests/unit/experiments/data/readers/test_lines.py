"""Lines of text files: ends of lines, byte order marks, and what can't be read."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from ampjax.errors import DataError
from ampjax.utils.bounded_reading import ALWAYS_ALLOWED
from experiments.data import babi15, glove, multi30k, sst, text, wikiner
from experiments.data.readers.lines import LONGEST, MANY_WORDS, read_lines

MARK = "\ufeff"


def write(folder: Path, content: bytes, name: str = "text.txt") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_lines_end_where_a_person_sees_them_end(tmp_path: Path) -> None:
    path = write(tmp_path, "a\u2028b\x0bc\r\n\nlast".encode())
    assert list(read_lines(path, "")) == ["a\u2028b\x0bc", "", "last"]
    assert list(
        read_lines(
            write(tmp_path, gzip.compress(b"a\nb"), "text.gz"),
            "",
        )
    ) == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert list(
        read_lines(
            write(tmp_path, f"{MARK}a\n{MARK}b".encode()),
            "",
        )
    ) == ["a", f"{MARK}b"]


def test_every_reader_passes_over_a_byte_order_mark(tmp_path: Path) -> None:
    assert sst.read_trees(write(tmp_path, f"{MARK}(2 a)".encode())).vocabulary == ("<unknown>", "a")
    assert list(
        wikiner.read_sentences(write(tmp_path, f"{MARK}a|O".encode())).vocabulary.counts
    ) == ["a"]
    texts = {
        "graphs": "1 1 2\n? 1 1 2",
        "nodes": "a=1\nb=2",
        "edges": "is=1\nhas_fear=2",
        "asked": "has_fear=1",
    }
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
        (
            "text.txt",
            b"fine\na\0b",
            "text.txt, line 2, column 2: expected text, got a NUL byte .* Mend it.",
        ),
        (
            "text.txt",
            b"a\rb\rc",
            "text.txt, line 1, column 2: expected text, got a carriage return .0x0d. inside",
        ),
        ("text.gz", b"no gzip", "text.gz: expected a readable file, got Not a gzipped file"),
    ],
    ids=[
        "not UTF-8",
        "cut short",
        "NUL",
        "carriage returns",
        "no gzip",
    ],  # else the bytes, which hold the time, and workers would not agree on the names
)
def test_where_a_file_goes_wrong_is_told(
    tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    with pytest.raises(DataError, match=match):
        list(read_lines(write(tmp_path, content, name), "Mend it."))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(DataError, match=f"file {path}: expected a readable file"):
            list(read_lines(path, ""))


def most_bytes(path: Path, match: str, **options) -> int:
    """What was held at most until a file was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match):
            for _ in read_lines(path, "Mend it.", **options):
                pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_line_that_does_not_end_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\n" + b"b" * (LONGEST + 1))
    assert (
        most_bytes(
            path,
            f"line 2: expected at most {LONGEST} bytes in a line, got more: line ends may be lost",
        )
        < 5 * LONGEST
    )
    with path.open("r+b") as file:
        file.truncate(1 << 43)  # 8 TB of zeros that take no room on the disk
    assert (
        most_bytes(path, r"line 2, column 1048578: expected text, got a NUL byte", longest=None)
        < 8 * LONGEST
    )


@pytest.mark.nightly
def test_a_packed_text_that_unpacks_to_far_more_than_text_does_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        gzip.compress((b"a" * 999 + b"\n") * (ALWAYS_ALLOWED // 1000 + 1)),
        "text.gz",
    )
    assert path.stat().st_size < 50_000
    assert (
        most_bytes(
            path, f"expected at most {ALWAYS_ALLOWED} unpacked bytes, .* from a packed file of"
        )
        < 1 << 21
    )


SENTENCES = [["the|O", f"name{i}|I-PER", "sings|O", ".|O"] for i in range(60)]


@pytest.mark.parametrize(
    "end",
    [" ", "", "\r", " \n"],
    ids=["spaces", "nothing", "old Macs", "spaces and an end"],
)
def test_a_tagged_corpus_whose_line_ends_are_lost_is_told(tmp_path: Path, end: str) -> None:
    lines = [" ".join(sentence) for sentence in SENTENCES]
    assert (
        len(
            wikiner.read_sentences(
                write(
                    tmp_path,
                    "\n".join(lines).encode(),
                )
            )
        )
        == 60
    )
    if end.endswith("\n"):
        joined = " ".join(lines) + "\n"
    else:
        joined = end.join(lines)
    with pytest.raises(DataError, match=r"line 1.*(line end|carriage return)"):
        wikiner.read_sentences(write(tmp_path, joined.encode()))


def test_a_text_whose_line_ends_are_lost_is_told(tmp_path: Path) -> None:
    words = []
    for sentence in SENTENCES:
        for word in sentence:
            words.append(word)
    one_line = " ".join(words).encode()
    with pytest.raises(
        DataError, match=r"line 1: expected one sentence a line, got 240 words and no line end"
    ):
        text.load(write(tmp_path, one_line))
    assert len(text.load(write(tmp_path, one_line + b"\n"))[0]) == 241  # a text that is one line
    assert len(text.load(write(tmp_path, b" ".join([b"a"] * MANY_WORDS)))[0]) == MANY_WORDS + 1
    for (split, language), file in multi30k.FILES.items():
        ends = b" " if (split, language) == ("train", "de") else b"\n"
        write(
            tmp_path,
            ends.join([b"a"] * 1000) + b"\n",
            Path(file.also[-1]).name,
        )
    with pytest.raises(
        DataError, match=r"\.de, line 1: expected a sentence, got 1000 words: line ends may be lost"
    ):
        multi30k.load(tmp_path)


def test_vectors_whose_line_ends_are_lost_or_that_are_fewer_than_counted_are_told(
    tmp_path: Path,
) -> None:
    vectors = [f"word{i} 1 2" for i in range(10)]
    with pytest.raises(DataError, match="line 1: expected a word and 2 values, got 29 values"):
        glove.table(
            write(tmp_path, " ".join(vectors).encode()),
            ["word9"],
            2,
        )
    assert glove.table(
        write(
            tmp_path,
            "\n".join(["10 2", *vectors]).encode(),
        ),
        ["word9"],
        2,
    )
    with pytest.raises(
        DataError,
        match=r"line 1: expected a count of the file's words, 9, got 10\. The file was cut off",
    ):
        glove.table(
            write(
                tmp_path,
                "\n".join(["10 2", *vectors[:-1]]).encode(),
            ),
            ["word3"],
            2,
        )


def test_a_short_file_of_questions_cannot_make_endless_copies(tmp_path: Path) -> None:
    ids = {"nodes": "a=1\nb=2", "edges": "is=1\nhas_fear=2", "asked": "has_fear=1"}
    others = []
    for name, content in ids.items():
        others.append(write(tmp_path, content.encode(), name))
    graphs = write(tmp_path, b"1 1 2\n" * 500 + b"? 1 1 2\n" * 500)
    with pytest.raises(
        DataError, match=r"line 1001: expected a blank line after each graph: .* got '500 and 500'"
    ):
        babi15.read(graphs, *others)
    write(
        tmp_path,
        "\n".join(f"n{i}={i}" for i in range(babi15.MOST_NODES + 1)).encode(),
        "nodes",
    )
    with pytest.raises(DataError, match="nodes, line 257: expected at most 256 names, got more"):
        babi15.read(graphs, *others)
