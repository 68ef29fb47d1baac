"""The lines of text files, plain or gzipped: UTF-8, checked line by line, so that an error can say where a file goes wrong."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from ampjax.errors import DataError
from ampjax.utils.bounded_reading import allowed_bytes

LONGEST = 1 << 20
"""Bytes of a line, where a format's lines are sentences, trees or vectors; the longest of the data sets that are read here has some thousands."""
MANY_WORDS = 100
"""A file of sentences that has more words than that and not one line end has lost its line ends."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PIECE = 1 << 20
_NO_TEXT = {b"\0": "a NUL byte (0x00)", b"\r": "a carriage return (0x0d) inside the line"}


def read_lines(
    path: str | os.PathLike[str],
    fix: str,
    *,
    longest: int | None = LONGEST,
    sentences: bool = False,
) -> Iterator[str]:
    r"""Each line without its end, `\n` or `\r\n`.

    Other characters that Unicode calls ends of lines stay, as words of some data sets hold them.

    Some editors write a byte order mark before the first line; it is no part of it. No more than a line is held.

    Args:
      path: The file; unpacked if its name ends in `.gz`.
      fix: What to do where the file is damaged, for the error message.
      longest: Bytes of a line at most; None where a line may be the whole file.
      sentences: Whether lines are sentences, so that a long text without any line end can't be right.

    Returns:
      The lines, one at a time.

    Raises:
      DataError: If the file can't be read, is a damaged gzip file or unpacks to far more than text does, or a line is too long, no UTF-8,
        or holds a NUL byte or a carriage return; names the line. Or if line ends are lost.
    """
    path = Path(path)
    number = 0
    try:
        packed = path.suffix == ".gz"
        with gzip.open(path) if packed else path.open("rb") as file:
            if packed:
                most = allowed_bytes(path.stat().st_size)
            else:
                most = None
            for number, line in enumerate(
                _lines(path, cast(IO[bytes], file), fix, longest, most), 1
            ):
                body = line.removesuffix(b"\n").removesuffix(b"\r")
                _check_body(path, number, body, fix)
                if sentences and number == 1 and line == body and body.count(b" ") >= MANY_WORDS:
                    raise _no_line_end(path, body, fix)
                yield (body.removeprefix(_BYTE_ORDER_MARK) if number == 1 else body).decode()
    except UnicodeDecodeError as error:
        column = 1 + len(error.object[: error.start].decode())
        raise DataError(
            f"file {path}, line {number}, column {column}",
            "UTF-8",
            f"the byte {error.object[error.start]:#04x}",
            fix,
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        place = f"file {path}, after line {number}" if number else f"file {path}"
        raise DataError(place, "a readable file", f"{error}", fix) from error


def _lines(
    path: Path,
    file: IO[bytes],
    fix: str,
    longest: int | None,
    most: int | None,
) -> Iterator[bytes]:
    """Lines with their ends, each put together from pieces, so that a file without line ends is looked at before it is in memory."""
    number = 1
    line = bytearray()
    total = 0
    while piece := file.readline(_PIECE):
        total += len(piece)
        line += piece
        where = f"file {path}, line {number}"
        if most is not None and total > most:
            got = f"more than that from a packed file of {path.stat().st_size} bytes"
            raise DataError(
                where, f"at most {most} unpacked bytes, many times what text packs to", got, fix
            )
        if b"\0" in piece:
            _check_body(path, number, bytes(line), fix)
        if longest is not None and len(line) > longest:
            raise DataError(
                where, f"at most {longest} bytes in a line", "more: line ends may be lost", fix
            )
        if piece.endswith(b"\n"):
            yield bytes(line)
            number = number + 1
            line = bytearray()
    if line:
        yield bytes(line)


def _check_body(
    path: Path,
    number: int,
    body: bytes,
    fix: str,
) -> None:
    """Raises a `DataError` where a line holds what no text does."""
    for byte, name in _NO_TEXT.items():
        if (at := body.find(byte)) >= 0:
            column = 1 + len(body[:at].decode(errors="replace"))
            raise DataError(f"file {path}, line {number}, column {column}", "text", name, fix)


def _no_line_end(path: Path, body: bytes, fix: str) -> DataError:
    got = f"{body.count(b' ') + 1} words and no line end: line ends may be lost"
    return DataError(
        f"file {path}, line 1",
        "one sentence a line",
        got,
        f"{fix} If it is meant to be one line, add a line end.",
    )
