"""The rows of a saved table in the form in which another table keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES, NarrowRows
from ampjax.sparse.rows.row_blocks import Block


@dataclass(frozen=True)
class SavedForm:
    """The form in which a saved table's rows are, and the one in which a table keeps them.

    Args:
      row_dtype: The dtype of rows in the files.
      kept: How the table keeps them in eight bits; None where it keeps them as they are.
      types: What rows and their state are.
    """

    row_dtype: str
    kept: NarrowRows | None
    types: RowTypes

    @property
    def arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """The shape of one row and the dtype of each array in the files: parameters, then states."""
        if self._narrow is None:
            return self.types.arrays
        return [self._narrow.array, *self.types.arrays[1:]]

    @property
    def is_kept(self) -> bool:
        """Tells whether the table keeps rows as they are in the files; they then need not be rounded anew."""
        return self._narrow is not None and self.row_dtype == (self.kept and self.kept.row_dtype)

    def blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yields blocks of the files' rows for `Shards.fill(stored=is_kept)`.

        Args:
          blocks: The files' rows.
        """
        for start, arrays in blocks:
            yield start, list(self.rows(arrays))

    def rows(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Some of the files' rows for `Shards.assign(stored=is_kept)`.

        Args:
          arrays: Parameters, then states, `[n, ...]` each.
        """
        if self._narrow is None or self.is_kept:
            return arrays
        return [self._narrow.read(np.asarray(arrays[0])), *arrays[1:]]

    @property
    def _narrow(self) -> NarrowRows | None:
        if self.row_dtype not in ROW_DTYPES:
            return None
        return NarrowRows(self.row_dtype, self.types.shape)
