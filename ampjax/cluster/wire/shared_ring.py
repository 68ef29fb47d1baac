"""Memory that two processes share, written by one and read by the other: large frames go through here, past the kernel.

A writer never writes where something has not been read: it is told up to which position the reader has come. Who reads knows from a message
where something is, so nothing in the memory itself says so. Both refuse positions that the other cannot have come to.

A frame of at most a quarter of the ring has room at the latest when all that was written has been read and the reader has reported what is
due: less than a quarter is not reported then, and less than another one is left out at the ring's end.
"""

from __future__ import annotations

import mmap

import numpy as np

_ALIGN = 64


class RingWriter:
    """The writer's half.

    Args:
      memory: What is shared.
      start: Where this way's part of it begins.
      size: Bytes of that part.
    """

    def __init__(self, memory: mmap.mmap, start: int, size: int):
        self._memory = memory
        self._start = start
        self._size = size
        self._written = self._read = 0

    def put(self, frame: bytes | memoryview) -> int | None:
        """Writes a frame, in one piece.

        Args:
          frame: The frame, of at most a quarter of the ring.

        Returns:
          Its position, for the reader; None if there is no room now.
        """
        n = len(frame)
        left = -self._written % self._size
        if (
            self._read == self._written
        ):  # the ring is empty: the memory that was used last is the soonest to write to
            self._written = self._read = self._written + left
            left = 0
        position = self._written + (left if n > left else 0)
        if position + n > self._read + self._size:
            return None
        at = self._start + position % self._size
        self._memory[at : at + n] = frame
        self._written = _end(position, n)
        return position

    def was_read(self, position: int) -> None:
        """The reader has come to a position.

        Args:
          position: What `RingReader.position` was there.

        Raises:
          ValueError: If it cannot be there: nothing was written up to there, or it has been there before.
        """
        if not self._read < position <= self._written:
            raise ValueError(
                f"{position} as read, where {self._read} was read and {self._written} written"
            )
        self._read = position


class RingReader:
    """The reader's half.

    Args:
      memory: What is shared.
      start: Where this way's part of it begins.
      size: Bytes of that part.

    Attributes:
      position: Up to where frames have been read.
    """

    def __init__(self, memory: mmap.mmap, start: int, size: int):
        self._memory = memory
        self._start = start
        self._size = size
        self.position = self._reported = 0

    @property
    def is_due(self) -> bool:
        """Whether the writer must be told of the position: a quarter of the ring has been read since the last report."""
        return 4 * (self.position - self._reported) >= self._size

    def note_report(self) -> None:
        """The writer has been told of the position."""
        self._reported = self.position

    def take(self, position: int, n: int) -> np.ndarray:
        """Copies a frame out of the ring.

        Args:
          position: Where the writer has put it.
          n: Its bytes.

        Returns:
          The frame, uint8.

        Raises:
          ValueError: If no writer can have put it there.
        """
        at = position % self._size
        if not self.position <= position < self.position + self._size or at + n > self._size:
            raise ValueError(
                f"{n} bytes at {position}, where {self.position} was read of a ring of {self._size}"
            )
        self.position = _end(position, n)
        return np.frombuffer(
            self._memory,
            np.uint8,
            n,
            self._start + at,
        ).copy()


def _end(position: int, n: int) -> int:
    return position + -(-n // _ALIGN) * _ALIGN
