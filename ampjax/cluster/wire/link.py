"""The rules of an ordered and reliable way, without a transport: numbers, windows, and verdicts on arriving messages. Knows no sockets and no clock."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ampjax.cluster.wire.channel import Window


class LinkVerdict(enum.Enum):
    """The fate of an arriving message."""

    NEXT = "it is the next one"
    AGAIN = "it has come before"
    EARLY = "one before it is missing"
    FOREIGN = "it is of another epoch"


class _SentMessage(NamedTuple):
    sequence: int
    frames: list[Any]
    nbytes: int


class Link:
    """One end's state: messages sent that may have to be sent again, and the number of the next expected message.

    Args:
      epoch: The run's epoch; messages of any other are refused.
      window: How much may be under way one way.
    """

    def __init__(self, epoch: int, window: Window):
        self.epoch = epoch
        self._window = window
        self._sent: deque[_SentMessage] = deque()
        self._nbytes = 0  # of what is in `_sent`
        self._next = 1
        self.expected = 1
        self._taken = self._told = (
            0  # the last message that was taken out here, and that the other end knows of
        )
        self._untold_nbytes = 0

    # ---- what goes out -----------------------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The number of the next message."""
        return self._next

    def has_room(self, nbytes: int) -> bool:
        """Whether a message may be sent now.

        Args:
          nbytes: Bytes of its arrays.
        """
        fits = (
            len(self._sent) < self._window.messages and self._nbytes + nbytes <= self._window.nbytes
        )
        return fits or not self._sent

    def keep(self, frames: list[Any], nbytes: int) -> None:
        """Keeps a sent message until the other end has taken that message.

        Args:
          frames: Its frames, with `next_sequence` in them.
          nbytes: Bytes of its arrays.
        """
        self._sent.append(_SentMessage(self._next, frames, nbytes))
        self._nbytes += nbytes
        self._next += 1

    def confirm(self, sequence: int) -> None:
        """The other end has taken all messages up to one.

        Args:
          sequence: The number of that one. What was never sent is not believed.
        """
        # In order of sending: a number confirms all before it.
        while self._sent and self._sent[0].sequence <= sequence < self._next:
            self._nbytes -= self._sent.popleft().nbytes

    def unconfirmed(self, since: int = 0) -> Iterator[list[Any]]:
        """The messages that may have to be sent again, in order.

        Yields:
          A message's frames.
        """
        yield from (sent.frames for sent in self._sent if sent.sequence >= since)

    # ---- what comes in -----------------------------------------------------------------------------------------------

    def judge(self, epoch: int, sequence: int) -> LinkVerdict:
        """Judges an arriving message by its number, and expects the next number after an expected one."""
        # Of an earlier connection, or of another run.
        if epoch != self.epoch:
            return LinkVerdict.FOREIGN
        # Sent twice, or something before it was lost.
        if sequence != self.expected:
            return LinkVerdict.AGAIN if sequence < self.expected else LinkVerdict.EARLY
        self.expected += 1
        return LinkVerdict.NEXT

    def take_next(self, nbytes: int) -> int | None:
        """The user has taken the next message.

        Args:
          nbytes: Bytes of its arrays.

        Returns:
          What to tell the other end: the number of the last message taken; None as long as a quarter of the window has not been taken since.
        """
        self._taken += 1
        self._untold_nbytes += nbytes
        n_untold = self._taken - self._told
        # A quarter of the window keeps the sender going, with few reports.
        if 4 * n_untold < self._window.messages and 4 * self._untold_nbytes < self._window.nbytes:
            return None
        return self.tell()

    def tell(self) -> int:
        """The number to tell the other end on its question, or when a quarter of the window has been taken.

        Returns:
          The number of the last message taken.
        """
        self._told = self._taken
        self._untold_nbytes = 0
        return self._taken
