"""A channel between two threads of one process, for hosts that are plain objects and for tests. Messages go through frames here, too."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ampjax.cluster.wire.channel import Window
from ampjax.cluster.wire.message import Message, decode, encode, nbytes_of
from ampjax.cluster.wire.waker import Waker
from ampjax.errors import HostDiedError


@dataclass
class _Way:
    """The messages under way in one direction.

    Args:
      messages: The messages that have been sent and not been received.
      waker: Wakes the threads that wait for one.
      is_open: Whether both ends are.
      sequence: The number of the last message.
      nbytes: Bytes of all messages so far, headers included.
    """

    messages: deque[Message] = field(default_factory=deque)
    waker: Waker = field(default_factory=Waker)
    is_open: bool = True
    sequence: int = 0
    nbytes: int = 0


class MemoryChannel:
    """One end; `memory_pair` makes both.

    Args:
      name: The name of this end.
      peer: The name of the other.
      ways: To the other end and from it.
      turn: What both ends lock.
      window: How much may be under way in one direction.
    """

    def __init__(
        self,
        name: str,
        peer: str,
        ways: tuple[_Way, _Way],
        turn: threading.Condition,
        window: Window,
    ):
        self.name = name
        self._peer = peer
        self._window = window
        self._out, self._in = ways
        self._turn = turn

    def __repr__(self) -> str:
        return f"MemoryChannel({self.name} to {self.peer}{'' if self._out.is_open else ', closed'})"

    @property
    def peer(self) -> str:
        """The name of the other end."""
        return self._peer

    @property
    def bytes_sent(self) -> int:
        """See `Channel.bytes_sent`."""
        return self._out.nbytes

    @property
    def bytes_received(self) -> int:
        """See `Channel.bytes_received`. What has been sent is there at once."""
        return self._in.nbytes

    def send(self, message: Message) -> None:
        """Sends a message; waits while the window is full.

        Raises:
          WireError: If something in it can't travel.
          HostDiedError: If an end has been closed.
        """
        with self._turn:
            way = self._out
            frames = []
            for frame in encode(message, 0, way.sequence + 1):
                frames.append(bytes(frame))
            copy, _, way.sequence = decode(frames)
            if not self._turn.wait_for(lambda: self._has_room(copy), self._window.warn_after_s):
                warnings.warn(
                    waits_long(self.peer, self._window),
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._turn.wait_for(lambda: self._has_room(copy))
            if not way.is_open:
                raise closed_error(self.name, self.peer)
            way.messages.append(copy)
            way.nbytes += nbytes_of(frames)
            way.waker.wake()
            self._turn.notify_all()

    def _has_room(self, message: Message) -> bool:
        waiting = self._out.messages
        fits = sum(other.nbytes for other in waiting) + message.nbytes <= self._window.nbytes
        return (
            not self._out.is_open or not waiting or (len(waiting) < self._window.messages and fits)
        )

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Waits for the next message.

        Args:
          timeout_s: How long, in seconds; None for as long as the other end is open.

        Returns:
          The message; None if none has come in time.

        Raises:
          HostDiedError: If an end has been closed, and all that was sent before has been received.
        """
        with self._turn:
            if not self._turn.wait_for(self.is_ready, timeout_s):
                return None
            if not self._in.messages:
                raise closed_error(self.name, self.peer)
            message = self._in.messages.popleft()
            self._turn.notify_all()
            return message

    def is_ready(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        return bool(self._in.messages) or not self._in.is_open

    def watch(self, begin: bool) -> Sequence[int]:
        """See `Channel.watch`."""
        return [self._in.waker.begin() if begin else self._in.waker.end()]

    def close(self) -> None:
        """Closes both directions."""
        with self._turn:
            for way in (self._out, self._in):
                way.is_open = False
                way.waker.wake()
            self._turn.notify_all()


def memory_pair(
    a: str, b: str, window: Window | None = None
) -> tuple[MemoryChannel, MemoryChannel]:
    """Both ends of a channel in memory.

    Args:
      a: The name of one end.
      b: The name of the other.
      window: How much may be under way in each direction.

    Returns:
      The ends.

    >>> here, there = memory_pair("driver", "host")
    >>> here.send(Message("add", (1, 2)))
    >>> there.receive()
    Message('add', 1, 2)
    """
    ways = (_Way(), _Way())
    turn = threading.Condition(threading.RLock())
    window = window or Window()
    return MemoryChannel(a, b, ways, turn, window), MemoryChannel(
        b, a, (ways[1], ways[0]), turn, window
    )


def closed_error(name: str, peer: str) -> HostDiedError:
    """The error of one end when the other, or the same one, is closed."""
    return HostDiedError(
        f"{name}, channel to {peer}",
        "both ends open",
        "a closed channel",
        "An end is closed when its host ends or fails: see that host's error, then start the hosts anew.",
    )


def waits_long(peer: str, window: Window) -> str:
    """The warning of a sender that waits long."""
    size = f"{window.messages} messages or {window.nbytes / 1e6:.0f} MB"
    return f"ampjax: {peer} has taken no message for {window.warn_after_s:g} s, and {size} are under way; still waiting"
