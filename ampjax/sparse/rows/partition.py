"""One partition of a table: its rows and their optimizer state, as NumPy arrays in host memory or in mapped files.

Knows its rows by their numbers within the partition. What has been checked and merged comes in; it does not know the table,
other partitions, or servers. `Selection` is rows of several partitions that are worked on together. Rows that are kept in eight bits
are read and updated as float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.narrow.narrow_rows import NarrowRows, stored_arrays
from ampjax.sparse.rows.aligned_arrays import aligned_empty
from ampjax.sparse.rows.byte_counts import Columns, cut


class Partition:
    """Rows, their state, and, where rows catch up, the number of updates that each row has seen.

    Args:
      index: Its number in the table.
      n_rows: Its number of rows.
      types: What they and their state are.
      seen: Updates that its rows have seen so far; None where rows that are left out of updates need not catch up.
      folder: Where its arrays are mapped files, of which those that are there are opened as they are; None for ordinary memory.
      narrow: How rows are kept in eight bits; None where they are kept as they are.
      n_partitions: Partitions of the table, by which rows' numbers in it are known.

    Attributes:
      types: What rows and their state are to those who read and update them.
      arrays: Rows in stored form, and their states, `[n_rows, ...]` each.
      changed: `[n_rows]`: which rows have been written since changes are noted; None where they are not.
    """

    def __init__(
        self,
        index: int,
        n_rows: int,
        types: RowTypes,
        seen: int | None,
        folder: Path | None = None,
        narrow: NarrowRows | None = None,
        n_partitions: int = 1,
    ):
        arrays = stored_arrays(types.arrays, narrow)
        files = [folder and folder / f"{index}-{i}.rows" for i in range(len(arrays))]
        self.index = index
        self.n_rows = n_rows
        self.types = types
        self._narrow = narrow
        self._n_partitions = n_partitions
        result = []
        for f, (shape, dtype) in zip(files, arrays, strict=True):
            result.append(_allocate(f, (n_rows, *shape), dtype))
        self.arrays = result
        if seen is None:
            self.seen = None
        else:
            self.seen = np.full(n_rows, seen, np.int64)
        self.changed: np.ndarray | None = None

    @property
    def everything(self) -> list[np.ndarray]:
        """All arrays, to be read or filled: parameters in stored form, states, and counts of updates seen by row."""
        return self.arrays + ([] if self.seen is None else [self.seen])

    def read(
        self,
        local: np.ndarray,
        columns: Columns,
        out: np.ndarray,
    ) -> None:
        """Reads parameters of some rows.

        Args:
          local: `[n]`, the rows.
          columns: Which of their columns; None for all.
          out: `[n, *row]` or as much of it as the columns are; any dtype.
        """
        array = self.arrays[0]
        if self._narrow is not None:
            rows = np.empty((len(local), *self.types.shape), np.float32)
            self._narrow.read_some(array, local, rows)
            out[...] = cut(rows, columns)
            return
        # `take` is twice as fast as indexing, and would copy the whole partition were that cut before.
        if columns is None and out.dtype == array.dtype:
            np.take(array, local, 0, out=out, mode="clip")  # `raise` would copy once more
        else:
            out[...] = cut(
                np.take(array, local, 0, mode="clip"),
                columns,
            )

    def take(
        self,
        local: np.ndarray,
        out: Sequence[np.ndarray],
    ) -> None:
        """Reads parameters and states of some rows.

        Args:
          local: `[n]`, the rows.
          out: For parameters, then for states, `[n, ...]` each.
        """
        self.read(local, None, out[0])
        for array, states in zip(self.arrays[1:], out[1:], strict=True):
            np.take(
                array,
                local,
                0,
                out=states,
                mode="clip",
            )  # as in `read`

    def update(
        self,
        local: np.ndarray,
        new: Sequence[np.ndarray],
        version: int,
    ) -> None:
        """Stores updated rows and their state.

        Args:
          local: `[n]`, the rows.
          new: Parameters, then states, `[n, ...]` each.
          version: How many updates they have seen now.
        """
        if self._narrow is None:
            self.put(local, new, version)
            return
        places = local.astype(np.int64)
        self._narrow.update(
            self.arrays[0],
            places,
            new[0],
            places * self._n_partitions + self.index,
            version,
        )
        self._put_arrays(
            local,
            self.arrays[1:],
            new[1:],
            version,
        )

    def put(
        self,
        local: np.ndarray,
        new: Sequence[np.ndarray],
        version: int,
    ) -> None:
        """Replaces rows and their state.

        Args:
          local: `[n]`, the rows.
          new: Parameters in stored form, then states, `[n, ...]` each.
          version: How many updates they have seen now.
        """
        self._put_arrays(
            local,
            self.arrays,
            new,
            version,
        )

    def _put_arrays(
        self,
        local: np.ndarray,
        arrays: Sequence[np.ndarray],
        new: Sequence[np.ndarray],
        version: int,
    ) -> None:
        for array, rows in zip(arrays, new, strict=True):
            _put_rows(array, local, rows)
        if self.seen is not None:
            self.seen[local] = version
        if self.changed is not None:
            self.changed[local] = True


def _put_rows(
    array: np.ndarray,
    local: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Stores rows as items of so many bytes, which NumPy writes two to six times as fast as rows of numbers."""
    if array.ndim == 1 or not rows.size:
        array[local] = rows
        return
    new = np.ascontiguousarray(rows, array.dtype)
    _as_items(array)[local] = _as_items(new)


