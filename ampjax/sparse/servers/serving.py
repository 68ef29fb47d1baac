"""The program of a server process: it answers messages until its client is gone.

A request is the updates and tables that its client has forgotten, and what is asked for. While it works, the server may ask back for a
function of the optimizer. An answer is what came out, or an error, and the server's own count of the table's bytes.
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
from ampjax.sparse.rows.byte_counts import Traffic
from ampjax.sparse.rows.row_kernels import Kernels
from ampjax.sparse.servers.exports import Imports, Shapes
from ampjax.sparse.servers.frames import Channel
from ampjax.sparse.servers.server import Key, Server


class Request(NamedTuple):
    """What a client wants.

    Args:
      key: The table and split.
      method: `open`, or a method of `Part`.
      args: Its arguments.
      number: Of the request; its answer bears it too.
      dropped: Updates that nobody holds any more.
      closed: Splits that nobody holds any more.
      forgotten: Tables that nobody holds any more.
    """

    key: Key
    method: str
    args: Sequence[Any]
    number: int = 0
    dropped: Sequence[tuple[Key, int]] = ()
    closed: Sequence[Key] = ()
    forgotten: Sequence[int] = ()


class Wanted(NamedTuple):
    """What a server needs before it can go on: a function of an optimizer, as `exports.exported` takes it.

    Args:
      rule: The number of the optimizer's rule.
      name: The function's name.
      shapes: Of its arguments.
    """

    rule: int
    name: str
    shapes: Shapes


class Answer(NamedTuple):
    """What came out.

    Args:
      number: The request's.
      result: What the method gave.
      error: What it raised instead.
      traffic: The table's bytes so far, as they were counted here.
      story: Where an error came from that nobody foresaw.
    """

    number: int
    result: Any
    error: AmpError | None
    traffic: Traffic
    story: str = ""


class Service:
    """A server at one end of a channel.

    Args:
      channel: The channel.
    """

    def __init__(self, channel: Channel):
        self._channel, self._server = channel, Server()
        self._imports: dict[int, Imports] = {}
        self._fetching = threading.Lock()  # a part's threads share the channel

    def answer(self, request: Request) -> Answer:
        """Does what is asked for."""
        for key, update in request.dropped:
            self._server.drop_update(key, update)
        for key in request.closed:
            self._server.close(key)
        for table in request.forgotten:
            self._server.forget(table)
        result, error, story = None, None, ""
        try:
            result = self._do(request)
        except AmpError as raised:
            error = raised
        except Exception as raised:
            got = "".join(traceback.format_exception_only(raised)).strip()
            error = ServerError("server", f"an answer to `{request.method}`", got, "Look at the notes of this error.")
            story = f"At the server:\n{traceback.format_exc()}"
        return Answer(request.number, result, error, self._server.traffic(request.key.table).copy(), story)

    def _do(self, request: Request) -> Any:
        match request.method:
            case "open":
                settings, rule = request.args
                return self._server.open(request.key, settings, self._kernels(rule, settings.types))
            case method:
                return self._server.ask(request.key, method, *request.args)

    def _kernels(self, rule: int, types: RowTypes) -> Kernels:
        """An optimizer's functions; tables of one rule share what was compiled."""

        def fetch(name: str, shapes: Shapes) -> bytes:
            with self._fetching:
                self._channel.send(Wanted(rule, name, shapes))
                found = self._channel.receive()
            if isinstance(found, AmpError):
                raise found
            return found

        return Kernels(types, self._imports.setdefault(rule, Imports(fetch)))


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
