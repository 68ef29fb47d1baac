"""Servers in processes of their own on this machine (the paper's parameter servers), from their clients' side.

All servers that a call concerns are asked at the same time. Knows tables by their numbers; how one process is started, asked and ended is
known to `process` alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ampjax.cluster.wire.message import Message
from ampjax.errors import AmpError, HostError, ServerError
from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.rows.server_part import PartSettings, ServerNeeds
from ampjax.sparse.servers.all_servers import Call
from ampjax.sparse.servers.process import CLOSED, Begun, ServerProcess, start_alone
from ampjax.sparse.servers.protocol import Request
from ampjax.utils.interrupts import uninterrupted
from ampjax.utils.setting_checks import at_least


class ServerProcesses:
    """A set of server processes for any number of tables; each starts when a table is first opened there.

    The processes end with `close`, at the end of a `with` block, when this object is no longer referenced, and when this process ends for
    any reason. If one of them ends by itself, its rows are lost. Opening or loading a table there starts a new process.

    Args:
      n: The number of servers.
      begin: Starts a server, given its number; by default on this machine, one by one.
      waits: Whether to wait until updates have been made. If not, an error in an update ends its server; use this only where all servers
        are then started anew.

    Raises:
      SettingsError: If `n` is no integer of at least 1.

    >>> import numpy as np, optax
    >>> from ampjax.sparse import Table
    >>> with ServerProcesses(1) as servers:
    ...     table = Table(np.ones((4, 2), np.float32), optax.sgd(0.5), processes=servers)
    ...     table.push([1], np.ones((1, 2), np.float32)), table.pull([1]).tolist()
    (1, [[0.5, 0.5]])
    """

    def __init__(
        self,
        n: int,
        begin: Callable[[int], Begun] = start_alone,
        waits: bool = True,
    ):
        at_least("servers", n, 1)
        self._lock = threading.RLock()
        self._waits = waits
        self._rules: list[RowRule] = []  # by their numbers at the servers
        self._on: dict[
            SplitKey, tuple[int, ...]
        ] = {}  # by split the servers that have a part of it
        self._is_closed = False
        self._servers = [ServerProcess(number, begin) for number in range(n)]
        self._end = weakref.finalize(
            self,
            _end_all,
            self._servers,
            os.getpid(),
        )

    def __len__(self) -> int:
        return len(self._servers)

    def __repr__(self) -> str:
        return f"ServerProcesses({len(self)}, process ids {self.ids})"

    def __enter__(self) -> ServerProcesses:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def ids(self) -> list[int | None]:
        """The id of each process; None where there is none."""
        return [server.id for server in self._servers]

    def close(self) -> None:
        """Ends all processes. The rows at the servers are lost."""
        with self._lock, uninterrupted():
            self._is_closed = True
            self._end()

    # ---- what tables ask ---------------------------------------------------------------------------------------------

    def open_parts(
        self,
        key: SplitKey,
        rule: RowRule,
        parts: Mapping[int, PartSettings],
    ) -> None:
        """Makes empty parts of a new split, and starts the processes that do not run.

        Args:
          key: The table and split.
          rule: The optimizer's rule for the table.
          parts: By server, what its part holds.

        Raises:
          ServerError: If the servers have been closed, or one can't be started.
        """
        with self._lock:
            if self._is_closed:
                raise ServerError(
                    "server processes", "open ones", "closed ones", "Make new ones for this table."
                )
            if rule not in self._rules:
                self._rules.append(rule)
            number = self._rules.index(rule)
            self._on[key] = tuple(parts)
            with ThreadPoolExecutor() as pool:  # so that several start at the same time
                list(pool.map(lambda server: self._servers[server].start(), parts))
            self._ask(
                {
                    server: Request(key, "open", (settings, number))
                    for server, settings in parts.items()
                }
            )

    def ask(
        self,
        key: SplitKey,
        calls: Mapping[int, Call],
        nbytes: int = 0,
        needs: Mapping[int, ServerNeeds] | None = None,
    ) -> dict[int, Any]:
        """Calls parts of a table; the servers work at the same time.

        Args:
          key: The table and split.
          calls: By server, its call.
          nbytes: Not used: processes always work at the same time.
          needs: By server, what must have arrived there before, from other clients.

        Returns:
          By server, its answer.

        Raises:
          TableError: A part's.
          ServerError: If a server's process has ended, before this call or during it.
        """
        del nbytes
        requests = {}
        for server, (method, *args) in calls.items():
            is_silent = method == "commit" and not self._waits
            wanted = None if needs is None else needs.get(server)
            requests[server] = Request(
                key,
                method,
                args,
                needs=wanted,
                is_silent=is_silent,
            )
        return self._ask(requests)

    def traffic(self, table: int, server: int) -> ByteCounts:
        """The bytes of a table that a server's process had counted at its last answer.

        Args:
          table: The table's number.
          server: The server's.

        Returns:
          The counts; zero if it has counted none.
        """
        return self._servers[server].traffic.get(table, ByteCounts())

    def answer_question(self, server: int, question: Message) -> None:
        """Answers a question of a server that works for another client.

        Args:
          server: Its number.
          question: What has come from it.

        Raises:
          HostError: If its process has ended.
        """
        with self._lock:
            self._servers[server].answer_question(self._rules, question)

    def drop_update(self, key: SplitKey, update: int) -> None:
        """Lets a split's servers forget an update with their next requests. Safe in a finalizer, which may run during a request.

        Args:
          key: The table and split.
          update: The update's number.
        """
        for server in self._running_processes(self._on.get(key, ())):
            server.dropped.append((key, update))

    def close_parts(self, key: SplitKey) -> None:
        """Lets the servers of a split forget its parts with their next requests. Safe in a finalizer.

        Args:
          key: The table and split.
        """
        for server in self._running_processes(self._on.pop(key, ())):
            server.closed.append(key)

    def forget_table(self, table: int) -> None:
        """Lets all servers forget a table with their next requests. Safe in a finalizer.

        Args:
          table: The table's number.
        """
        for server in self._running_processes(range(len(self._servers))):
            server.forgotten.append(table)

    def _running_processes(self, numbers: Iterable[int]) -> list[ServerProcess]:
        """Selects the servers that have a process; the others hold nothing to forget."""
        result = []
        for number in numbers:
            if self._servers[number].is_running:
                result.append(self._servers[number])
        return result

    def _ask(
        self,
        requests: Mapping[int, Request],
    ) -> dict[int, Any]:
        with self._lock, uninterrupted():
            servers = {number: self._servers[number] for number in requests}
            try:
                return _exchange(servers, requests, self._rules)
            except AmpError:
                raise
            except BaseException as error:
                # A message may be cut off, or its answer still come: neither could be told from the next one.
                for server in servers.values():
                    server.end(f"{type(error).__name__} in the midst of a call")
                raise


def _exchange(
    servers: Mapping[int, ServerProcess],
    requests: Mapping[int, Request],
    rules: Sequence[RowRule],
) -> dict[int, Any]:
    """Sends all requests, then reads all answers; raises an error when every server has answered."""
    errors: list[AmpError] = []
    sent = []
    results = {}
    for number, request in requests.items():
        try:
            servers[number].send(request)
            sent.append(number)
        except AmpError as error:
            errors.append(error)
    for number in sent:
        if requests[number].is_silent:
            continue
        try:
            results[number] = servers[number].receive(rules, requests[number])
        except AmpError as error:
            errors.append(error)
    if errors:
        gone = (
            error
            for kind in (HostError, ServerError)
            for error in errors
            if isinstance(error, kind)
        )
        raise next(gone, errors[0])
    return results


def _end_all(servers: Sequence[ServerProcess], owner: int) -> None:
    """Ends the servers' processes; not in a process that was forked from theirs."""
    for server in servers if os.getpid() == owner else ():
        server.end(CLOSED)
