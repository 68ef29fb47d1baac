"""One server process, as its client sees it: how it is started, asked and ended, and what happens if it ends by itself.

It is a fresh interpreter at the other end of a socket that only the two have. So nothing is forked while JAX's threads run. Scripts need
no `if __name__ == "__main__"`, and notebooks work. When the client is gone, however it ended, the server reads the end of its socket and
ends too. There is no shared memory and no file that could be left behind.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax

from ampjax.errors import AmpError, ServerError
from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.servers.exports import exported
from ampjax.sparse.servers.frames import Channel
from ampjax.sparse.servers.serving import Answer, FunctionRequest, Request

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from ampjax.sparse.servers import serving; serving.main(int(sys.argv[1]))"
)
_RESTORE = "Its rows are lost: restore the last checkpoint, which starts it anew."
CLOSED = "no process: the servers were closed"
_ANEW = "Make new servers, and restore the last checkpoint there."


class ServerProcess:
    """One server, with its process if it has one.

    Args:
      number: Its number.
    """

    def __init__(self, number: int):
        self.number = number
        self._owner = os.getpid()
        self.traffic: dict[int, ByteCounts] = {}
        self.dropped: collections.deque[tuple[SplitKey, int]] = collections.deque()
        self.closed: collections.deque[SplitKey] = collections.deque()
        self.forgotten: collections.deque[int] = collections.deque()
        self._n_requests = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._state = "no process: nothing was opened on it"

    @property
    def is_running(self) -> bool:
        """Whether it has a process. That process may have ended since it was last asked."""
        return self._process is not None

    @property
    def id(self) -> int | None:
        """Its process's id."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Starts its process, if it has none that runs.

        Raises:
          ServerError: If that can't be done.
        """
        if self._process is not None and self._process.poll() is not None:
            self.end("")
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=server_environment(),
                    start_new_session=True,  # Ctrl-C in a terminal is for its client alone
                )
        except OSError as error:
            ours.close()
            raise ServerError(
                f"server {self.number}", "a process", f"{error}", "Keep servers in this process."
            ) from error
        self._channel = Channel(ours)
        self.traffic.clear()

    def send(self, request: Request) -> None:
        """Sends a request, and with it what its client has forgotten since the last one.

        Args:
          request: What the server shall do; its number is set here.

        Raises:
          ServerError: If its process has ended, or this one was forked from the one that made it.
        """
        if os.getpid() != self._owner:
            got = f"a call from process {os.getpid()}, which was forked from process {self._owner}"
            raise ServerError(self._name, "calls from the process that made it", got, "Start others with `spawn`.")
        if self._channel is None:
            fix = _ANEW if self._state == CLOSED else _RESTORE
            raise ServerError(self._name, f"an answer to `{request.method}`", self._state, fix)
        self._n_requests += 1
        gone = {
            "dropped": _drained(self.dropped),
            "closed": _drained(self.closed),
            "forgotten": _drained(self.forgotten),
        }
        request = request._replace(number=self._n_requests, **gone)
        for table in request.forgotten:
            self.traffic.pop(table, None)
        try:
            self._channel.send(request)
        except OSError:
            raise self._ended(request.method) from None

    def receive(self, rules: Sequence[RowRule], request: Request) -> Any:
        """Waits for the result of a request. Until then, it sends the functions of optimizers that the server asks for.

        Args:
          rules: Optimizers' rules by number.
          request: The request that was sent.

        Returns:
          What the part's method gave.

        Raises:
          TableError: If the method raised it.
          ServerError: If the process has ended, or the method raised anything else.
        """
        assert self._channel is not None
        try:
            while isinstance(message := self._channel.receive(), FunctionRequest):
                self._channel.send(_export(rules[message.rule], message))
        except (EOFError, OSError):
            raise self._ended(request.method) from None
        assert isinstance(message, Answer)
        if message.number != self._n_requests:  # an answer that an interrupt left unread
            raise self._ended(request.method)
        self.traffic[request.key.table] = message.traffic
        if message.error is not None:
            raise self._with_name(message.error, message.notes)
        return message.result

    def end(self, state: str) -> None:
        """Ends its process at once; it holds nothing that could be left behind.

        Args:
          state: What errors say about the server from now on.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._channel is not None:
            self._channel.close()
        self._process, self._channel, self._state = None, None, state
        for gone in (self.dropped, self.closed, self.forgotten):
            gone.clear()

    def _with_name(self, error: AmpError, notes: str) -> AmpError:
        """An error with the server's number and process, which a server does not know; a table's error stays as it is."""
        if isinstance(error, ServerError):
            error = ServerError(self._name, error.expected, error.got, error.fix)
        if notes:
            error.add_note(notes)
        return error

    @property
    def _name(self) -> str:
        return f"server {self.number}" + (f" (process {self.id})" if self.is_running else "")

    def _ended(self, method: str) -> ServerError:
        """Puts an end to what is left of a process that ended by itself, and returns the error that says so."""
        assert self._process is not None
        name = self._name
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # it is about to end, for nobody else could have closed its socket
        self._process.kill()
        self.end(f"the end of process {self.id}: {_ending(self._process.wait())}")
        return ServerError(name, f"an answer to `{method}`", self._state, _RESTORE)


def _export(rule: RowRule, request: FunctionRequest) -> bytes | AmpError:
    """A function that a server asks for, as bytes; or the error that its answer shall say, if the function can't travel."""
    try:
        return exported(rule, request.name, request.shapes)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "Keep servers in this process."
        return ServerError("server", f"a function `{request.name}` of the optimizer that can travel", got, fix)


def _drained(queue: collections.deque[Any]) -> list[Any]:
    """Takes everything out of a queue to which others may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def _ending(code: int) -> str:
    """A process's exit code in words."""
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def server_environment() -> dict[str, str]:
    """The environment of a server process: this one's, with as many CPU devices, since their number decides how programs are compiled."""
    result = dict(os.environ, JAX_PLATFORMS="cpu")
    if "xla_force_host_platform_device_count" not in result.get("XLA_FLAGS", ""):
        result["JAX_NUM_CPU_DEVICES"] = str(len(jax.local_devices(backend="cpu")))
    return result
