"""Messages between hosts: numbers, a text and arrays, as frames of bytes. Nothing in a message is ever executed.

A message is a header frame and then the bytes of its arrays. The header has a magic word, the format's version, the kind, all lengths,
the epoch and the sequence number, and each array's dtype and shape. A reader checks all of it against what has come before it makes
anything, so the largest array that frames can ask for is as large as the frames are.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ampjax.errors import WireError

MAGIC = b"AMPW"
VERSION = 1
CHUNK_BYTES = 1 << 22
"""Larger arrays travel in several frames, so that heartbeats get in between."""

_HEADER = struct.Struct("<4sBxHHIIQQ")
"""Magic, version, n arrays, bytes of the kind, n numbers, bytes of the text, epoch, sequence number."""

_ARRAY = struct.Struct("<BB")
"""Bytes of a dtype's name, and the number of dimensions."""

_MOST_DIMENSIONS = 32
_PLAIN = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
_MORE = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "int4",
    "uint4",
]
DTYPES = {name: np.dtype(name) for name in _PLAIN} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _MORE
}
"""What arrays in messages may hold, by name."""

_BY_NAME = {name.encode(): dtype for name, dtype in DTYPES.items()}

_AT = "a message on the wire"
_SAME = (
    "Let both ends run the same version of ampjax, and look for what else writes to this channel."
)


@dataclass(frozen=True, eq=False)
class Message:
    """One message. Nobody writes to its arrays after sending: the arrays are read when the wire is free, and again if the wire breaks.

    Args:
      kind: What it is about; the two ends agree on kinds.
      numbers: Integers of 64 bits.
      text: Any text.
      arrays: Arrays of numbers or booleans, of any shape.
    """

    kind: str
    numbers: tuple[int, ...] = ()
    text: str = ""
    arrays: tuple[np.ndarray, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays)

    def __repr__(self) -> str:
        parts = [repr(self.kind), *map(str, self.numbers)]
        if self.text:
            parts += [repr(self.text if len(self.text) < 40 else f"{self.text[:37]}...")]
        else:
            parts += []
        parts += [f"{array.dtype}{list(array.shape)}" for array in self.arrays]
        return f"Message({', '.join(parts)})"


def encode(
    message: Message,
    epoch: int,
    sequence: int,
) -> list[bytes | memoryview]:
    """Encodes a message as frames, without copying arrays that are contiguous.

    Args:
      message: The message.
      epoch: The epoch of the run, at least 0.
      sequence: The message's number, at least 0.

    Returns:
      The header, and then the arrays' bytes in order, each in frames of at most `CHUNK_BYTES`.

    Raises:
      WireError: If something in it can't travel.
    """
    kind = message.kind.encode()
    text = message.text.encode()
    try:
        numbers = struct.pack(f"<{len(message.numbers)}q", *message.numbers)
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            len(message.arrays),
            len(kind),
            len(message.numbers),
            len(text),
            epoch,
            sequence,
        )
    except struct.error as error:
        fix = "Send larger numbers as text, and more arrays in several messages."
        raise WireError(
            f"message {message.kind!r}", "integers and lengths that fit", f"{error}", fix
        ) from None
    parts = [head, kind, numbers, text]
    frames = []
    for i, array in enumerate(message.arrays):
        parts += _describe_array(message.kind, i, array)
        flat = _native(array).reshape(-1).view(np.uint8).data
        if flat.nbytes <= CHUNK_BYTES:
            frames += [flat] if flat.nbytes else ()
        else:
            frames += [
                flat[start : start + CHUNK_BYTES] for start in range(0, flat.nbytes, CHUNK_BYTES)
            ]
    return [b"".join(parts), *frames]


def nbytes_of(frames: Sequence[bytes | memoryview]) -> int:
    """Bytes of a message on the wire.

    Args:
      frames: What `encode` has made.
    """
    return sum(map(len, frames))


def _native(array: np.ndarray) -> np.ndarray:
    """A plain array in one piece and in this machine's order of bytes; the same array where possible."""
    array = np.asarray(array)
    if array.flags.c_contiguous and array.dtype.isnative:
        return array
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _describe_array(
    kind: str,
    number: int,
    array: Any,
) -> tuple[bytes, bytes]:
    if not isinstance(array, np.ndarray):
        raise WireError(
            f"message {kind!r}, array {number}",
            "a NumPy array",
            type(array).__name__,
            "Convert it with `np.asarray`.",
        )
    try:
        return _describe_type(
            array.dtype,
            array.ndim,
        ), _shape_format(array.ndim).pack(*array.shape)
    except WireError as error:
        raise WireError(
            f"message {kind!r}, array {number}", error.expected, error.got, error.fix
        ) from None


