"""The lines of text files, plain or gzipped: UTF-8, checked line by line, so that an error can say where a file goes wrong."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from ampjax.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str | os.PathLike[str], fix: str) -> Iterator[str]:
    r"""Each line without its end, `\n` or `\r\n`. Other characters that Unicode calls ends of lines stay: words of some data sets hold them.

    Some editors write a byte order mark before the first line; it is no part of it.

    Args:
      path: The file; unpacked if its name ends in `.gz`.
      fix: What to do where the file is damaged, for the error message.

    Raises:
      DataError: If the file can't be read, is a damaged gzip file, or a line is no UTF-8; names the line.
    """
    path, number = Path(path), 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        column = 1 + len(error.object[: error.start].decode())
        raise DataError(
            f"file {path}, line {number}, column {column}", "UTF-8", f"the byte {error.object[error.start]:#04x}", fix
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        place = f"file {path}, after line {number}" if number else f"file {path}"
        raise DataError(place, "a readable file", f"{error}", fix) from error
