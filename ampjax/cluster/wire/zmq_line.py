"""A ZeroMQ socket for one peer, and whether the peer is there. It may lose and repeat messages when the connection breaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_RETRY_S = 0.5
_MOST_RETRY_S = 2.0
"""After so long without a connection, this end tries anew, at first and at last. ZeroMQ tries by itself before that."""

_SETTLE_S = 0.05
"""After so long, a socket whose peer has gone no longer takes messages for it, and what it does no longer meets what it did before."""


class Line:
    """A socket: a ROUTER where this end listens, a DEALER where this end has connected. For one thread at a time.

    It has more than twelve attributes, since ZeroMQ tells of connections only as events: who is there, and since when, is worked out from these.

    Args:
      socket: The socket, bound or connected.
      peer: The name of the other end.
      address: Where one end listens.
      heartbeat_s: How long the socket waits for a beat before it gives up the connection.
      probe: A message that means nothing to the peer.
    """

    may_lose = True
    """Whether messages may have to be sent again."""

    has_hung_up = False
    """Whether it is certain that the peer is gone for good. A connection may come again."""

    has_unsent = False
    """Whether this end must not be closed yet. The socket sends what it has taken after that."""

    failure = ""
    """What was wrong with the line itself."""

    urgent: tuple[int, int] | None = None
    """What to wait for before `look` is called again, as something waits to be sent: a file descriptor and what it shall be ready for."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        peer: str,
        address: str,
        heartbeat_s: float,
        probe: Sequence[bytes | memoryview],
    ):
        self._socket = socket
        self.peer = peer
        self.address = address
        self._heartbeat_s = heartbeat_s
        self._probe = probe
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._route = [peer.encode()] if socket.type == zmq.ROUTER else []
        self.is_up = False
        self.was_there = False
        self._down_since = time.monotonic()
        self._owes = False  # a message was refused since nobody was there
        self._doubt_at: float | None = (
            None  # a connection to a listening socket has ended, perhaps a stranger's
        )
        self._retry_s = _MOST_RETRY_S
        self._connects_at: float | None = None  # what there was has been given up
        self._retry_at = time.monotonic() + _MOST_RETRY_S
        self.said_bye = False
        self.is_closed = False
        self.descriptors: Sequence[int] = (
            int(socket.getsockopt(zmq.FD)),
            int(self._monitor.getsockopt(zmq.FD)),
        )

    @property
    def state(self) -> str:
        """In one word."""
        if self.is_closed:
            return "closed"
        if self.is_up:
            return "connected"
        return "not connected"

    @property
    def is_gone(self) -> bool:
        """Whether the peer was there and is not now."""
        return self.said_bye or (self.was_there and not self.is_up)

    @property
    def silence_s(self) -> float:
        """The time since the peer's last sign of life, in seconds; 0 for a peer that is there."""
        if self.is_up:
            return 0.0
        return time.monotonic() - self._down_since

    def send(self, frames: Sequence[Any]) -> bool:
        """Gives a message to the socket.

        Returns:
          Whether it was taken. What was not taken must be sent again when `look` says so.
        """
        if self.is_closed:
            return False
        try:
            self._socket.send_multipart(
                [*self._route, *frames],
                zmq.DONTWAIT,
                copy=False,
            )
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._owes = True
            return False
        return True

    def take(self) -> list[memoryview] | None:
        """The next message that has come from the peer, if any."""
        while not self.is_closed:
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return None
            if self._route and frames.pop(0).bytes != self._route[0]:
                continue  # a stranger
            return [frame.buffer for frame in frames]
        return None

    def look(self) -> bool:
        """Looks who has come and gone.

        Returns:
          Whether all that the peer has not confirmed must be sent again.
        """
        if self.is_closed:
            return False
        again = self._owes and self.is_up
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            if recv_monitor_message(self._monitor)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                again = again or self.was_there or bool(self._route)
                self.is_up = True
                self.was_there = True
                self._doubt_at = None
            elif self._route:
                self._doubt_at = time.monotonic() + _SETTLE_S
            elif self.is_up:
                self._lost()
        if self._doubt_at is not None and time.monotonic() > self._doubt_at:
            again = self._ask_connection() or again
        if not self._route:
            self._retry()
        if again:
            self._owes = False
        return again

    def _ask_connection(self) -> bool:
        """Finds out whether a listening socket has a connection to the peer now; returns whether unconfirmed messages must be sent again.

        When a connection takes over from another one, what was sent last may have gone the old way. And it may be known to the socket only after the old one's end:
        so while nobody is there, it is asked again and again.
        """
        if self.send(self._probe):
            self._doubt_at = None
            self.is_up = True
            self.was_there = True
            return True
        if self.is_up:
            self._lost()
        self._doubt_at = time.monotonic() + _SETTLE_S
        return False

    def _retry(self) -> None:
        """Connects anew in time: after damaged bytes of a handshake, ZeroMQ takes the peer for a stranger and does not try again.

        First it gives up what may still be under way. Two connections at once could overtake each other: the older one would be the one that the peer answers, and then end.
        """
        now = time.monotonic()
        if self._connects_at is not None and now > self._connects_at:
            self._connects_at = None
            self._socket.connect(self.address)
            self._owes = True  # what waited in the socket is gone
            self._retry_s = min(2 * self._retry_s, _MOST_RETRY_S)
            self._retry_at = now + self._retry_s
        elif self._connects_at is None and not self.is_up and now > self._retry_at:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self.address)
            self._connects_at = now + 2 * _SETTLE_S

    def _lost(self) -> None:
        self.is_up = False
        self._retry_s = _RETRY_S
        self._retry_at = time.monotonic() + _RETRY_S
        self._down_since = time.monotonic() - self._heartbeat_s

    def close(self) -> None:
        """Closes the socket; messages already taken still go out for a while."""
        self.is_closed = True
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(None if self.is_up and not self.said_bye else 0)
