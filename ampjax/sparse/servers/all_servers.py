"""A table's servers as their client asks them: all of a call's servers at a time, wherever they are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows import server_part
from ampjax.sparse.rows.byte_counts import Traffic
from ampjax.sparse.rows.row_kernels import kernels_of
from ampjax.sparse.rows.server_part import PartSettings
from ampjax.sparse.servers.server import Key, Server

numbers = itertools.count()
"""Of tables and splits: none comes twice in a process."""

Call = tuple[Any, ...]
"""A method of `Part` and its arguments."""


class Servers(Protocol):
    """Servers, by number. What they are told to forget may be forgotten later, and from any thread."""

    def open_parts(self, key: Key, rule: RowRule, parts: Mapping[int, PartSettings]) -> None:
        """Makes a part on each server that is named."""
        ...

    def ask(self, key: Key, calls: Mapping[int, Call], nbytes: int = 0) -> dict[int, Any]:
        """What parts answer; all calls have ended when one's error is raised.

        Args:
          key: The table and split.
          calls: By server its call.
          nbytes: How much there is to do, in bytes of gradients.
        """
        ...

    def traffic(self, table: int, server: int) -> Traffic:
        """A table's bytes, as a server counted them."""
        ...

    def drop_update(self, key: Key, update: int) -> None:
        """Forgets an update."""
        ...

    def close_parts(self, key: Key) -> None:
        """Forgets a split."""
        ...

    def forget_table(self, table: int) -> None:
        """Forgets a table."""
        ...


class LocalServers:
    """Servers of one table in the process of its client. Where there is much to do, they work in threads."""

    def __init__(self):
        self._servers: dict[int, Server] = {}
        self._pool: ThreadPoolExecutor | None = None

    def open_parts(self, key: Key, rule: RowRule, parts: Mapping[int, PartSettings]) -> None:
        """Makes a part on each server that is named."""
        for server, settings in parts.items():
            self._servers.setdefault(server, Server()).open(key, settings, kernels_of(rule))

    def ask(self, key: Key, calls: Mapping[int, Call], nbytes: int = 0) -> dict[int, Any]:
        """What parts answer."""
        if len(calls) < 2 or nbytes < server_part.PARALLEL_BYTES:
            return {server: self._servers[server].ask(key, *call) for server, call in calls.items()}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(thread_name_prefix="server")
        futures = {server: self._pool.submit(self._servers[server].ask, key, *call) for server, call in calls.items()}
        errors = [error for future in futures.values() if (error := future.exception())]
        if errors:
            raise errors[0]
        return {server: future.result() for server, future in futures.items()}

    def traffic(self, table: int, server: int) -> Traffic:
        """A table's bytes, as a server counted them."""
        return self._servers[server].traffic(table) if server in self._servers else Traffic()

    def drop_update(self, key: Key, update: int) -> None:
        """Forgets an update."""
        for server in list(self._servers.values()):
            server.drop_update(key, update)

    def close_parts(self, key: Key) -> None:
        """Forgets a split."""
        for server in list(self._servers.values()):
            server.close(key)

    def forget_table(self, table: int) -> None:
        """Forgets a table."""
        for server in list(self._servers.values()):
            server.forget(table)
