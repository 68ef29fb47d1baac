"""A parameter server: its parts of tables, and the bytes over its wire.

Stands for one machine of Parallax's parameter servers, in the process of its clients or in one of its own. It counts what has come to
it and what goes from it; its clients count the same at their end.
"""

from __future__ import annotations

from typing import Any

from ampjax.errors import ServerError
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.rows.row_kernels import RowKernels
from ampjax.sparse.rows.server_part import PartSettings, ServerNeeds, ServerPart


class Server:
    """A server: parts of tables, and the calls to them."""

    def __init__(self):
        self._parts: dict[SplitKey, ServerPart] = {}
        self._traffic: dict[int, ByteCounts] = {}

    def traffic(self, table: int) -> ByteCounts:
        """The bytes of a table counted here; the counts go on.

        Args:
          table: The table's number.
        """
        return self._traffic.setdefault(table, ByteCounts())

    def open(self, key: SplitKey, settings: PartSettings, kernels: RowKernels) -> None:
        """Makes an empty part."""
        self._parts[key] = ServerPart(
            settings,
            kernels,
            self.traffic(key.table),
        )

    def ask(
        self,
        key: SplitKey,
        method: str,
        *args: Any,
    ) -> Any:
        """Calls a method of a part.

        Returns:
          What the method returns.

        Raises:
          ServerError: If there is no such part: an earlier process had it.
          TableError: The method's.
        """
        if key not in self._parts:
            fix = "What an earlier process held is lost: restore the last checkpoint."
            raise ServerError(
                "server", "a table that was opened at this process", f"number {key.table}", fix
            )
        return getattr(self._parts[key], method)(*args)

    def is_ready(self, key: SplitKey, needs: ServerNeeds | None) -> bool:
        """Tells whether all messages that a call needs have come to its part.

        Args:
          key: The table and split.
          needs: What it needs; None for nothing.
        """
        return needs is None or key not in self._parts or self._parts[key].is_ready(needs)

    def drop_update(self, key: SplitKey, update: int) -> None:
        """Forgets an update's gradients."""
        if key in self._parts:
            self._parts[key].drop(update)

    def close(self, key: SplitKey) -> None:
        """Forgets a part with all its rows."""
        self._parts.pop(key, None)

    def forget(self, table: int) -> None:
        """Forgets a table's parts, and its counts."""
        for key in [key for key in self._parts if key.table == table]:
            del self._parts[key]
        self._traffic.pop(table, None)
