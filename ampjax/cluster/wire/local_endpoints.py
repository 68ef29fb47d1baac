"""The means of two processes of one machine to talk without a network: a pair of sockets and shared memory, neither of which has a name.

Both exist only as file descriptors, which a process gets when it is started. So nobody else can open them, and they are gone when the last of
the two has ended, however it did.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import NamedTuple

from ampjax.cluster.wire.message import CHUNK_BYTES

RING_BYTES = 4 * CHUNK_BYTES
"""Memory for frames under way in one direction, of which only what is used takes memory. A frame of a large array (`CHUNK_BYTES`) has room wherever
in the ring the last one ended, and although a quarter of what has been read is not known yet."""

_BUFFER_BYTES = 1 << 22
"""How much a socket may hold, if the system's limit allows it."""


class LocalEndpoint(NamedTuple):
    """One process's half, as file descriptors.

    Args:
      socket: Of a socket that keeps records apart.
      memory: Of memory for `RING_BYTES` each way.
      is_first: Whether this end writes to the first half of it.
    """

    socket: int
    memory: int
    is_first: bool

    def keep(self) -> LocalEndpoint:
        """Keeps the endpoint from processes that this one starts. Returns the endpoint."""
        for descriptor in (self.socket, self.memory):
            os.set_inheritable(descriptor, False)
        return self

    def close(self) -> None:
        """Closes both descriptors."""
        for descriptor in (self.socket, self.memory):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def can_be_local() -> bool:
    """Whether this system has such sockets and memory without a name: Linux has."""
    return hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")


def local_endpoints() -> tuple[LocalEndpoint, LocalEndpoint]:
    """Makes both endpoints.

    Raises:
      OSError: If the system refuses, or this process has too many open files; nothing is left open then.
    """
    with contextlib.ExitStack() as undo:
        first, second = (
            undo.enter_context(each)
            for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        memory = os.memfd_create("ampjax", os.MFD_CLOEXEC)
        undo.callback(os.close, memory)
        os.ftruncate(memory, 2 * RING_BYTES)
        again = os.dup(memory)
        undo.pop_all()
        return LocalEndpoint(first.detach(), memory, True), LocalEndpoint(
            second.detach(), again, False
        )
