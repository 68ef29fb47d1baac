"""Reads unchecked files in bounded memory: a file's claims are compared with its size before memory is allocated.

The limits leave honest files several times the room that they need. They are there for damaged files, and for archives that were made to
unpack to thousands of times their size.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ALWAYS_ALLOWED = 16 << 20
"""Bytes that any packed file may unpack to, however small it is."""
MOST_TIMES = 25
"""How many times its size a packed file may unpack to. Text packs to a third or a quarter of its size; pixels, to a fifth."""
MOST_JSON_BYTES = 64 << 20
"""The largest JSON document that is read in one piece."""


def allowed_bytes(packed: int, times: int = MOST_TIMES) -> int:
    """Computes how many bytes a packed file may unpack to.

    Args:
      packed: Bytes of the packed file.
      times: How many times its size it may unpack to.
    """
    return max(ALWAYS_ALLOWED, times * packed)


def read_whole(
    path: str | os.PathLike[str],
    most: int,
) -> bytes:
    """Reads a small file. Devices and pipes end at the limit, too, since their size is not known before.

    Args:
      path: The file.
      most: Bytes that it may have.

    Returns:
      Its bytes.

    Raises:
      OSError: If it can't be read.
      ValueError: If it holds more than `most` bytes.
    """
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size > most:
            content = b""
        else:
            content = file.read(most + 1)
        if len(content) > most or (not content and file.read(1)):
            raise ValueError(f"more than {most} bytes")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parses JSON.

    Args:
      text: JSON as text or UTF-8.

    Returns:
      Dictionaries, lists, text and numbers.

    Raises:
      ValueError: If it is no JSON, or nested too deeply for Python.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets that are nested too deeply") from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a file of JSON.

    Returns:
      Dictionaries, lists, text and numbers.

    Raises:
      OSError: If it can't be read.
      ValueError: If it is no JSON, or larger than `MOST_JSON_BYTES`.
    """
    return parse_json(read_whole(path, MOST_JSON_BYTES))
