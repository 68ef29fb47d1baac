"""All servers of a table as their client calls them: all servers of a call at once, in whatever process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows import parallel_calls
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.rows.row_kernels import kernels_for
from ampjax.sparse.rows.server_part import PartSettings, ServerNeeds
from ampjax.sparse.servers.server import Server

unique_numbers = itertools.count()
"""Numbers of tables and splits: none comes twice in a process."""

Call = tuple[Any, ...]
"""The name of a `ServerPart` method, and its arguments."""


class Servers(Protocol):
    """Servers, by number. Calls that let servers forget may come from any thread and from finalizers, and may take effect later."""

    def open_parts(
        self,
        key: SplitKey,
        rule: RowRule,
        parts: Mapping[int, PartSettings],
    ) -> None:
        """Makes empty parts of a new split.

        Args:
          key: The table and split.
          rule: The optimizer's rule for the table.
          parts: By server, what its part holds.
        """
        ...

    def ask(
        self,
        key: SplitKey,
        calls: Mapping[int, Call],
        nbytes: int = 0,
        needs: Mapping[int, ServerNeeds] | None = None,
    ) -> dict[int, Any]:
        """Asks parts, all at the same time.

        Args:
          key: The table and split.
          calls: By server its call.
          nbytes: How much there is to do, in bytes of gradients.
          needs: By server what must have come there before, from other clients.

        Returns:
          By server what its part answers.

        Raises:
          TableError: A part's. All calls have ended by then.
          ServerError: If a server or its part is gone.
        """
        ...

    def traffic(self, table: int, server: int) -> ByteCounts:
        """The bytes of a table that a server has counted.

        Args:
          table: The table's number.
          server: The server's.
        """
        ...

    def drop_update(self, key: SplitKey, update: int) -> None:
        """Forgets an update's gradients."""
        ...

    def close_parts(self, key: SplitKey) -> None:
        """Forgets a split with all its rows."""
        ...

    def forget_table(self, table: int) -> None:
        """Forgets a table with all its splits, and its counts."""
        ...


class LocalServers:
    """Servers of one table in the process of its client. Large calls run in threads."""

    def __init__(self):
        self._servers: dict[int, Server] = {}
        self._pool: ThreadPoolExecutor | None = None

    def open_parts(
        self,
        key: SplitKey,
        rule: RowRule,
        parts: Mapping[int, PartSettings],
    ) -> None:
        """Makes empty parts of a new split.

        Args:
          key: The table and split.
          rule: The optimizer's rule for the table.
          parts: By server, what its part holds.
        """
        for server, settings in parts.items():
            self._servers.setdefault(server, Server()).open(
                key,
                settings,
                kernels_for(rule),
            )

    def ask(
        self,
        key: SplitKey,
        calls: Mapping[int, Call],
        nbytes: int = 0,
        needs: Mapping[int, ServerNeeds] | None = None,
    ) -> dict[int, Any]:
        """Asks parts; in threads where there is much to do.

        Args:
          key: The table and split.
          calls: By server its call.
          nbytes: How much there is to do, in bytes of gradients.
          needs: Not used: all clients are in this process, and one call is made after the other.

        Returns:
          By server what its part answers.

        Raises:
          TableError: A part's. All calls have ended by then.
          ServerError: If a part is gone.
        """
        del needs
        if len(calls) < 2 or nbytes < parallel_calls.PARALLEL_BYTES:
            result = {}
            for server, call in calls.items():
                result[server] = self._servers[server].ask(key, *call)
            return result
        if self._pool is None:
            self._pool = ThreadPoolExecutor(thread_name_prefix="server")
        futures = {}
        for server, call in calls.items():
            futures[server] = self._pool.submit(
                self._servers[server].ask,
                key,
                *call,
            )
        errors = [error for future in futures.values() if (error := future.exception())]
        if errors:
            raise errors[0]
        return {server: future.result() for server, future in futures.items()}

    def traffic(self, table: int, server: int) -> ByteCounts:
        """The bytes of a table that a server has counted.

        Args:
          table: The table's number.
          server: The server's.
        """
        if server in self._servers:
            return self._servers[server].traffic(table)
        return ByteCounts()

    def drop_update(self, key: SplitKey, update: int) -> None:
        """Forgets an update's gradients."""
        for server in list(self._servers.values()):
            server.drop_update(key, update)

    def close_parts(self, key: SplitKey) -> None:
        """Forgets a split with all its rows."""
        for server in list(self._servers.values()):
            server.close(key)

    def forget_table(self, table: int) -> None:
        """Forgets a table with all its splits, and its counts."""
        for server in list(self._servers.values()):
            server.forget(table)
