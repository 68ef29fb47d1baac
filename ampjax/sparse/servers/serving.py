"""The program of a server process, which answers messages until its client is gone.

A request says what to do, and which updates and tables its client has forgotten. While it works, the server may ask its client for a
function of the optimizer. An answer has the result or an error, and the bytes of the table that the server has counted.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.wire.channel import Channel, wait_any
from ampjax.errors import AmpError, HostError, ServerError, TableError
from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.rows.row_kernels import RowKernels
from ampjax.sparse.servers.exports import ExportedFunction, ImportedFunctions, Shapes
from ampjax.sparse.servers.protocol import TREES, FunctionRequest, Request, ServerAnswer
from ampjax.sparse.servers.server import Server


class Service:
    """A server at one end of a channel.

    Args:
      channel: The channel.
      server: What it holds, which other clients share; None for a new one.

    Attributes:
      early: Requests that have come while the server waited for a function that another client's request needs.
    """

    def __init__(self, channel: Channel, server: Server | None = None):
        self._channel = channel
        self._server = server or Server()
        self._imports: dict[int, ImportedFunctions] = {}
        self._fetching = threading.Lock()  # a part's threads share the channel
        self._last: ServerAnswer | None = None
        self.early: list[Request] = []

    def is_ready(self, request: Request) -> bool:
        """Tells whether all messages that a request needs have come."""
        return self._server.is_ready(request.key, request.needs)

    def serve(self, request: Request) -> None:
        """Carries out a request, and sends the answer if a client waits for one.

        Raises:
          AmpError: If nobody waits.
        """
        answer = self.answer(request)
        if not request.is_silent:
            self._channel.send(TREES.pack("answer", answer))
        elif answer.error is not None:
            raise answer.error

    def answer(self, request: Request) -> ServerAnswer:
        """Carries out a request; an error becomes part of the answer.

        Returns:
          The answer to it.
        """
        if self._last is not None and request.number == self._last.number:
            return self._last  # it has been done: once is enough
        self._last = self._answer(request)
        return self._last

    def _answer(self, request: Request) -> ServerAnswer:
        for key, update in request.dropped:
            self._server.drop_update(key, update)
        for key in request.closed:
            self._server.close(key)
        for table in request.forgotten:
            self._server.forget(table)
        result = None
        error = None
        notes = ""
        try:
            result = _own_arrays(self._do(request))
        except (ServerError, TableError) as raised:
            error = raised
        except Exception as raised:
            got = "".join(traceback.format_exception_only(raised)).strip()
            error = ServerError(
                "server",
                f"an answer to `{request.method}`",
                got,
                "Look at the notes of this error.",
            )
            notes = f"At the server:\n{traceback.format_exc()}"
        return ServerAnswer(
            request.number,
            result,
            error,
            self._server.traffic(request.key.table).copy(),
            notes,
        )

    def _do(self, request: Request) -> Any:
        match request.method:
            case "open":
                settings, rule = request.args
                return self._server.open(
                    request.key,
                    settings,
                    self._kernels(rule, settings.types),
                )
            case method:
                return self._server.ask(request.key, method, *request.args)

    def _kernels(self, rule: int, types: RowTypes) -> RowKernels:
        """Fetches an optimizer's functions from the client; tables of one rule share compiled functions."""

        def fetch(name: str, shapes: Shapes) -> ExportedFunction:
            with self._fetching:
                self._channel.send(TREES.pack("function", FunctionRequest(rule, name, shapes)))
                while isinstance(answer := self._heard(), Request):
                    self.early.append(answer)
            if isinstance(answer, AmpError):
                raise answer
            return answer

        return RowKernels(types, self._imports.setdefault(rule, ImportedFunctions(fetch)))

    def _heard(self) -> Any:
        message = self._channel.receive()
        assert message is not None
        return TREES.unpack(message)


def _own_arrays(result: Any) -> Any:
    """Copies arrays of a result that are views of rows, since the server may write to those while the result travels."""
    return jax.tree.map(
        lambda x: x.copy() if isinstance(x, np.ndarray) and x.base is not None else x,
        result,
    )


def serve(context: HostContext, clients: Sequence[str] = ()) -> None:
    """The program of a server's host: answers its driver, until that is gone, and other hosts.

    The driver opens parts and knows their optimizers: what the server needs of these while it works for another host, it asks the driver.

    Args:
      context: The host.
      clients: The names of hosts that pull and push rows.
    """
    server = Server()
    services = {
        channel: Service(channel, server)
        for channel in (context.driver, *map(context.peer, clients))
    }
    waiting: list[tuple[Channel, Request]] = []
    while True:
        for channel in wait_any(list(services)):
            try:
                if (message := channel.receive(0)) is not None:
                    waiting.append((channel, TREES.unpack(message)))
            except HostError:
                if channel is context.driver:
                    raise
                del services[channel]  # what becomes of the others is the driver's affair
                waiting = [each for each in waiting if each[0] is not channel]
        driver = services[context.driver]
        while (
            place := next(
                (i for i, (who, what) in enumerate(waiting) if services[who].is_ready(what)), -1
            )
        ) >= 0:
            channel, request = waiting.pop(place)
            services[channel].serve(request)
            waiting += [(context.driver, early) for early in driver.early]
            driver.early.clear()
