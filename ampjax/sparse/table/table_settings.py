"""A table's settings, checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampjax.errors import TableError
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES, NarrowRows, parameter_dtype
from ampjax.sparse.rows.partition_layout import PartitionLayout, place_evenly
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table.table_sharing import TableSharing

DTYPES = tuple(np.dtype(dtype) for dtype in (jnp.float32, jnp.bfloat16, jnp.float16))
"""The dtypes that rows may have, in the table and on the wire."""
MAX_LAG = 64
"""Updates that rows may miss, if nothing else is said: few, since a step makes all that the rows which it reads have missed."""
MAX_LAG_IN_FILES = 1024
"""The same for rows in mapped files, each of which is read and written once in so many updates."""
MOST_PARTS = 1 << 20
"""Partitions and servers of a saved table at most: each is an object in memory."""
_OF_NARROW = {"row_dtype", "rounding_seed"}
"""Those that are saved with a table of narrow rows besides."""
_KEPT = {"partitions", "servers", "mode", "max_lag", "wire_dtype", "folder"}
"""The settings in a saved table, these and no others: an older version reads no more, and settings of a run alone don't belong here."""


@dataclass(frozen=True)
class TableSettings:
    """The settings of a table's rows; `Table` explains each.

    Args:
      n_rows: Rows in the table.
      dtype: The rows' dtype.
      partitions: The number of partitions.
      servers: A number of servers, or for each partition its server.
      mode: `lazy` or `faithful`.
      wire_dtype: None, or the dtype of rows between client and server.
      folder: None, or where mapped files go.
      max_lag: Updates that a row may miss.
      processes: None, or server processes.
      sharing: None, or how processes share the table.
      row_dtype: None, or in which eight bits rows are kept.
      rounding_seed: Decides how they are rounded.

    Raises:
      TableError: If one of them is wrong.
    """

    n_rows: int
    dtype: np.dtype
    partitions: int
    servers: int | Sequence[int]
    mode: str
    wire_dtype: Any
    folder: str | Path | None
    max_lag: int
    processes: ServerProcesses | None = None
    sharing: TableSharing | None = None
    row_dtype: str | None = None
    rounding_seed: int = 0

    def __post_init__(self):
        # NumPy's integers are as good, but JSON does not take them.
        object.__setattr__(self, "partitions", checked_partitions(self.partitions, self.n_rows))
        object.__setattr__(self, "servers", _checked_servers(self.servers))
        if self.mode not in ("lazy", "faithful"):
            raise TableError(
                "mode", "`lazy` or `faithful`", f"{self.mode!r}", "Choose one of the two."
            )
        if not (isinstance(self.max_lag, int) and self.max_lag > 0):
            raise TableError(
                "max_lag",
                "an integer above 0",
                f"{self.max_lag!r}",
                "Leave `max_lag` out, or write 1 or more.",
            )
        if self.wire_dtype is not None:
            checked_wire(self.wire_dtype)
        if self.folder is not None and Path(self.folder).is_file():
            raise TableError(
                "folder",
                "a folder for mapped files",
                f"the file `{self.folder}`",
                "Name a folder, or a path where nothing is.",
            )
        self.placement(self.partitions)
        if self.processes is not None:
            _check_processes(self.processes, self.n_servers)
        if self.sharing is not None:
            _check_sharing(self.sharing, self.folder, self.processes)
        _check_row_dtype(self.row_dtype, self.rounding_seed, self.dtype)

    @property
    def wire(self) -> np.dtype:
        """The dtype of rows and gradients between client and server."""
        return self.dtype if self.wire_dtype is None else np.dtype(self.wire_dtype)

    @property
    def n_servers(self) -> int:
        """The number of servers."""
        if isinstance(self.servers, int):
            return self.servers
        return max(self.servers, default=0) + 1

    def narrow(self, shape: tuple[int, ...]) -> NarrowRows | None:
        """The form of rows in eight bits; None where rows have their own dtype.

        Args:
          shape: The shape of one row.
        """
        if self.row_dtype is None:
            return None
        return NarrowRows(self.row_dtype, shape, self.rounding_seed)

    def placement(self, n_partitions: int) -> tuple[int, ...]:
        """For each partition its server: as given if there are as many partitions as were given, else evenly by size.

        Raises:
          TableError: If `servers` is neither a number of servers nor one server for each partition.
        """
        if isinstance(self.servers, int):
            if self.servers < 1:
                raise TableError(
                    "servers",
                    "at least 1",
                    f"{self.servers}",
                    "A table lives on one server or more.",
                )
        elif len(self.servers) == n_partitions and min(self.servers) >= 0:
            return tuple(self.servers)
        elif n_partitions == self.partitions:
            raise TableError(
                "servers",
                f"a number, or {n_partitions} servers' numbers",
                f"{list(self.servers)}",
                "Name one server for each partition.",
            )
        layout = PartitionLayout(self.n_rows, n_partitions)
        return place_evenly(
            [layout.size(p) for p in range(n_partitions)],
            self.n_servers,
        )

    def facts_to_save(self, n_partitions: int) -> dict[str, Any]:
        """The settings that are saved with a table, in JSON's types: all but a folder and processes, which belong to this run."""
        wire = None if self.wire_dtype is None else str(self.wire)
        placement = {
            "partitions": n_partitions,
            "servers": self.n_servers,
            "mode": self.mode,
            "max_lag": self.max_lag,
        }
        kept = placement | {"wire_dtype": wire, "folder": None}
        if self.row_dtype is None:
            return kept
        return kept | {"row_dtype": self.row_dtype, "rounding_seed": self.rounding_seed}


