"""The rows of one parameter in a table of several parameters, read and saved like a table of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.optim.row_rule import RowState
from ampjax.sparse.table.sharded_table import Table


@dataclass(frozen=True)
class TablePart:
    """One parameter's rows.

    Args:
      table: The table.
      first: The parameter's first row in it.
      end: The row after its last.
      state: The rule's state under the names that it has for this parameter.
    """

    table: Table
    first: int
    end: int
    state: tuple[RowState, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """`[n_rows, *row]`."""
        return (
            self.end - self.first,
            *self.table.shape[1:],
        )

    def arrays(
        self,
        n_arrays: int | None = None,
    ) -> list[np.ndarray]:
        """Copies parameters and states of all its rows after all updates, `[n_rows, ...]` each.

        Args:
          n_arrays: How many of these arrays: 1 for parameters alone; None for all.
        """
        return self.table.arrays(self.first, self.end, n_arrays)

    def pull(self, row_ids: np.ndarray) -> np.ndarray:
        """Reads rows after all updates so far.

        Args:
          row_ids: `[n]`, integers in `[0, n_rows)`, the parameter's numbers.

        Returns:
          `[n, *row]`.
        """
        return self.table.pull(np.asarray(row_ids, np.int64) + self.first)

    def save(
        self,
        folder: str | Path,
        *,
        changes: bool = False,
    ) -> None:
        """Writes its rows to a folder, as `Table.save` does.

        Args:
          folder: Made if it is missing.
          changes: Whether only those that have changed are written, as `Table.save_part` does.
        """
        self.table.save_part(
            folder,
            self.first,
            self.end,
            self.state,
            changes=changes,
        )


def part_of_all(table: Table) -> TablePart:
    """Makes the part of a table that holds one parameter's rows only."""
    return TablePart(table, 0, table.n_rows, tuple(table.rule.state))


class StackedValues:
    """Several arrays, one's rows after the other's; none is read before its rows are.

    Args:
      values: Arrays `[n, *row]` of one dtype, or anything with `shape`, `dtype` and slices of rows.
    """

    def __init__(self, values: Sequence[Any]):
        self._values = values
        self._ends = np.cumsum([each.shape[0] for each in values]).tolist()
        self.shape = (
            self._ends[-1],
            *values[0].shape[1:],
        )
        self.dtype = values[0].dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        parts = []
        for each, end in zip(self._values, self._ends, strict=True):
            start = end - each.shape[0]
            first = max(rows.start, start)
            last = min(rows.stop, end)
            if first < last:
                parts.append(np.asarray(each[first - start : last - start]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
