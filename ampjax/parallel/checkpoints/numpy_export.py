"""All parameters in one file of NumPy's (`.npz`), block by block, so that no table is copied as a whole."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from ampjax.errors import SettingsError
from ampjax.sparse.rows import row_blocks
from ampjax.sparse.table.table_parts import TablePart
from ampjax.utils.setting_checks import a_path

NATIVE = "biufc"
"""Kinds of dtypes that NumPy's files know. Others, such as bfloat16, are written as float32."""


def export_numpy(
    path: str | Path,
    leaves: Mapping[str, np.ndarray | TablePart],
) -> None:
    """Writes arrays to a file that `numpy.load` reads, which is there as a whole or not at all.

    Args:
      path: The file; its name ends in `.npz`.
      leaves: By name, arrays and the rows of tables.

    Raises:
      SettingsError: If the path is none, or has another ending.
    """
    path = a_path("export, path", path).resolve()
    if path.suffix != ".npz":
        raise SettingsError(
            "export, path",
            "a file whose name ends in `.npz`",
            f"`{path.name}`",
            "NumPy reads such files with `numpy.load`.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with zipfile.ZipFile(written, "w", allowZip64=True) as archive:
            for name, leaf in leaves.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    _write(file, leaf)
        os.replace(written, path)
    finally:
        written.unlink(missing_ok=True)


def _write(
    file: IO[bytes],
    leaf: np.ndarray | TablePart,
) -> None:
    """Writes one array in NumPy's format."""
    dtype = leaf.table.dtype if isinstance(leaf, TablePart) else leaf.dtype
    if dtype.kind not in NATIVE:
        dtype = np.dtype(np.float32)
    header: dict[str, Any] = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(leaf.shape),
    }
    np.lib.format.write_array_header_2_0(file, header)
    for block in _blocks(leaf):
        file.write(np.ascontiguousarray(block, dtype).tobytes())


def _blocks(leaf: np.ndarray | TablePart) -> Iterator[np.ndarray]:
    if not isinstance(leaf, TablePart):
        yield leaf
        return
    row_bytes = row_blocks.row_bytes(leaf.shape[1:], leaf.table.dtype)
    for start, stop in row_blocks.ranges(leaf.first, leaf.end, row_bytes):
        yield leaf.table.arrays(start, stop, 1)[0]