def settings_of_saved(
    where: str | Path,
    saved: Mapping[str, Any],
    arrays: Sequence[np.ndarray],
    given: Mapping[str, Any],
    n_rows: int,
) -> TableSettings:
    """The settings of a saved table, checked against its files.

    Args:
      where: Its folder, for error messages.
      saved: Its manifest.
      arrays: Its files' rows.
      given: Settings in place of the saved ones.
      n_rows: Rows that the table will have, with those of other files.

    Returns:
      The settings, which fit the files.

    Raises:
      TableError: If what was saved does not fit the files, or is nothing that a table saves; or if a given setting is wrong.
    """
    first = [list(array.shape) for array in arrays[:1]], [str(array.dtype) for array in arrays[:1]]
    is_narrow = saved["dtype"] in ROW_DTYPES
    names_of_dtypes = [str(dtype) for dtype in DTYPES]
    known = is_narrow or saved["dtype"] in names_of_dtypes
    if not saved["shape"] or not known or first != _first_array(saved["shape"], saved["dtype"]):
        claimed = f"rows of shape {saved['shape']}, {saved['dtype']}"
        raise TableError(
            f"{where}", claimed, f"files of shape {first[0]}, {first[1]}", "Load another copy."
        )
    sizes = [saved["settings"].get(name) for name in ("partitions", "servers")]
    wanted = _KEPT | _OF_NARROW if is_narrow else _KEPT
    names = set(saved["settings"]) == wanted and saved["settings"]["folder"] is None
    if not names or not all(type(n) is int and 1 <= n <= MOST_PARTS for n in sizes):
        expected = f"a table's settings, with 1 to {MOST_PARTS} partitions and servers"
        raise TableError(
            f"{where}, `settings`", expected, f"{saved['settings']!r:.100}", "Load another copy."
        )
    return TableSettings(
        n_rows,
        np.dtype(jnp.dtype(parameter_dtype(saved["dtype"]))),
        **(saved["settings"] | given),
    )


def _first_array(
    shape: Sequence[int],
    row_dtype: str,
) -> tuple[list[list[int]], list[str]]:
    """The shape and dtype of a saved table's first array, its rows."""
    if row_dtype not in ROW_DTYPES:
        return [list(shape)], [row_dtype]
    width, dtype = NarrowRows(row_dtype, tuple(shape[1:])).array
    return [[shape[0], *width]], [str(dtype)]


def checked_partitions(n_partitions: Any, n_rows: int) -> int:
    """A number of partitions, if a table can be split so.

    Raises:
      TableError: If it is no integer in `[1, n_rows]`.
    """
    if not isinstance(n_partitions, int | np.integer) or not 1 <= n_partitions <= n_rows:
        raise TableError(
            "partitions",
            f"an integer in [1, {n_rows}]",
            f"{n_partitions!r}",
            "A partition holds one row at least.",
        )
    return int(n_partitions)


def _checked_servers(servers: Any) -> int | tuple[int, ...]:
    """Returns a number of servers, or servers' numbers, as integers of Python; raises a `TableError` for anything else."""
    try:
        if np.iterable(servers):
            return tuple(map(operator.index, servers))
        return operator.index(servers)
    except TypeError:
        fix = "A table lives on one server or more."
        raise TableError(
            "servers", "an integer, or one for each partition", f"{servers!r}", fix
        ) from None


