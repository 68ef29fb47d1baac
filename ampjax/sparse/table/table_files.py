"""A table in files: one for each array, and a manifest with their checksums, which is replaced in one go.

If a save is cut off, the last complete one is still valid: files of each save have other names, and are used only if the manifest names
them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp
import numpy as np

from ampjax.errors import TableError
from ampjax.sparse.rows.row_blocks import Block
from ampjax.sparse.table import leftovers
from ampjax.utils.bounded_reading import MOST_JSON_BYTES, parse_json, read_whole

MANIFEST = "table.json"
_STEM = "table-"
_FORMAT = 1
_AGAIN = "Load another copy, or start anew."


def save(
    folder: str | Path,
    facts: Mapping[str, Any],
    blocks: Iterator[Block],
    others: Sequence[np.ndarray],
) -> None:
    """Writes a table; the folder's earlier save stays valid until all is written.

    Args:
      folder: Made if it is missing; may hold an earlier save.
      facts: What the manifest says besides, in JSON's types.
      blocks: All rows in order.
      others: Arrays that are not rows, shared optimizer state: each is written as one row.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    try:
        with leftovers.saving(folder, _STEM) as token:
            _write(folder, f"{_STEM}{token}", facts, blocks, others)
    finally:
        sweep(folder)


def read_manifest(
    folder: str | Path,
    **kinds: type,
) -> dict[str, Any]:
    """The manifest of the last whole save.

    Args:
      folder: What `save` wrote.
      **kinds: Facts that it must hold, and their types.

    Returns:
      What the manifest says.

    Raises:
      TableError: If there is none, or it was altered, or does not say what a manifest says.
    """
    path = Path(folder) / MANIFEST
    try:
        body = parse_json(read_whole(path, MOST_JSON_BYTES))
        digest = body.pop("sha256")
    except (FileNotFoundError, NotADirectoryError):
        raise TableError(
            f"{path}", "a saved table", "no such file", "Give the folder that `save` wrote."
        ) from None
    except OSError as error:
        raise TableError(f"{path}", "a file that can be read", f"{error}", _AGAIN) from error
    except (ValueError, KeyError, AttributeError, TypeError):
        raise TableError(f"{path}", "a table's manifest", "something else", _AGAIN) from None
    if digest != _digest(body):
        raise TableError(
            f"{path}",
            f"checksum {str(digest)[:12]}",
            _digest(body)[:12],
            f"The manifest was altered. {_AGAIN}",
        )
    if body.get("format") != _FORMAT:
        raise TableError(
            f"{path}",
            f"format {_FORMAT}",
            f"{body.get('format')}",
            "It was written by another version.",
        )
    for name, kind in {"files": list, "n_others": int, **kinds}.items():
        if type(body.get(name)) is not kind:
            raise TableError(
                f"{path}, `{name}`", f"a {kind.__name__}", f"{body.get(name)!r:.60}", _AGAIN
            )
    files = body["files"]
    n_others = body["n_others"]
    are_entries = 0 <= n_others <= len(files) and all(map(_is_entry, files))
    if not are_entries or any(entry["shape"][0] != 1 for entry in files[len(files) - n_others :]):
        raise TableError(
            f"{path}, `files`",
            "names, dtypes, shapes and checksums of arrays",
            "something else",
            _AGAIN,
        )
    return body


def check_files(
    folder: str | Path,
    manifest: Mapping[str, Any],
) -> None:
    """Compares the sizes of files with the manifest, without reading the files.

    Args:
      folder: What `save` wrote.
      manifest: What `read_manifest` read there.

    Raises:
      TableError: If a file is missing, too short or too long.
    """
    for entry in manifest["files"]:
        path = Path(folder) / entry["file"]
        n_bytes = math.prod(entry["shape"]) * jnp.dtype(entry["dtype"]).itemsize
        if not path.is_file():
            raise TableError(f"{path}", "a file of the table", "no such file", _AGAIN)
        if path.stat().st_size != n_bytes:
            raise TableError(
                f"{path}",
                f"{n_bytes} bytes",
                f"{path.stat().st_size}",
                f"The file was cut off or altered. {_AGAIN}",
            )


