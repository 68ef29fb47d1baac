"""The rows of a saved table in another table's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES, NarrowRows, stored_arrays
from ampjax.sparse.rows.row_blocks import Block


@dataclass(frozen=True)
class SavedForm:
    """The form of a saved table's rows, and of the rows of a table to be filled.

    Args:
      row_dtype: The dtype of rows in the files.
      kept: The table's form in eight bits; None where it stores float32.
      types: What rows and their state are.
    """

    row_dtype: str
    kept: NarrowRows | None
    types: RowTypes

    @property
    def arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """The shape of one row and the dtype of each array in the files: parameters, then states."""
        return stored_arrays(self.types.arrays, self._narrow)

    @property
    def is_kept(self) -> bool:
        """Tells whether the table stores rows in the files' form, so that no row is rounded anew."""
        if self._narrow is None:
            return False
        if self.kept is None:
            return False
        return self.kept.row_dtype == self.row_dtype

    def blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yields blocks of the files' rows for `Shards.fill(stored=is_kept)`.

        Args:
          blocks: The files' rows.
        """
        for start, arrays in blocks:
            rows = self.rows(arrays)
            yield start, list(rows)

    def rows(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Some of the files' rows for `Shards.assign(stored=is_kept)`.

        Args:
          arrays: Parameters, then states, `[n, ...]` each.
        """
        if self._narrow is None or self.is_kept:
            return arrays
        stored = np.asarray(arrays[0])
        rows = self._narrow.read(stored)
        return [rows, *arrays[1:]]

    @property
    def _narrow(self) -> NarrowRows | None:
        if self.row_dtype not in ROW_DTYPES:
            return None
        return NarrowRows(self.row_dtype, self.types.shape)
