"""The IDX format in which MNIST is passed around, read with every check that a damaged or foreign file calls for.

A big-endian header (magic number, then the size of each axis, 4 bytes each) and unsigned bytes; usually gzipped.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import numpy as np

from ampjax.errors import DataError

_SIDE = 28
_MAGIC = {3: 2051, 1: 2049}  # number of axes to the magic number of unsigned bytes
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: str | os.PathLike[str], n_axes: int) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, gzipped or plain.

    Args:
      path: The file.
      n_axes: 3 for images, 1 for labels.

    Returns:
      uint8, `[n, 28, 28]` or `[n]`.

    Raises:
      DataError: If the file can't be read, its gzip stream is cut off or damaged, or it is not such an IDX file; names the
        file and the byte (of the unpacked content) at which it goes wrong.
    """
    path = Path(path)
    content = _unpack(path)
    header_bytes = 4 * (1 + n_axes)
    if len(content) < 4 or (magic := int.from_bytes(content[:4], "big")) != _MAGIC[n_axes]:
        raise foreign(path, 0, f"magic number {_MAGIC[n_axes]}", f"{magic}" if len(content) >= 4 else "the file's end")
    if len(content) < header_bytes:
        raise foreign(path, len(content), f"a header of {header_bytes} bytes", "the file's end")
    shape = tuple(np.frombuffer(content, ">u4", n_axes, offset=4).tolist())
    if shape[0] == 0:
        raise foreign(path, 4, "at least one item", "a count of 0")
    if shape[1:] != (_SIDE, _SIDE)[: n_axes - 1]:
        raise foreign(path, 8, f"images of {_SIDE} x {_SIDE} pixels", " x ".join(map(str, shape[1:])))
    n_bytes = header_bytes + int(np.prod(shape, dtype=np.int64))
    if len(content) != n_bytes:
        raise foreign(
            path, min(len(content), n_bytes), f"{n_bytes} bytes for {shape[0]} items", f"{len(content)} bytes"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _unpack(path: Path) -> bytes:
    """The file's content, unpacked if it begins like a gzip file, whatever its name."""
    content = bytearray()
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            source = gzip.GzipFile(fileobj=raw) if packed else raw
            while chunk := source.read1(1 << 20):
                content += chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise foreign(path, len(content), "a whole gzip stream", f"{error}") from error
    except OSError as error:
        raise DataError(
            f"file {path}", "a file that can be read", f"{error}", "Check the path and its rights."
        ) from error
    return bytes(content)


def foreign(path: Path, offset: int, expected: str, got: str) -> DataError:
    """The error for a file that goes wrong at a byte of its unpacked content."""
    return DataError(
        f"file {path}, byte {offset}",
        expected,
        got,
        "It is damaged or no MNIST file: get it again, or use the synthetic twin (--synthetic).",
    )
