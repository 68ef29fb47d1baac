"""Tables in another process than the program that made them: they travel as the files of a saved table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ampjax.cluster.hosts.packed_programs import travels_as
from ampjax.errors import TableError
from ampjax.sparse.table import table_files
from ampjax.sparse.table.sharded_table import Table


class TravellingTable:
    """A table, or a stand-in where its rows have not arrived. It implements `ir.host_tables.SentTable`.

    It is pickled without its rows, so that a program which names a large table is small. The rows follow to the one process that needs them.

    Args:
      shape: `[n_rows, *row]`.
      dtype: The rows' dtype.
      transform: The optax transform of the rows.
      table: The table itself, where it is.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        transform: Any,
        table: Table | None = None,
    ):
        self.shape = shape
        self.dtype = dtype
        self.transform = transform
        self.table = table

    @classmethod
    def of(cls, table: Table) -> TravellingTable:
        """A table that is here."""
        return cls(table.shape, table.dtype, table.transform, table)

    def __reduce__(self) -> tuple[Any, ...]:
        return TravellingTable, (self.shape, self.dtype, self.transform)

    def without_rows(self) -> TravellingTable:
        """Makes the stand-in for the table in another process."""
        return TravellingTable(self.shape, self.dtype, self.transform)

    # -- in the process that has the rows

    def pull(self, row_ids: np.ndarray) -> np.ndarray:
        """Calls `Table.pull`."""
        return self._here.pull(row_ids)

    def push(self, row_ids: np.ndarray, grads: np.ndarray) -> int:
        """Calls `Table.push`."""
        return self._here.push(row_ids, grads)

    def dense(self) -> np.ndarray:
        """Calls `Table.dense`."""
        return self._here.dense()

    @property
    def opt_state(self) -> Any:
        """The table's `Table.opt_state`."""
        return self._here.opt_state

    @property
    def version(self) -> int:
        """The table's `Table.version`."""
        return self._here.version

    @property
    def contents(self) -> tuple[object, int]:
        """The table's `Table.contents`."""
        return self._here.contents

    def as_files(self) -> dict[str, np.ndarray]:
        """Collects the table's whole contents as files: rows, optimizer state, version, settings.

        Returns:
          The bytes of the files of a saved table, by name.
        """
        with TemporaryDirectory() as folder:
            self._here.save(folder)
            result = {}
            for path in sorted(Path(folder).iterdir()):
                result[path.name] = np.fromfile(path, np.uint8)
            return result

    def take_files(self, files: Mapping[str, np.ndarray]) -> None:
        """Replaces the contents by those of another table; references to this table see the new rows.

        Args:
          files: What `as_files` gave.

        Raises:
          TableError: If these are no files of a table of the same shape and dtype.
        """
        with TemporaryDirectory() as folder:
            for name, content in files.items():
                if not table_files.is_name(name):
                    raise TableError(
                        "take_files",
                        "the files of a saved table",
                        f"`{name}`",
                        "Pass what `as_files` gave.",
                    )
                content.tofile(Path(folder) / name)
            arrived = Table.load(folder, self.transform)
        if self.table is None:
            self.table = arrived
        else:
            self.table.take_over(arrived)

    @property
    def _here(self) -> Table:
        if self.table is None:
            fix = "Ask the trainer whose table it is: `trainer.params`, or `trainer.save`."
            raise TableError(
                "table, rows", "rows in this process", "a table that is in another process", fix
            )
        return self.table

    def __repr__(self) -> str:
        return (
            repr(self.table)
            if self.table is not None
            else f"a table {list(self.shape)} in another process"
        )


travels_as(Table, TravellingTable.of)
