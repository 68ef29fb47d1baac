"""A parameter server: what it holds of tables, and what has gone over its wire.

Stands for one machine of Parallax's parameter servers, in the process of its clients or in one of its own. What it is given has
travelled; what it gives will travel: it counts both, and its clients count the same at their end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ampjax.errors import ServerError
from ampjax.sparse.rows.byte_counts import Traffic
from ampjax.sparse.rows.row_kernels import Kernels
from ampjax.sparse.rows.server_part import Part, PartSettings


class Key(NamedTuple):
    """A table as it is split now: a new split has other parts.

    Args:
      table: The table's number.
      split: The split's.
    """

    table: int
    split: int


class Server:
    """Answers for the parts that are on it."""

    def __init__(self):
        self._parts: dict[Key, Part] = {}
        self._traffic: dict[int, Traffic] = {}

    def traffic(self, table: int) -> Traffic:
        """A table's bytes, as they were counted here."""
        return self._traffic.setdefault(table, Traffic())

    def open(self, key: Key, settings: PartSettings, kernels: Kernels) -> None:
        """Makes an empty part."""
        self._parts[key] = Part(settings, kernels, self.traffic(key.table))

    def ask(self, key: Key, method: str, *args: Any) -> Any:
        """What a method of a part gives.

        Raises:
          ServerError: If there is no such part: an earlier process had it.
          TableError: The method's.
        """
        if key not in self._parts:
            fix = "What an earlier process held is lost: restore the last checkpoint."
            raise ServerError("server", "a table that was opened at this process", f"number {key.table}", fix)
        return getattr(self._parts[key], method)(*args)

    def drop_update(self, key: Key, update: int) -> None:
        """Forgets an update."""
        if key in self._parts:
            self._parts[key].drop(update)

    def close(self, key: Key) -> None:
        """Forgets a part."""
        self._parts.pop(key, None)

    def forget(self, table: int) -> None:
        """Forgets a table."""
        for key in [key for key in self._parts if key.table == table]:
            del self._parts[key]
        self._traffic.pop(table, None)
