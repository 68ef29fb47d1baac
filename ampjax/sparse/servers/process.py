"""One server process, from its client's side: start, requests, end, and an end without request.

It is a host of its own (see `ampjax.cluster`): a fresh interpreter, so nothing is forked while JAX's threads run, scripts need no
`if __name__ == "__main__"`, and notebooks work. When the client is gone, however it ended, so is the server. There is no shared memory and
no file that could be left behind.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ampjax.cluster.hosts.spawn_hosts import Host, HostOptions, spawn
from ampjax.cluster.wire.message import Message
from ampjax.errors import AmpError, HostError, ServerError
from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.servers.exports import ExportedFunction, export_function
from ampjax.sparse.servers.protocol import TREES, FunctionRequest, Request, ServerAnswer
from ampjax.sparse.servers.serving import serve

_WATCH_S = 0.2
"""Seconds between two looks at what the server may be waiting for."""
_RESTORE = "Its rows are lost: restore the last checkpoint, which starts it anew."
CLOSED = "no process: the servers were closed"
_ANEW = "Make new servers, and restore the last checkpoint there."


class Begun(NamedTuple):
    """A server's host that has been started.

    Args:
      host: The host.
      end: Ends it, and whatever is of no use without it.
      watch: Raises a `HostError` if something has ended for which it may wait.
    """

    host: Host
    end: Callable[[], None]
    watch: Callable[[], None] = lambda: None


def start_alone(number: int) -> Begun:
    """Starts a server on this machine.

    Raises:
      HostError: If that can't be done.
    """
    hosts = spawn(
        1,
        serve,
        HostOptions((f"server-{number}",), environment=server_environment()),
    )
    return Begun(hosts[0], hosts.close)


class ServerProcess:
    """One server, and its process if one runs.

    Args:
      number: Its number.
      begin: Starts it.
    """

    def __init__(
        self,
        number: int,
        begin: Callable[[int], Begun] = start_alone,
    ):
        self.number = number
        self._begin = begin
        self._owner = os.getpid()
        self.traffic: dict[int, ByteCounts] = {}
        self.dropped: collections.deque[tuple[SplitKey, int]] = collections.deque()
        self.closed: collections.deque[SplitKey] = collections.deque()
        self.forgotten: collections.deque[int] = collections.deque()
        self._n_requests = 0
        self._begun: Begun | None = None
        self._state = "no process: nothing was opened on it"

    @property
    def is_running(self) -> bool:
        """Tells whether there is a process, which may have ended since its last answer."""
        return self._begun is not None

    @property
    def _host(self) -> Host:
        assert self._begun is not None
        return self._begun.host

    @property
    def id(self) -> int | None:
        """Its process's id."""
        return self._host.process if self._begun is not None else None

    def start(self) -> None:
        """Starts the process, unless one runs.

        Raises:
          ServerError: If that can't be done.
        """
        if self._begun is not None and not self._host.alive:
            self.end("")
        if self._begun is not None:
            return
        try:
            self._begun = self._begin(self.number)
        except HostError as error:
            fix = "Keep servers in this process."
            raise ServerError(f"server {self.number}", "a process", f"{error}", fix) from error
        self.traffic.clear()

    def send(self, request: Request) -> None:
        """Sends a request, with the list of parts that the client has forgotten since the last request.

        Args:
          request: What the server shall do; its number is set here.

        Raises:
          ServerError: If its process has ended, or this one was forked from the one that made it.
        """
        if os.getpid() != self._owner:
            got = f"a call from process {os.getpid()}, which was forked from process {self._owner}"
            raise ServerError(
                self._name, "calls from the process that made it", got, "Start others with `spawn`."
            )
        if self._begun is None:
            fix = _ANEW if self._state == CLOSED else _RESTORE
            raise ServerError(self._name, f"an answer to `{request.method}`", self._state, fix)
        self._n_requests += 1
        gone = {
            "dropped": _drain(self.dropped),
            "closed": _drain(self.closed),
            "forgotten": _drain(self.forgotten),
        }
        request = request._replace(number=self._n_requests, **gone)
        for table in request.forgotten:
            self.traffic.pop(table, None)
        try:
            self._host.channel.send(TREES.pack("request", request))
        except HostError as error:
            raise self._end_with_error(request.method, error) from None

    def receive(self, rules: Sequence[RowRule], request: Request) -> Any:
        """Waits for the result of a request, and meanwhile sends the optimizers' functions that the server asks for.

        Args:
          rules: Optimizers' rules by number.
          request: The request that was sent.

        Returns:
          What the part's method gave.

        Raises:
          TableError: If the method raised it.
          ServerError: If the process has ended, or the method raised anything else.
        """
        while isinstance(answer := self._receive(request.method), FunctionRequest):
            try:
                self._export(rules, answer)
            except HostError as error:
                raise self._end_with_error(request.method, error) from None
        if answer.number != self._n_requests:  # an answer that an interrupt left unread
            raise self._end_with_error(request.method)
        self.traffic[request.key.table] = answer.traffic
        if answer.error is not None:
            raise self._with_name(answer.error, answer.notes)
        return answer.result

    def answer_question(self, rules: Sequence[RowRule], question: Message) -> None:
        """Sends a function that the server has requested while it works for another client.

        Args:
          rules: Optimizers' rules by number.
          question: What has come from it.

        Raises:
          HostError: If its process has ended.
        """
        request = TREES.unpack(question)
        assert isinstance(request, FunctionRequest)
        self._export(rules, request)

    def _export(self, rules: Sequence[RowRule], request: FunctionRequest) -> None:
        self._host.channel.send(
            TREES.pack(
                "export",
                _export(rules[request.rule], request),
            )
        )

    def _receive(self, method: str) -> FunctionRequest | ServerAnswer:
        """Waits for the server's next message."""
        while True:
            begun = self._begun
            assert begun is not None
            try:
                message = begun.host.channel.receive(_WATCH_S)
            except HostError as error:
                raise self._end_with_error(method, error) from None
            if message is not None:
                return TREES.unpack(message)
            begun.watch()

    def end(self, state: str) -> None:
        """Ends the process at once; a server holds nothing that could be left behind.

        Args:
          state: What errors say about the server from now on.
        """
        begun = self._begun
        self._begun = None
        self._state = state
        if begun is not None:
            begun.host.kill()
            begun.end()
        for gone in (self.dropped, self.closed, self.forgotten):
            gone.clear()

    def _with_name(self, error: AmpError, notes: str) -> AmpError:
        """Adds the server's number and process to an error; a table's error stays as raised."""
        if isinstance(error, ServerError):
            error = ServerError(self._name, error.expected, error.got, error.fix)
        if notes:
            error.add_note(notes)
        return error

    @property
    def _name(self) -> str:
        return f"server {self.number}" + (f" (process {self.id})" if self.is_running else "")

    def _end_with_error(self, method: str, error: HostError | None = None) -> ServerError:
        """Ends the rest of a process that has ended or hangs, and returns the error about the end."""
        name = self._name
        host = self._host
        ended = host.started.ending()
        host.kill()
        state = (
            error.got
            if error is not None and ended is None and host.address
            else f"{ended or 'killed by SIGKILL'}"
        )
        self.end(f"the end of process {host.process}: {state}")
        return ServerError(name, f"an answer to `{method}`", self._state, _RESTORE)


def _export(rule: RowRule, request: FunctionRequest) -> ExportedFunction | AmpError:
    """A function that a server asks for, as plain data; or the error that its answer shall say, if the function can't travel."""
    try:
        return export_function(rule, request.name, request.shapes)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "Keep servers in this process."
        return ServerError(
            "server", f"a function `{request.name}` of the optimizer that can travel", got, fix
        )


def _drain(queue: collections.deque[Any]) -> list[Any]:
    """Takes everything out of a queue to which others may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def server_environment() -> dict[str, str]:
    """Builds a server process's environment: as many CPU devices as here, since their number decides how programs are compiled."""
    result = {"JAX_PLATFORMS": "cpu"}
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        result["JAX_NUM_CPU_DEVICES"] = str(len(jax.local_devices(backend="cpu")))
    return result
