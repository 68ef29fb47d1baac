"""One end of an ordered, reliable, bounded way for messages between two parties, over any transport."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ampjax.cluster.wire.message import Message


@dataclass(frozen=True)
class Window:
    """The bound of messages under way in one direction: sent, and not yet taken out of the channel at the other end.

    Args:
      messages: How many messages.
      nbytes: How many bytes of arrays. A larger message goes alone.
      warn_after_s: A sender that has waited that long for room warns, once.
    """

    messages: int = 64
    nbytes: int = 1 << 26
    warn_after_s: float = 30.0


class Channel(Protocol):
    """One end. `send` and `receive` may be called from several threads."""

    @property
    def peer(self) -> str:
        """The name of the party at the other end."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes of all messages that this end has sent, headers included; repeated sends are not counted."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes of all messages that have come from the other end, headers included."""
        ...

    def send(self, message: Message) -> None:
        """Sends a message; waits while the window is full.

        Args:
          message: The message. Nobody writes to its arrays from now on.

        Raises:
          WireError: If something in it can't travel.
          HostDiedError: If nobody is at the other end any more.
          HostUnreachableError: If the other end gives no sign of life.
        """
        ...

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Waits for the next message.

        Args:
          timeout_s: How long, in seconds; None for as long as the other end lives.

        Returns:
          The message; None if none has come in time.

        Raises:
          WireError: If what comes is no message of ours, again and again.
          HostDiedError: If nobody is at the other end any more, and all that it had sent has been received.
          HostUnreachableError: If the other end gives no sign of life.
        """
        ...

    def is_ready(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        ...

    def watch(self, begin: bool) -> Sequence[int]:
        """Says that a thread begins, or ends, to wait for this channel among others (see `wait_any`).

        Args:
          begin: Whether it begins.

        Returns:
          File descriptors, of which one can be read when `is_ready` should be asked again.
        """
        ...

    def close(self) -> None:
        """Tells the other end that this one is gone. What has been sent still arrives there."""
        ...


_SLICE_S = 0.1
"""Seconds between two checks whether the other end still exists."""

C = TypeVar("C", bound=Channel)


def wait_any(
    channels: Sequence[C],
    timeout_s: float | None = None,
) -> list[C]:
    """Waits until at least one of some channels has a message, or an error to raise.

    Args:
      channels: The channels.
      timeout_s: How long, in seconds; None for ever.

    Returns:
      Those that are ready, in the order given; none if nothing has come in time.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    asked = channels
    all_asked_at = 0.0
    while True:
        poll = select.poll()
        of_descriptor = {}
        for channel in channels:
            for descriptor in channel.watch(True):
                of_descriptor[descriptor] = channel
                poll.register(descriptor, select.POLLIN)
        try:
            if ready := [channel for channel in asked if channel.is_ready()]:
                return ready
            now = time.monotonic()
            all_asked_at = now if asked is channels else all_asked_at
            left = _SLICE_S if end is None else min(_SLICE_S, end - now)
            if left <= 0:
                return []
            stirred = {id(of_descriptor[descriptor]) for descriptor, _ in poll.poll(left * 1e3)}
            # To ask a channel costs more than to wait, so only those are asked of which something has come. All are after a slice, for
            # an end does not stir.
            is_late = time.monotonic() - all_asked_at >= _SLICE_S
            if is_late or not stirred:
                asked = channels
            else:
                asked = [c for c in channels if id(c) in stirred]
        finally:
            for channel in channels:
                channel.watch(False)
