"""Rows in eight bits: an element is a code of one byte, and a row has a scale, a power of two.

The scale is the smallest with which the row fits, as in the microscaling formats (MX) of the Open Compute Project, with a row as the block. It is stored as its
exponent, in the byte before the row's codes. Read rows are float32, exactly: so a row that is read and stored again is the same.
Knows rows of numbers; nothing of tables or optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType

import jax.numpy as jnp
import numpy as np

_MASK = (1 << 64) - 1

_FORMS = {
    "int8": (7, 7, 6, 0x7E0000, 1),
    "float8_e4m3fn": (3, -6, 8, 0x600000, 0),
    "float8_e5m2": (2, -14, 15, 0x600000, 0),
}
"""By name the numbers of a format, in the order of `format_columns`."""

RowArray = tuple[tuple[int, ...], np.dtype]
"""The shape of one row, and the dtype."""

ROW_DTYPES = tuple(_FORMS)
"""The dtypes of narrow rows."""


def parameter_dtype(stored: str) -> str:
    """Tells in which dtype a table's rows are read.

    Args:
      stored: In which they are stored.

    >>> parameter_dtype("int8"), parameter_dtype("bfloat16")
    ('float32', 'bfloat16')
    """
    return "float32" if stored in ROW_DTYPES else stored


@dataclass(frozen=True)
class NarrowRows:
    """The form of rows that are stored in eight bits.

    Args:
      row_dtype: One of `ROW_DTYPES`.
      shape: The shape of one row.
      seed: Decides the random numbers by which updated rows are rounded.

    >>> rows = NarrowRows("int8", (3,))
    >>> stored = rows.stored(np.array([[0.5, -0.25, 0.1]], np.float32))
    >>> stored.tolist(), rows.read(stored).tolist()
    ([[249, 64, 224, 13]], [[0.5, -0.25, 0.1015625]])
    """

    row_dtype: str
    shape: tuple[int, ...]
    seed: int = 0

    @property
    def array(self) -> tuple[tuple[int, ...], np.dtype]:
        """The shape and dtype of one stored row."""
        width = 1 + math.prod(self.shape)
        return (width,), np.dtype(np.uint8)

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Rounds new rows to the nearest numbers.

        Args:
          rows: `[n, *shape]`, finite numbers.

        Returns:
          `[n, 1 + size]`, uint8: the exponent of the scale as a signed byte, then codes.
        """
        shape, dtype = self.array
        n = len(rows)
        places = np.arange(n)
        result = np.zeros((n, *shape), dtype)
        self._round(
            result,
            places,
            rows,
            places,
            0,
            True,
        )
        return result

    def read(self, stored: np.ndarray) -> np.ndarray:
        """Reads stored rows.

        Args:
          stored: `[n, 1 + size]`, uint8.

        Returns:
          `[n, *shape]`, float32.
        """
        n = len(stored)
        places = np.arange(n)
        result = np.empty((n, *self.shape), np.float32)
        self.read_some(stored, places, result)
        return result

    def read_some(
        self,
        stored: np.ndarray,
        places: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Reads some of many stored rows.

        Args:
          stored: `[m, 1 + size]`, uint8.
          places: `[n]`, which rows.
          out: `[n, *shape]`, float32, contiguous.
        """
        _loops().read_rows(
            stored,
            places.astype(np.int64, copy=False),
            _values(self.row_dtype),
            _powers(),
            _flat(out),
        )

    def update(
        self,
        stored: np.ndarray,
        places: np.ndarray,
        rows: np.ndarray,
        row_ids: np.ndarray,
        version: int,
    ) -> None:
        """Stores updated rows, each element rounded up or down at random, so that the mean is right.

        Args:
          stored: `[m, 1 + size]`, uint8; changed.
          places: `[n]`, which rows.
          rows: Their new values, `[n, *shape]`, finite numbers.
          row_ids: `[n]`, their numbers in the table. The random numbers follow from these, the version and the seed.
          version: The number of the update.
        """
        key = _mix_state(self.seed) ^ version
        self._round(
            stored,
            places,
            rows,
            row_ids,
            _mix_state(key),
            False,
        )

    def _round(
        self,
        stored: np.ndarray,
        places: np.ndarray,
        rows: np.ndarray,
        row_ids: np.ndarray,
        key: int,
        is_nearest: bool,
    ) -> None:
        wide = np.ascontiguousarray(rows, np.float32)
        bits = _flat(wide).view(np.int32)
        _loops().round_rows(
            bits,
            stored,
            places.astype(np.int64, copy=False),
            row_ids.astype(np.uint64),
            np.uint64(key),
            is_nearest,
            self._form,
        )

    @cached_property
    def _form(self) -> np.ndarray:
        return np.array(_FORMS[self.row_dtype], np.int64)


def stored_arrays(arrays: Sequence[RowArray], narrow: NarrowRows | None) -> list[RowArray]:
    """The shape of one row and the dtype of each array in stored form.

    Args:
      arrays: The same in the form in which rows are read: parameters, then states.
      narrow: The form of parameters in eight bits; None where rows are stored as they are read.
    """
    if narrow is None:
        return list(arrays)
    return [narrow.array, *arrays[1:]]


@lru_cache(maxsize=8)
def _values(row_dtype: str) -> np.ndarray:
    """The number of each code, `[256]`, float32; none where codes are the numbers."""
    if row_dtype == "int8":
        return np.zeros(0, np.float32)
    codes = np.arange(256)
    small = codes.astype(np.uint8)
    numbers = small.view(jnp.dtype(row_dtype))
    return numbers.astype(np.float32)


@lru_cache(maxsize=1)
def _powers() -> np.ndarray:
    """The scale of each exponent, as an unsigned byte, `[256]`, float32."""
    small = np.arange(256).astype(np.uint8)
    exponents = small.view(np.int8)
    ones = np.ones(256, np.float32)
    return np.ldexp(ones, exponents.astype(np.int32))


def _flat(rows: np.ndarray) -> np.ndarray:
    """Rows `[n, *shape]` as vectors `[n, size]`, a view."""
    n = len(rows)
    size = math.prod(rows.shape[1:])
    return rows.reshape(n, size)


def _mix_state(number: int) -> int:
    """SplitMix64's next number after some state, from 0 to 2^64 - 1."""
    bits = (number + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def _loops() -> ModuleType:
    """The compiled loops; the first call imports Numba."""
    from ampjax.sparse.narrow import narrow_loops

    return narrow_loops
