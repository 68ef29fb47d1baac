"""The servers of rows as a worker asks them: over its own channels, for pulls and pushes only. Everything else is the runner's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ampjax.cluster.wire.channel import Channel
from ampjax.errors import AmpError, InvariantError
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.rows.server_part import Needs
from ampjax.sparse.servers import protocol
from ampjax.sparse.servers.protocol import Request


class RowServers:
    """Servers, by number. A request has a number, and is answered once: a server that gets it again answers from memory.

    Args:
      channels: The channel to each.
    """

    def __init__(self, channels: Sequence[Channel]):
        self._channels = channels
        self._n_requests = [0] * len(channels)

    def ask(self, key: SplitKey, calls: Mapping[int, Any], updates: int = 0) -> dict[int, Any]:
        """Asks some servers, all at the same time. Pushes are not answered: who uses their update waits for them.

        Args:
          key: The table and split.
          calls: By server, the name of a `ServerPart` method and its arguments.
          updates: Updates that must have been made at the servers before.

        Returns:
          By server what it answers; None for a push.

        Raises:
          TableError: A server's, once all have answered.
          ServerError: Likewise.
          HostError: If one has ended.
        """
        for server, (method, *args) in calls.items():
            self._n_requests[server] += 1
            is_push = method == "receive"
            request = Request(key, method, args, self._n_requests[server], needs=Needs(updates), is_silent=is_push)
            self._channels[server].send(protocol.TREES.pack("request", request))
        waited = [server for server, (method, *_) in calls.items() if method != "receive"]
        answers = {server: self._answer(server) for server in waited}
        errors = [answer.error for answer in answers.values() if answer.error is not None]
        if errors:
            raise errors[0]
        return {server: answer.result for server, answer in answers.items()}

    def _answer(self, server: int) -> protocol.Answer:
        message = self._channels[server].receive()
        assert message is not None
        answer = protocol.TREES.unpack(message)
        if isinstance(answer, AmpError):
            raise answer
        if answer.number != self._n_requests[server]:
            got = f"that to request {answer.number}"
            raise InvariantError(f"server {server}", f"the answer to {self._n_requests[server]}", got, "Report this.")
        return answer
