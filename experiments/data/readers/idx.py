"""The IDX format, in which MNIST is distributed; a damaged or foreign file is recognised.

A big-endian header (magic number, then the size of each axis, 4 bytes each) and unsigned bytes; usually gzipped.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np

from ampjax.errors import DataError

_SIDE = 28
_MAGIC = {3: 2051, 1: 2049}  # number of axes to the magic number of unsigned bytes
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20

MOST_ITEMS = 280_000
"""As many as the largest set of digits in this form, EMNIST's, has; MNIST has 60,000."""


def read_idx(
    path: str | os.PathLike[str],
    n_axes: int,
    most: int = MOST_ITEMS,
) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, gzipped or plain. Of a gzip stream, no more is unpacked than the header claims.

    Args:
      path: The file.
      n_axes: 3 for images, 1 for labels.
      most: Items that the header may claim.

    Returns:
      uint8, `[n, 28, 28]` or `[n]`.

    Raises:
      DataError: If the file can't be read, its gzip stream is cut off or damaged, or it is not such an IDX file, or claims more than `most`
        items; names the file and the byte (of the unpacked content) at which it goes wrong.
    """
    path = Path(path)
    header_bytes = 4 * (1 + n_axes)
    with _unpacked(path) as content:
        header = content.take(header_bytes)
        if len(header) < 4 or (magic := int.from_bytes(header[:4], "big")) != _MAGIC[n_axes]:
            got = f"{magic}" if len(header) >= 4 else "the file's end"
            raise foreign(path, 0, f"magic number {_MAGIC[n_axes]}", got)
        if len(header) < header_bytes:
            raise foreign(path, len(header), f"a header of {header_bytes} bytes", "the file's end")
        shape = tuple(np.frombuffer(header, ">u4", n_axes, offset=4).tolist())
        if shape[0] == 0:
            raise foreign(path, 4, "at least one item", "a count of 0")
        if shape[0] > most:
            raise foreign(path, 4, f"at most {most} items", f"a count of {shape[0]}")
        if shape[1:] != (_SIDE, _SIDE)[: n_axes - 1]:
            raise foreign(
                path,
                8,
                f"images of {_SIDE} x {_SIDE} pixels",
                " x ".join(map(str, shape[1:])),
            )
        n_bytes = math.prod(shape)
        values = content.take(
            n_bytes + 1
        )  # the read that meets the end also compares a gzip stream's checksum
        if len(values) != n_bytes:
            expected = f"{header_bytes + n_bytes} bytes for {shape[0]} items"
            end = header_bytes + len(values)
            got = "more" if len(values) > n_bytes else f"{end} bytes"
            raise foreign(path, min(end, header_bytes + n_bytes), expected, got)
    return np.frombuffer(values, np.uint8).reshape(shape)


class _Content:
    """Bytes of a file, unpacked as far as they are taken."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.n_taken = 0

    def take(self, n: int) -> bytearray:
        """The next `n` bytes, fewer at the file's end; memory grows with what comes, not with `n`."""
        taken = bytearray()
        while len(taken) < n and (piece := self._file.read(min(_PIECE_BYTES, n - len(taken)))):
            taken += piece
            self.n_taken += len(piece)
        return taken


@contextmanager
def _unpacked(path: Path) -> Iterator[_Content]:
    """The file's content, unpacked if it begins like a gzip file, whatever its name."""
    content = None
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            content = _Content(cast(IO[bytes], gzip.GzipFile(fileobj=raw) if packed else raw))
            yield content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise foreign(
            path, content.n_taken if content else 0, "a whole gzip stream", f"{error}"
        ) from error
    except OSError as error:
        raise DataError(
            f"file {path}", "a file that can be read", f"{error}", "Check the path and its rights."
        ) from error


def foreign(
    path: Path,
    offset: int,
    expected: str,
    got: str,
) -> DataError:
    """Makes the error for a file that is wrong at a byte of its unpacked content.

    Args:
      path: The file.
      offset: The byte's place.
      expected: What should be there.
      got: What is there.

    Returns:
      The error, to be raised.
    """
    return DataError(
        f"file {path}, byte {offset}",
        expected,
        got,
        "It is damaged or no MNIST file: get it again, or use the synthetic twin (--synthetic).",
    )
