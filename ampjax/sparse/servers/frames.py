"""Messages between two processes over a socket: picklable objects. Arrays in them are sent as they lie in memory, without a copy.

A message is the number of its buffers, their sizes, and the buffers: the pickled object first, then its arrays. Both ends are ours and
of one version, and nothing else can write into the socket; so what comes out of it may be unpickled.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from io import BufferedReader
from typing import Any, cast

import numpy as np

_BUFFERED = 1 << 16
"""Bytes of small messages that go in one system call."""

_UNDERWAY = 1 << 22
"""Bytes that may be under way at a time. With Linux's 200 kB, both ends wait for each other all the time. A system may allow less."""


class Channel:
    """One end of a socket, for one thread at a time.

    Args:
      end: The socket, connected.
    """

    def __init__(self, end: socket.socket):
        self._socket = end
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _UNDERWAY)
        self._in, self._out = cast(BufferedReader, end.makefile("rb", _BUFFERED)), end.makefile("wb", _BUFFERED)

    def send(self, message: Any) -> None:
        """Sends an object.

        Args:
          message: Anything that can be pickled.

        Raises:
          OSError: If nobody is at the other end.
        """
        arrays: list[pickle.PickleBuffer] = []
        body = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
        buffers = [memoryview(body), *(array.raw() for array in arrays)]
        self._out.write(struct.pack(f"<{1 + len(buffers)}Q", len(buffers), *(buffer.nbytes for buffer in buffers)))
        for buffer in buffers:
            self._out.write(buffer)
        self._out.flush()

    def receive(self) -> Any:
        """Waits for an object.

        Returns:
          The object; arrays in it are its own and may be written to.

        Raises:
          EOFError: If nobody is at the other end.
          OSError: Likewise.
        """
        (n,) = struct.unpack("<Q", self._read(8))
        body, *arrays = [self._read(size) for size in struct.unpack(f"<{n}Q", self._read(8 * n))]
        return pickle.loads(body, buffers=arrays)

    def close(self) -> None:
        """Closes this end, once nobody is at the other. What has not been sent is lost."""
        for part in (self._in, self._out, self._socket):
            with contextlib.suppress(OSError):
                part.close()

    def _read(self, size: int) -> memoryview:
        buffer = np.empty(size, np.uint8).data  # unlike a bytearray, not filled with zeros first
        if self._in.readinto(buffer) < size:
            raise EOFError
        return buffer