def _check_processes(processes: Any, n_servers: int) -> None:
    if not isinstance(processes, ServerProcesses):
        fix = "Write `with ServerProcesses(1) as processes:`."
        raise TableError("processes", "ServerProcesses or None", f"{processes!r}", fix)
    if len(processes) < n_servers:
        fix = "Make as many as the table has servers."
        raise TableError(
            "processes", f"at least {n_servers}, one for each server", f"{len(processes)}", fix
        )


def _check_sharing(sharing: Any, folder: Any, processes: Any) -> None:
    if not isinstance(sharing, TableSharing):
        fix = "Write `TableSharing(process=0, n_processes=2)`."
        raise TableError("sharing", "a TableSharing or None", f"{sharing!r}", fix)
    if folder is None:
        fix = "Name one, in /dev/shm for rows in memory."
        raise TableError("folder", "the folder of the table that is shared", "None", fix)
    if processes is not None:
        fix = "A shared table needs no servers: leave `processes` out."
        raise TableError("processes", "None where `sharing` is given", "server processes", fix)


def _check_row_dtype(row_dtype: Any, seed: Any, dtype: np.dtype) -> None:
    """Returns if rows of a dtype can be kept so."""
    if row_dtype is None:
        return
    if row_dtype not in ROW_DTYPES:
        fix = "None keeps rows as they are. For bfloat16 and float16 cast the values, and see `optim.stochastic_rounding`."
        raise TableError("row_dtype", f"None or one of {ROW_DTYPES}", f"{row_dtype!r}", fix)
    if dtype != np.float32:
        fix = "Cast them to float32: they are read and updated so, and kept in eight bits."
        raise TableError("values", f"float32 where `row_dtype` is {row_dtype}", f"{dtype}", fix)
    if type(seed) is not int or not 0 <= seed < 1 << 64:
        fix = "0 is the default; another number gives other random numbers."
        raise TableError("rounding_seed", "an integer from 0 to 2^64 - 1", f"{seed!r}", fix)


def checked_wire(dtype: Any) -> np.dtype:
    """Returns the dtype of rows that travel, if the dtype is allowed.

    Raises:
      TableError: If it is not one of `DTYPES`.
    """
    try:
        wire = np.dtype(dtype)
    except TypeError:
        wire = np.dtype(object)
    if wire not in DTYPES:
        raise TableError(
            "wire_dtype",
            "float32, bfloat16 or float16",
            f"{dtype}",
            "Leave it out for the table's own.",
        )
    return wire


def checked_columns(
    columns: Any,
    row: tuple[int, ...],
) -> tuple[int, int] | None:
    """Returns columns of rows, if rows have such columns.

    Args:
      columns: From and to where along the last axis of rows; None for all.
      row: The shape of one row.

    Raises:
      TableError: If rows have no such columns.
    """
    if columns is None:
        return None
    width = row[-1] if row else 0
    try:
        first, end = map(operator.index, columns)
    except (TypeError, ValueError):
        first = 0
        end = 0
    if not 0 <= first < end <= width:
        raise TableError(
            "columns",
            f"None, or two integers that rise in [0, {width}]",
            f"{columns!r}",
            "Leave `columns` out for whole rows.",
        )
    return first, end


def check_values(values: Any) -> None:
    """Returns if values can be a table's rows.

    Raises:
      TableError: If they are no array with rows, or of another dtype than `DTYPES`.
    """
    shape = getattr(values, "shape", None)
    dtype = getattr(values, "dtype", None)
    if shape is None or dtype is None or not hasattr(values, "__getitem__"):
        raise TableError(
            "values",
            "an array [n_rows, *row], or what has shape, dtype and slices",
            type(values).__name__,
            "Wrap it with `np.asarray`.",
        )
    if len(shape) < 1 or 0 in shape:
        raise TableError(
            "values",
            "shape [n_rows, *row], nothing of it 0",
            f"shape {tuple(shape)}",
            "Give one row for each id.",
        )
    if np.dtype(dtype) not in DTYPES:
        fix = "Cast them; float64 is not kept. Of complex ones, keep real and imaginary parts as two columns, or an ordinary array."
        raise TableError("values", "float32, bfloat16 or float16", f"{dtype}", fix)
