"""A TCP proxy that does to a connection what networks and strangers do: delays, cuts, changes, repeats and injects bytes."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time


class LossyProxy:
    """Stands before `address`; its own is `tcp://127.0.0.1:port`.

    Args:
      address: `tcp://host:port`.
      seed: What goes wrong follows from it, and from how bytes come.
      fault: `delay`, `cut`, `truncate`, `garbage`, `replay`, or nothing.
      every: About how many pieces pass between two faults.
    """

    def __init__(
        self,
        address: str,
        seed: int,
        fault: str = "",
        every: int = 20,
    ):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self.fault = fault
        self._every = every
        self._random = random.Random(seed)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.n_faults = 0
        self.is_open = True
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        """Cuts all, for good."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cuts the connections that there are."""
        ends = self._ends
        self._ends = []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while self.is_open:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._pass,
                        args=(source, target),
                        daemon=True,
                    ).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        last = b""
        with contextlib.suppress(OSError, ValueError):
            while piece := source.recv(self._random.choice([64, 1500, 65536])):
                if self.fault and self._random.randrange(self._every) == 0:
                    self.n_faults += 1
                    match self.fault:
                        case "delay":
                            time.sleep(0.05)
                        case "cut":
                            break
                        case "truncate":
                            target.sendall(piece[: len(piece) // 2])
                            break
                        case "garbage":
                            at = self._random.randrange(len(piece))
                            piece = piece[:at] + bytes([piece[at] ^ 0x55]) + piece[at + 1 :]
                        case "replay":
                            piece = last + piece
                target.sendall(piece)
                last = piece
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
