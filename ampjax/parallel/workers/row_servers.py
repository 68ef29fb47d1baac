"""The servers of rows from a worker's side: its own channels, for pulls and pushes only. Everything else is the runner's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ampjax.cluster.wire.channel import Channel, Window
from ampjax.errors import AmpError, InvariantError
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.rows.server_part import ServerNeeds
from ampjax.sparse.servers import protocol
from ampjax.sparse.servers.protocol import Request

Asked = tuple[int, int]
"""A request that will be answered: the server's number, and its own."""

MOST_ANSWERS = Window().messages // 2
MOST_BYTES = Window().nbytes // 2
"""Answers of one server, and bytes in them, that may wait for a worker while it does something else. Would they fill the channel's window, the server
waited until the worker takes some, and the worker perhaps until the server takes what it pushes. The window may be a quarter fuller than a server
knows, since it is not told of each message that is taken."""


class RowServers:
    """Servers, by number. A request has a number and one answer: a server that gets the request again answers from memory.

    Args:
      channels: The channel to each.
    """

    def __init__(self, channels: Sequence[Channel]):
        self._channels = channels
        self._n_requests = [0] * len(channels)
        self._answers: dict[
            Asked, protocol.ServerAnswer | None
        ] = {}  # to requests under way; None where it has not come
        self._unwanted: set[Asked] = set()
        self._nbytes: dict[
            Asked, int
        ] = {}  # of answers that have not come, wanted or not; below, their totals by server
        self._n_waiting = Counter[int]()
        self._bytes_waiting = Counter[int]()

    def push(
        self,
        key: SplitKey,
        calls: Mapping[int, Any],
    ) -> dict[int, Any]:
        """Sends row gradients to some servers. There are no answers: users of the update wait for the gradients.

        Args:
          key: The table and split.
          calls: By server, its call.

        Returns:
          Nothing, by no server.

        Raises:
          HostError: If one has ended.
        """
        for server, call in calls.items():
            self._send(server, key, call, ServerNeeds(), is_silent=True)
        return {}

    def has_room(
        self,
        nbytes: Mapping[int, int],
        n: int = 1,
    ) -> bool:
        """Tells whether more answers can wait beside the outstanding ones.

        Args:
          nbytes: By server, the bytes of its answers.
          n: Answers of each of these servers.
        """
        return all(
            self._n_waiting[server] + n <= MOST_ANSWERS
            and self._bytes_waiting[server] + size <= MOST_BYTES
            for server, size in nbytes.items()
        )

    def begin(
        self,
        key: SplitKey,
        calls: Mapping[int, Any],
        updates: int,
        nbytes: Mapping[int, int],
    ) -> list[Asked]:
        """Sends requests to some servers, which answer in their own time.

        Args:
          key: The table and split.
          calls: By server, the name of a `ServerPart` method and its arguments.
          updates: Updates that must have been made at the servers before.
          nbytes: By server, the bytes of its answer.

        Returns:
          The requests, for `finish` or `forget`.

        Raises:
          HostError: If one has ended.
        """
        asked = []
        for server, call in calls.items():
            asked.append(self._send(server, key, call, ServerNeeds(updates)))
        self._answers.update(dict.fromkeys(asked))
        for request in asked:
            self._nbytes[request] = nbytes[request[0]]
        self._n_waiting.update(nbytes.keys())
        self._bytes_waiting.update(nbytes)
        return asked

    def finish(self, asked: Sequence[Asked]) -> dict[int, Any]:
        """Waits for answers.

        Args:
          asked: What `begin` gave.

        Returns:
          By server what it answers.

        Raises:
          TableError: A server's, once all have answered.
          ServerError: Likewise.
          HostError: If one has ended.
        """
        answers = [self._answer(request) for request in asked]
        errors = [answer.error for answer in answers if answer.error is not None]
        if errors:
            raise errors[0]
        result = {}
        for (server, _), answer in zip(asked, answers, strict=True):
            result[server] = answer.result
        return result

    def forget(self, asked: Sequence[Asked]) -> None:
        """Gives up the answers to some requests, which may come all the same.

        Args:
          asked: What `begin` gave.
        """
        self._unwanted |= {request for request in asked if self._answers.pop(request) is None}

    def _send(
        self,
        server: int,
        key: SplitKey,
        call: Any,
        needs: ServerNeeds,
        is_silent: bool = False,
    ) -> Asked:
        self._n_requests[server] += 1
        method, *args = call
        number = self._n_requests[server]
        request = Request(key, method, args, number, needs=needs, is_silent=is_silent)
        self._channels[server].send(protocol.TREES.pack("request", request))
        return server, number

    def _answer(self, request: Asked) -> protocol.ServerAnswer:
        server, _ = request
        while (reply := self._answers[request]) is None:
            message = self._channels[server].receive()
            assert message is not None
            answer = protocol.TREES.unpack(message)
            if isinstance(answer, AmpError):
                raise answer
            come = server, answer.number
            self._bytes_waiting[server] -= self._nbytes.pop(come, 0)
            self._n_waiting[server] -= 1
            if come in self._answers:
                self._answers[come] = answer
            elif come in self._unwanted:
                self._unwanted.remove(come)
            else:
                wanted = f"the answer to request {request[1]}"
                raise InvariantError(
                    f"server {server}", wanted, f"that to request {answer.number}", "Report this."
                )
        del self._answers[request]
        return reply