@functools.cache
def _describe_type(dtype: np.dtype, ndim: int) -> bytes:
    if dtype.name not in DTYPES:
        raise WireError(
            _AT, "numbers or booleans", f"dtype {dtype}", "Only plain arrays travel, no objects."
        )
    if ndim > _MOST_DIMENSIONS:
        raise WireError(
            _AT,
            f"at most {_MOST_DIMENSIONS} dimensions",
            f"{ndim}",
            "Merge some axes with `reshape` before it is sent, and split them after.",
        )
    name = dtype.name.encode()
    return _ARRAY.pack(len(name), ndim) + name


def decode(frames: Sequence[Any]) -> tuple[Message, int, int]:
    """The message that frames are.

    Args:
      frames: Objects with the buffer protocol, as `encode` made them.

    Returns:
      The message, its epoch and its sequence number. Its arrays share the frames' memory where that is aligned; nobody else has it.

    Raises:
      WireError: If the frames are no whole message of this version.
    """
    if not frames:
        raise _bad("a header", "no frame")
    head = _HeaderReader(bytes(frames[0]))
    body = frames[1:]
    magic, version, n_arrays, n_kind, n_numbers, n_text, epoch, sequence = head.unpack(_HEADER)
    if magic != MAGIC:
        raise _bad(f"the magic word {MAGIC!r}", repr(magic))
    if version != VERSION:
        raise _bad(f"version {VERSION} of the format", f"version {version}")
    kind = head.text(n_kind)
    numbers = struct.unpack(f"<{n_numbers}q", head.take(8 * n_numbers))
    text = head.text(n_text)
    described = [head.array() for _ in range(n_arrays)]
    if head.left:
        raise _bad("a header of the length that it says", f"{head.left} bytes more")
    wanted = sum([nbytes for _, _, nbytes in described])
    n_bytes = sum(map(len, body))
    if wanted != n_bytes:
        raise _bad(f"{wanted} bytes of arrays, as the header says", f"{n_bytes}")
    left = iter(body)
    arrays = tuple([_array(dtype, shape, nbytes, left) for dtype, shape, nbytes in described])
    if next(left, None) is not None:
        raise _bad("as many frames as the header says", "more")
    return Message(kind, numbers, text, arrays), epoch, sequence


def _array(
    dtype: np.dtype,
    shape: tuple[int, ...],
    nbytes: int,
    left: Iterator[Any],
) -> np.ndarray:
    """An array from the next of the frames that hold its bytes."""
    if not nbytes:
        return np.empty(shape, dtype)
    sizes = []
    for start in range(0, nbytes, CHUNK_BYTES):
        sizes.append(min(CHUNK_BYTES, nbytes - start))
    chunks = [next(left, b"") for _ in sizes]
    if [len(chunk) for chunk in chunks] != sizes:
        raise _bad(f"frames of {sizes} bytes for an array", f"{[len(chunk) for chunk in chunks]}")
    if len(chunks) == 1:
        result = np.ndarray(shape, dtype, chunks[0])
        return result if result.flags.aligned else result.copy()
    return (
        np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in chunks])
        .view(dtype)
        .reshape(shape)
    )


class _HeaderReader:
    """Takes a header apart, within its length.

    Args:
      header: The header.
    """

    def __init__(self, header: bytes):
        self._header = header
        self._at = 0

    @property
    def left(self) -> int:
        """The number of bytes that have not been taken."""
        return len(self._header) - self._at

    def take(self, n: int) -> bytes:
        """The next bytes."""
        start = self._at
        self._at = self._at + n
        if self._at > len(self._header):
            raise _bad(f"{n} bytes more of a header", f"{len(self._header) - start}")
        return self._header[start : self._at]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """The next fields."""
        return form.unpack(self.take(form.size))

    def text(self, n: int) -> str:
        """The next text."""
        try:
            return self.take(n).decode()
        except UnicodeDecodeError as error:
            raise _bad("UTF-8 text", f"{error}") from None

    def array(self) -> tuple[np.dtype, tuple[int, ...], int]:
        """The next array's dtype, shape and bytes."""
        n_name, n_dimensions = self.take(_ARRAY.size)
        dtype = _BY_NAME.get(name := self.take(n_name))
        if dtype is None or n_dimensions > _MOST_DIMENSIONS:
            raise _bad(
                "an array of numbers",
                f"dtype {name.decode(errors='replace')!r} with {n_dimensions} dimensions",
            )
        shape = self.unpack(_shape_format(n_dimensions))
        nbytes = math.prod(shape) * dtype.itemsize
        if (nbytes or math.prod([max(size, 1) for size in shape]) * dtype.itemsize) >= 1 << 62:
            raise _bad("an array that fits into memory", f"shape {shape}")
        return dtype, shape, nbytes


@functools.cache
def _shape_format(n_dimensions: int) -> struct.Struct:
    return struct.Struct(f"<{n_dimensions}Q")


def _bad(expected: str, got: str) -> WireError:
    return WireError(_AT, expected, got, _SAME)
