"""Wakes threads that wait for file descriptors."""

from __future__ import annotations

import contextlib
import os
import weakref


class Waker:
    """A pipe that can be read when somebody was to be woken. Its owner's lock is held around every call."""

    def __init__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._n_waiting = 0
        weakref.finalize(self, _close, self._read, self._write)

    def begin(self) -> int:
        """One thread more waits.

        Returns:
          The descriptor to wait for.
        """
        self._n_waiting += 1
        return self._read

    def end(self) -> int:
        """One thread less waits.

        Returns:
          The descriptor that it has waited for.
        """
        self._n_waiting -= 1
        if not self._n_waiting:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 1 << 12)
        return self._read

    def wake(self) -> None:
        """Wakes all that wait, if any."""
        if self._n_waiting:
            with contextlib.suppress(BlockingIOError):
                os.write(self._write, b"!")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
