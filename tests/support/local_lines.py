"""Both ends of what processes of one machine talk over, in one process: lines without ZeroMQ, and channels."""

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path

import pytest

from ampjax.cluster.wire.local_endpoints import can_be_local, local_endpoints
from ampjax.cluster.wire.local_line import LocalLine
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.cluster.wire.zmq_wire import ZmqWire, new_keys

KEYS = new_keys()
needs_local = pytest.mark.skipif(
    not can_be_local(), reason="this system has no such sockets and memory"
)
needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux tells which files are open"
)


class AlwaysThere:
    """Stands for the ZeroMQ line: the peer beats."""

    peer = "peer"
    address = ""
    state = "connected"
    was_there = True
    silence_s = 0.0
    descriptors = ()

    def look(self):
        return False

    def take(self):
        return None

    def close(self):
        pass


def lines():
    """Two lines to each other."""
    near, far = local_endpoints()
    return LocalLine(AlwaysThere(), near), LocalLine(AlwaysThere(), far)


@contextlib.contextmanager
def pair(window=None, silence_s=1.0):
    """Two channels past the network, and a socket that writes as the first one does."""
    a, b = (ZmqWire(name, KEYS, window=window, patience=Patience(silence_s, 5.0)) for name in "ab")
    near, far = local_endpoints()
    intruder = socket.socket(fileno=os.dup(near.socket))
    try:
        here = a.listen("b")
        there = b.connect("a", here.address)
        here.use_local(near)
        there.use_local(far)
        with intruder:
            yield here, there, intruder
    finally:
        a.close()
        b.close()


def open_files():
    """This process's files, and memory that has a name."""
    gc.collect()  # an error keeps the channel that raised it
    folder = Path("/proc/self/fd")
    return {
        n: os.readlink(folder / n) for n in os.listdir(folder) if (folder / n).is_symlink()
    }, os.listdir("/dev/shm")
