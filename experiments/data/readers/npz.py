"""Columns from a NumPy `.npz` archive, read without trust: no pickles, and no memory for values that are not in the file.

Each array's own header is compared with the archive's directory, and all arrays together with the archive's size, before any of them is
read. Then they are read piece by piece into 64-bit columns.
"""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ampjax.errors import DataError
from ampjax.utils.bounded_reading import allowed_bytes

KIND_NAMES = {"f": "floats", "iub": "integers or truth values", "iu": "integers"}
MOST_TIMES = 100
"""How many times the archive's size its columns may take. Those of molecules, bytes in the archive and 64 bits each in memory, take 37 times."""

_HEADER_BYTES = 1 << 14
_PIECE_BYTES = 1 << 20
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    LookupError,
    AttributeError,
    TypeError,
    OverflowError,
    RuntimeError,  # an encrypted member, a way of packing that is not known, brackets that are nested too deeply
    SyntaxError,  # this and the next two come from Python's own parser, which NumPy gives headers to
    tokenize.TokenError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Column:
    """An array that an archive should hold.

    Args:
      kinds: Its dtype's kinds, a key of `KIND_NAMES`.
      ndim: Its number of axes.
    """

    kinds: str
    ndim: int

    @property
    def dtype(self) -> np.dtype:
        """What it is read as: float64 or int64."""
        return np.dtype(np.float64 if "f" in self.kinds else np.int64)


@dataclass(frozen=True)
class _Header:
    """What an array says of itself, and where its values begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int


def read_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, Column],
    fix: str,
) -> dict[str, np.ndarray]:
    """Reads the arrays of an archive.

    Args:
      path: The archive. What it holds besides is not looked at.
      columns: What it should hold.
      fix: What to do where it does not, for the error message.

    Returns:
      The arrays by name, as float64 and int64.

    Raises:
      DataError: If the file is no such archive, an array is missing, of another kind or not as long as it says, or all of them are far
        larger than a file of this size can hold.
    """
    path = Path(path)
    with _told(path, fix), zipfile.ZipFile(path) as archive:
        headers = {}
        for name, column in columns.items():
            headers[name] = _header(path, archive, name, column, fix)
        claimed = sum(8 * math.prod(header.shape) for header in headers.values())
        most = allowed_bytes(path.stat().st_size, MOST_TIMES)
        if claimed > most:
            raise DataError(
                f"file {path}",
                f"columns of {most} bytes at most, many times what a file of {path.stat().st_size} bytes honestly holds",
                f"{claimed} bytes",
                fix,
            )
        result = {}
        for name, column in columns.items():
            result[name] = _values(archive, name, headers[name], column.dtype)
        return result


@contextmanager
def _told(path: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except _DAMAGE as error:
        got = f"{type(error).__name__}: {error}"
        raise DataError(f"file {path}", "a readable .npz archive of arrays", got, fix) from error


def _header(
    path: Path,
    archive: zipfile.ZipFile,
    name: str,
    column: Column,
    fix: str,
) -> _Header:
    """An array's header, checked against the archive's directory."""

    def foreign(expected: str, got: str) -> DataError:
        return DataError(f"file {path}, array `{name}`", expected, got, fix)

    kinds = KIND_NAMES[column.kinds]
    try:
        member = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise foreign(f"an array of {kinds}", "no such array") from None
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise foreign(
            "values that are stored or deflated, as NumPy writes them", "another way of packing"
        )
    with archive.open(member) as file:
        begin = file.read(_HEADER_BYTES)  # a header that claims to be longer ends here
    if not begin.startswith(np.lib.format.MAGIC_PREFIX):
        raise foreign(f"an array of {kinds}", "something else")
    stream = io.BytesIO(begin)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADER_READERS:
        raise foreign("version 1.0 or 2.0 of NumPy's format", ".".join(map(str, version)))
    shape, fortran, dtype = _HEADER_READERS[version](stream)
    if dtype.hasobject:
        raise ValueError("objects, which only pickles can hold, and these are not read")
    if dtype.kind not in column.kinds or len(shape) != column.ndim or min(shape) < 0:
        raise foreign(f"{kinds} with {column.ndim} axes", f"{dtype} of shape {shape}")
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes != member.file_size - stream.tell():
        there = f"{member.file_size - stream.tell()} bytes"
        raise foreign(f"as many bytes as {dtype} of shape {shape} takes, {n_bytes}", there)
    return _Header(shape, fortran, dtype, stream.tell())


def _values(
    archive: zipfile.ZipFile,
    name: str,
    header: _Header,
    dtype: np.dtype,
) -> np.ndarray:
    """An array's values, cast piece by piece. Raises a `ValueError` where they end too soon."""
    flat = np.empty(math.prod(header.shape), dtype)
    with archive.open(f"{name}.npy") as file:
        file.read(header.start)
        place = 0
        step = max(1, _PIECE_BYTES // header.dtype.itemsize)
        while place < len(flat):
            values = _exactly(
                file,
                min(step, len(flat) - place) * header.dtype.itemsize,
            )
            flat[place : place + step] = np.frombuffer(values, header.dtype)
            place += step  # the read that meets the member's end also compares its checksum
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _exactly(file: IO[bytes], n: int) -> bytes:
    data = bytearray()
    while len(data) < n:
        more = file.read(n - len(data))
        if not more:
            raise EOFError(f"{n - len(data)} bytes before the array's end")
        data += more
    return bytes(data)
