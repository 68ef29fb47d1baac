"""The program of a server process: it answers messages until its client is gone.

A request says what to do, and which updates and tables its client has forgotten. While it works, the server may ask its client for a
function of the optimizer. An answer has the result or an error, and the bytes of the table that the server has counted.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from ampjax.errors import AmpError, ServerError
from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.rows.row_kernels import RowKernels
from ampjax.sparse.servers.exports import ImportedFunctions, Shapes
from ampjax.sparse.servers.frames import Channel
from ampjax.sparse.servers.server import Server


class Request(NamedTuple):
    """What a client asks for.

    Args:
      key: The table and split.
      method: `open`, or a method of `ServerPart`.
      args: Its arguments.
      number: The request's number; its answer has it too.
      dropped: Updates that nobody holds any more.
      closed: Splits that nobody holds any more.
      forgotten: Tables that nobody holds any more.
    """

    key: SplitKey
    method: str
    args: Sequence[Any]
    number: int = 0
    dropped: Sequence[tuple[SplitKey, int]] = ()
    closed: Sequence[SplitKey] = ()
    forgotten: Sequence[int] = ()


class FunctionRequest(NamedTuple):
    """A function of an optimizer, which a server needs before it can go on (see `exports.exported`).

    Args:
      rule: The number of the optimizer's rule.
      name: The function's name.
      shapes: The shapes of its arguments.
    """

    rule: int
    name: str
    shapes: Shapes


class Answer(NamedTuple):
    """What a server answers.

    Args:
      number: The request's.
      result: What the method returned.
      error: The error that it raised instead.
      traffic: The table's bytes so far, as this server counted them.
      notes: The traceback of an error that nobody foresaw.
    """

    number: int
    result: Any
    error: AmpError | None
    traffic: ByteCounts
    notes: str = ""


class Service:
    """A server at one end of a channel.

    Args:
      channel: The channel.
    """

    def __init__(self, channel: Channel):
        self._channel, self._server = channel, Server()
        self._imports: dict[int, ImportedFunctions] = {}
        self._fetching = threading.Lock()  # a part's threads share the channel

    def answer(self, request: Request) -> Answer:
        """Does what a request asks for; an error becomes part of the answer."""
        for key, update in request.dropped:
            self._server.drop_update(key, update)
        for key in request.closed:
            self._server.close(key)
        for table in request.forgotten:
            self._server.forget(table)
        result, error, notes = None, None, ""
        try:
            result = self._do(request)
        except AmpError as raised:
            error = raised
        except Exception as raised:
            got = "".join(traceback.format_exception_only(raised)).strip()
            error = ServerError("server", f"an answer to `{request.method}`", got, "Look at the notes of this error.")
            notes = f"At the server:\n{traceback.format_exc()}"
        return Answer(request.number, result, error, self._server.traffic(request.key.table).copy(), notes)

    def _do(self, request: Request) -> Any:
        match request.method:
            case "open":
                settings, rule = request.args
                return self._server.open(request.key, settings, self._kernels(rule, settings.types))
            case method:
                return self._server.ask(request.key, method, *request.args)

    def _kernels(self, rule: int, types: RowTypes) -> RowKernels:
        """An optimizer's functions, fetched from the client; tables of one rule share what was compiled."""

        def fetch(name: str, shapes: Shapes) -> bytes:
            with self._fetching:
                self._channel.send(FunctionRequest(rule, name, shapes))
                answer = self._channel.receive()
            if isinstance(answer, AmpError):
                raise answer
            return answer

        return RowKernels(types, self._imports.setdefault(rule, ImportedFunctions(fetch)))


def main(descriptor: int) -> None:
    """Serves over an inherited socket until nobody is at its other end.

    Args:
      descriptor: The socket's.
    """
    channel = Channel(socket.socket(fileno=descriptor))
    service = Service(channel)
    with contextlib.suppress(EOFError, OSError):
        while True:
            channel.send(service.answer(channel.receive()))
