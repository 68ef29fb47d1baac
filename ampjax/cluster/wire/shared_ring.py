"""Memory that two processes share, one of which writes to it and the other reads: large frames go through it, past the kernel.

A writer never writes where something has not been read: it is told up to which position the reader has come. Who reads knows from a message
where something is, so nothing in the memory itself says so.
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
        self._memory, self._start, self._size = memory, start, size
        self._written = self._read = 0

    def put(self, frame: bytes | memoryview) -> int | None:
        """Writes a frame, in one piece.

        Args:
          frame: The frame; no larger than the ring.

        Returns:
          Its position, for the reader; None if there is no room now.
        """
        n = len(frame)
        left = self._size - self._written % self._size
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
          position: What `RingReader.position` was there. One that was never written is not believed.
        """
        if self._read < position <= self._written:
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
        self._memory, self._start, self._size = memory, start, size
        self.position = 0

    def take(self, position: int, n: int) -> np.ndarray | None:
        """Copies a frame out of the ring.

        Args:
          position: Where the writer has put it.
          n: Its bytes.

        Returns:
          The frame, uint8; None if no writer can have put it there.
        """
        at = position % self._size
        if position < self.position or at + n > self._size:
            return None
        self.position = _end(position, n)
        return np.frombuffer(self._memory, np.uint8, n, self._start + at).copy()


def _end(position: int, n: int) -> int:
    return position + -(-n // _ALIGN) * _ALIGN