def read_arrays(
    folder: str | Path, manifest: Mapping[str, Any]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Reads all arrays, after a check of every byte.

    Args:
      folder: What `save` wrote.
      manifest: What `read_manifest` read there.

    Returns:
      Arrays of rows, as mapped files, and the other arrays, in memory.

    Raises:
      TableError: If a file is missing, too short or too long, or was altered.
    """
    folder = Path(folder)
    check_files(folder, manifest)
    arrays = [_read(folder, entry) for entry in manifest["files"]]
    n_rows = len(arrays) - manifest["n_others"]
    return arrays[:n_rows], [np.array(array[0]) for array in arrays[n_rows:]]


def sweep(folder: str | Path) -> None:
    """Deletes leftovers of killed saves in a folder: files that the manifest does not name, unless their save still runs.

    Args:
      folder: What `save` wrote. A reader calls this only after it has found all files right.
    """
    folder = Path(folder)

    def remove(token: str) -> None:
        with suppress(
            TableError
        ):  # by a manifest that can't be read, it can't be told what is left over
            if (folder / MANIFEST).exists():
                named = {entry["file"] for entry in read_manifest(folder)["files"]}
            else:
                named = ()
            for path in folder.glob(f"{_STEM}{token}-*.bin"):
                if path.name not in named:
                    path.unlink()

    leftovers.sweep(folder, _STEM, remove)


def is_name(name: str) -> bool:
    """Tells whether a saved table may have a file of this name."""
    return (
        name == MANIFEST
        or re.fullmatch(_STEM + r"[0-9a-f]{8}-[a-z]+-[0-9-]+\.bin", name) is not None
    )


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(
    folder: Path,
    stem: str,
    facts: Mapping[str, Any],
    blocks: Iterator[Block],
    others: Sequence[np.ndarray],
) -> None:
    entries = _write_rows(folder, f"{stem}-rows", blocks)
    entries += [
        _write_rows(folder, f"{stem}-shared-{i}", iter([(0, [array[None]])]))[0]
        for i, array in enumerate(others)
    ]
    body = {
        "format": _FORMAT,
        **facts,
        "n_others": len(others),
        "files": entries,
    }
    written = folder / f"{stem}-manifest.bin"
    with written.open("wb") as file:
        file.write(
            json.dumps(
                body | {"sha256": _digest(body)},
                indent=1,
            ).encode()
        )
        _sync(file)
    os.replace(written, folder / MANIFEST)
    sync_folder(folder)


def _write_rows(
    folder: Path,
    stem: str,
    blocks: Iterator[Block],
) -> list[dict[str, Any]]:
    """Writes one file for each array, block by block."""
    writers: list[_Writer] = []
    try:
        for _, arrays in blocks:
            writers = writers or [
                _Writer(folder / f"{stem}-{i}.bin", array) for i, array in enumerate(arrays)
            ]
            for writer, array in zip(writers, arrays, strict=True):
                writer.write(array)
        return [writer.end() for writer in writers]
    finally:
        for writer in writers:
            writer.file.close()


class _Writer:
    """A file of rows whose hash is computed during writing."""

    def __init__(self, path: Path, first: np.ndarray):
        self.path = path
        self.file = path.open("wb")
        self.hash = hashlib.sha256()
        self.n_rows = 0
        self.dtype = first.dtype
        self.row = first.shape[1:]

    def write(self, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.file.write(data)
        self.hash.update(data)
        self.n_rows += len(array)

    def end(self) -> dict[str, Any]:
        """Closes the file, and returns its entry in the manifest."""
        _sync(self.file)
        shape = [self.n_rows, *self.row]
        return {
            "file": self.path.name,
            "dtype": str(self.dtype),
            "shape": shape,
            "sha256": self.hash.hexdigest(),
        }


def _read(
    folder: Path,
    entry: Mapping[str, Any],
) -> np.ndarray:
    path = folder / entry["file"]
    shape = tuple(entry["shape"])
    dtype = jnp.dtype(entry["dtype"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry["sha256"]:
        raise TableError(
            f"{path}",
            f"checksum {entry['sha256'][:12]}",
            digest[:12],
            f"The file was altered. {_AGAIN}",
        )
    # no empty maps
    if math.prod(shape):
        return np.asarray(np.memmap(path, dtype, "r", shape=shape))
    return np.zeros(shape, dtype)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _is_entry(entry: Any) -> bool:
    """Tells whether a value is a manifest's entry of a file: a name in the same folder, of numbers or truth values."""
    if not isinstance(entry, dict) or not {"file", "dtype", "shape", "sha256"} <= entry.keys():
        return False
    name = entry["file"]
    shape = entry["shape"]
    if not isinstance(name, str) or name == MANIFEST or not is_name(name):
        return False
    try:
        dtype = jnp.dtype(entry["dtype"])
    except (TypeError, ValueError):
        return False
    if not _is_shape(shape):
        return False
    can_be = (
        math.prod(max(n, 1) for n in shape) * dtype.itemsize < 1 << 62
    )  # else NumPy refuses it, even if it is empty
    return (
        can_be and not dtype.hasobject and dtype.itemsize > 0 and isinstance(entry["sha256"], str)
    )


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= 32:
        return False
    return all(type(n) is int and n >= 0 for n in value)
