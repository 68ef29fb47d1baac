"""One server process, as its client sees it: started, asked, and ended, or found to have ended by itself.

It is a fresh interpreter at the other end of a socket that only the two have. So nothing is forked while JAX's threads run, scripts need
no `if __name__ == "__main__"`, notebooks work, and a server whose client is gone, however that ended, reads the end of its socket and
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
from ampjax.sparse.rows.byte_counts import Traffic
from ampjax.sparse.servers.exports import exported
from ampjax.sparse.servers.frames import Channel
from ampjax.sparse.servers.server import Key
from ampjax.sparse.servers.serving import Answer, Request, Wanted

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from ampjax.sparse import serving; serving.main(int(sys.argv[1]))"
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
        self.traffic: dict[int, Traffic] = {}
        self.dropped: collections.deque[tuple[Key, int]] = collections.deque()
        self.closed: collections.deque[Key] = collections.deque()
        self.forgotten: collections.deque[int] = collections.deque()
        self._asked = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._fate = "no process: nothing was opened on it"

    @property
    def is_running(self) -> bool:
        """Whether it has a process; that may have ended without anybody's notice."""
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
        """Sends a request, with all that was forgotten since the last one.

        Raises:
          ServerError: If its process has ended, or this one was forked from the one that made it.
        """
        if os.getpid() != self._owner:
            got = f"a call from process {os.getpid()}, which was forked from process {self._owner}"
            raise ServerError(self._name, "calls from the process that made it", got, "Start others with `spawn`.")
        if self._channel is None:
            fix = _ANEW if self._fate == CLOSED else _RESTORE
            raise ServerError(self._name, f"an answer to `{request.method}`", self._fate, fix)
        self._asked += 1
        gone = {"dropped": _taken(self.dropped), "closed": _taken(self.closed), "forgotten": _taken(self.forgotten)}
        request = request._replace(number=self._asked, **gone)
        for table in request.forgotten:
            self.traffic.pop(table, None)
        try:
            self._channel.send(request)
        except OSError:
            raise self._ended(request.method) from None

    def receive(self, rules: Sequence[RowRule], request: Request) -> Any:
        """Waits for the result of a request; in the meantime, the server gets what it needs for it.

        Args:
          rules: Optimizers' rules by number.
          request: What was sent.

        Raises:
          TableError: If it raised that.
          ServerError: If its process has ended, or raised anything else.
        """
        assert self._channel is not None
        try:
            while isinstance(message := self._channel.receive(), Wanted):
                self._channel.send(_to_send(rules[message.rule], message))
        except (EOFError, OSError):
            raise self._ended(request.method) from None
        assert isinstance(message, Answer)
        if message.number != self._asked:  # an answer that an interrupt left unread
            raise self._ended(request.method)
        self.traffic[request.key.table] = message.traffic
        if message.error is not None:
            raise self._placed(message.error, message.story)
        return message.result

    def end(self, fate: str) -> None:
        """Ends its process at once: it holds nothing that could be left behind.

        Args:
          fate: What to say about it from now on.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._channel is not None:
            self._channel.close()
        self._process, self._channel, self._fate = None, None, fate
        for gone in (self.dropped, self.closed, self.forgotten):
            gone.clear()

    def _placed(self, error: AmpError, story: str) -> AmpError:
        """A server's error, which does not know its number; a part's as it is."""
        if isinstance(error, ServerError):
            error = ServerError(self._name, error.expected, error.got, error.fix)
        if story:
            error.add_note(story)
        return error

    @property
    def _name(self) -> str:
        return f"server {self.number}" + (f" (process {self.id})" if self.is_running else "")

    def _ended(self, method: str) -> ServerError:
        """The error for a process that ended by itself."""
        assert self._process is not None
        name = self._name
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # it is about to end, for nobody else could have closed its socket
        self._process.kill()
        self.end(f"the end of process {self.id}: {_ending(self._process.wait())}")
        return ServerError(name, f"an answer to `{method}`", self._fate, _RESTORE)


def _to_send(rule: RowRule, wanted: Wanted) -> bytes | AmpError:
    """A function that a server wants, or why it can't be had: then the server's answer says so."""
    try:
        return exported(rule, wanted.name, wanted.shapes)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        fix = "Keep servers in this process."
        return ServerError("server", f"a function `{wanted.name}` of the optimizer that can travel", got, fix)


def _taken(queue: collections.deque[Any]) -> list[Any]:
    """Everything out of a queue to which others may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def _ending(code: int) -> str:
    """A process's exit code in words."""
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def server_environment() -> dict[str, str]:
    """A server's environment: this one's, on as many CPU devices, for that decides how programs are compiled."""
    result = dict(os.environ, JAX_PLATFORMS="cpu")
    if "xla_force_host_platform_device_count" not in result.get("XLA_FLAGS", ""):
        result["JAX_NUM_CPU_DEVICES"] = str(len(jax.local_devices(backend="cpu")))
    return result