def _as_items(rows: np.ndarray) -> np.ndarray:
    """The same memory as one item a row."""
    flat = rows.reshape(len(rows), -1)
    item = np.dtype((np.void, flat.shape[1] * flat.itemsize))
    return flat.view(item)[:, 0]


@dataclass(frozen=True)
class Selection:
    """Some rows of some partitions, in order: the rows of one kernel call.

    Args:
      parts: Partitions, and rows of each, `[n]`, each row once.
    """

    parts: tuple[tuple[Partition, np.ndarray], ...]

    @cached_property
    def ends(self) -> list[int]:
        """The end of each partition's rows."""
        return np.cumsum(
            [len(local) for _, local in self.parts],
            dtype=np.int64,
        ).tolist()

    def __len__(self) -> int:
        return self.ends[-1] if self.parts else 0

    def take(self, size: int) -> list[np.ndarray]:
        """Reads parameters and states of the rows.

        Args:
          size: At least `len(self)`; there is at least one row.

        Returns:
          Fresh arrays `[size, ...]`: parameters, then states. The last row fills what is left.
        """
        result = []
        for shape, dtype in self.parts[0][0].types.arrays:
            result.append(aligned_empty((size, *shape), dtype))
        for (part, local), start, end in zip(self.parts, [0, *self.ends], self.ends, strict=False):
            rows_here = [rows[start:end] for rows in result]
            part.take(local, rows_here)
        for rows in result:
            rows[len(self) :] = rows[len(self) - 1]
        return result

    def write(
        self,
        new: Sequence[np.ndarray],
        version: int,
    ) -> None:
        """Stores updated rows and their state.

        Args:
          new: Parameters, then states, each `[len(self) or more, ...]`.
          version: How many updates they have seen now.
        """
        for (part, local), start, end in zip(self.parts, [0, *self.ends], self.ends, strict=False):
            rows_here = [rows[start:end] for rows in new]
            part.update(local, rows_here, version)

    def seen(self) -> np.ndarray | None:
        """The number of updates that each row has seen, `[len(self)]`; None where rows don't catch up."""
        counts = []
        for part, local in self.parts:
            if part.seen is not None:
                counts.append(part.seen[local])
        return np.concatenate(counts) if counts else None

    def at(self, places: np.ndarray) -> Selection:
        """Some of its rows.

        Args:
          places: Their places in this selection, rising.
        """
        cuts = np.searchsorted(places, self.ends[:-1])
        starts = [0, *self.ends[:-1]]
        pieces = zip(
            self.parts,
            starts,
            np.split(places, cuts),
            strict=True,
        )
        return Selection(
            tuple(
                (part, local[chosen - start])
                for (part, local), start, chosen in pieces
                if len(chosen)
            )
        )


def _allocate(
    file: Path | None,
    shape: tuple[int, ...],
    dtype: np.dtype,
) -> np.ndarray:
    """Allocates an array of rows or of their state, in memory or as a mapped file: the only place that decides where rows are."""
    if file is None:
        return np.zeros(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    is_there = file.exists() and file.stat().st_size == nbytes
    return np.asarray(np.memmap(file, dtype, "r+" if is_there else "w+", shape=shape))
