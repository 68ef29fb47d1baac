"""Makes a process's channels over ZeroMQ: with the keys of the run, and on the loopback unless another address is given."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
import weakref
from typing import NamedTuple

import zmq
from zmq.utils import z85

from ampjax.cluster.wire.channel import Window
from ampjax.cluster.wire.link import Link
from ampjax.cluster.wire.message import Message, encode
from ampjax.cluster.wire.waker import Waker
from ampjax.cluster.wire.zmq_channel import LINGER_S, Patience, ZmqChannel
from ampjax.cluster.wire.zmq_line import Line
from ampjax.errors import SettingsError

LOOPBACK = "127.0.0.1"
_LARGEST_FRAME = 1 << 26
_TEND_S = 0.05
_BEAT = 0.15
_NO_ANSWER = 0.55
"""Parts of the patience: a socket beats so often, and gives up a connection without an answer for so long."""


class Keys(NamedTuple):
    """The key pair of a run. All its processes have both halves, so each knows the others, and others know none.

    Args:
      public: The public key, Z85.
      secret: The secret key, Z85.
    """

    public: bytes
    secret: bytes


def new_keys() -> Keys:
    """Keys for one run."""
    return Keys(*zmq.curve_keypair())


class ZmqWire:
    """Channels of one process. All traffic is encrypted and authenticated (CURVE: Curve25519, XSalsa20, Poly1305).

    Args:
      name: This process's name among the others.
      keys: The run's keys. None for no protection at all: for measurements, and for tests of what gets in between.
      host: The address of this machine at which others can reach it.
      epoch: The run's epoch. What others send is refused.
      window: How much may be under way one way on each channel.
      patience: How long to wait for signs of life.
    """

    def __init__(
        self,
        name: str,
        keys: Keys | None,
        host: str = LOOPBACK,
        epoch: int = 0,
        window: Window | None = None,
        patience: Patience | None = None,
    ):
        self.name = name
        self.host = host
        self.epoch = epoch
        self._keys = keys
        self._window = window or Window()
        self._patience = patience or Patience()
        self._context = zmq.Context()
        self._context.setsockopt(zmq.MAX_SOCKETS, 1 << 14)
        self._channels: list[weakref.ref[ZmqChannel]] = []
        # A channel may be gone, in a cycle that is being collected, while its socket is not closed yet.
        self._lines: list[Line] = []
        self._tender = _Tender(self._channels)
        if keys is not None:
            _let_in_only(self._context, keys)
        threading.Thread(target=self._tender.run, name="ampjax-tend", daemon=True).start()
        weakref.finalize(self, self._tender.end)

    def listen(self, peer: str) -> ZmqChannel:
        """A channel to a process that connects to this one.

        Args:
          peer: Its name.

        Returns:
          The channel, at once; its `address` is what the peer needs.

        Raises:
          SettingsError: If nothing can listen at this machine's address.
        """
        line = self._socket(zmq.ROUTER)
        line.router_mandatory = True
        line.router_handover = (
            True  # a peer that comes anew takes over from what is left of its last connection
        )
        if self._keys is not None:
            line.curve_server = True
            line.zap_domain = b"ampjax"
        try:
            port = line.bind_to_random_port(f"tcp://{self.host}")
        except zmq.ZMQError as error:
            line.close()
            fix = "Give an address of this machine."
            raise SettingsError(
                "hosts", "an address to listen at", f"{self.host!r}: {error}", fix
            ) from None
        return self._channel(line, peer, f"tcp://{self.host}:{port}")

    def connect(self, peer: str, address: str) -> ZmqChannel:
        """A channel to a process that listens.

        Args:
          peer: Its name.
          address: The `address` of its channel.

        Returns:
          The channel, at once.
        """
        line = self._socket(zmq.DEALER)
        line.routing_id = self.name.encode()
        if self._keys is not None:
            line.curve_serverkey = self._keys.public
        line.connect(address)
        return self._channel(line, peer, address)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        result = self._context.socket(kind)
        silence_ms = self._patience.silence_s * 1e3
        result.ipv6 = ":" in self.host
        # The link bounds what is under way; if the socket did, it would stop reading when it is full, and beats with it.
        result.sndhwm = result.rcvhwm = 0
        result.heartbeat_ivl = int(_BEAT * silence_ms)
        result.heartbeat_timeout = int(_NO_ANSWER * silence_ms)
        # A handshake whose bytes were damaged is given up in time for another one.
        result.handshake_ivl = int(min(5000, max(1000, 0.5 * silence_ms)))
        result.reconnect_ivl = 50
        result.linger = int(1e3 * LINGER_S)
        result.maxmsgsize = _LARGEST_FRAME
        if self._keys is not None:
            result.curve_publickey, result.curve_secretkey = self._keys
        return result

    def _channel(
        self,
        line: zmq.Socket[bytes],
        peer: str,
        address: str,
    ) -> ZmqChannel:
        probe = encode(Message("\0told", (0,)), self.epoch, 0)
        beat_s = (_BEAT + _NO_ANSWER) * self._patience.silence_s
        link = Link(self.epoch, self._window)
        self._lines.append(Line(line, peer, address, beat_s, probe))
        result = ZmqChannel(
            self.name,
            self._lines[-1],
            link,
            self._window,
            self._patience,
            self._tender.stir,
        )
        self._channels.append(weakref.ref(result))
        return result

    def close(self) -> None:
        """Closes all channels, and waits until all messages have gone out, for two seconds at most."""
        channels = [channel for reference in self._channels if (channel := reference()) is not None]
        for channel in channels:
            channel.say_bye()
        until = time.monotonic() + LINGER_S
        for channel in channels:  # while one is waited for, the others send
            channel.close(until)
        self._tender.end()
        for line in self._lines:
            if not line.is_closed:
                line.close()
        self._context.term()


class _Tender:
    """Does the due work for channels that no thread is calling: sends waiting messages, and lost ones again.

    Args:
      channels: The channels.
    """

    def __init__(self, channels: list[weakref.ref[ZmqChannel]]):
        self._channels = channels
        self._waker = Waker()
        self._turn = threading.RLock()
        self._has_ended = False

    def stir(self) -> None:
        """Says that a channel is urgent."""
        with self._turn:
            self._waker.wake()

    def end(self) -> None:
        """Lets the thread end."""
        self._has_ended = True
        self.stir()

    def run(self) -> None:
        """The thread's loop."""
        while True:
            poll = select.poll()
            with (
                self._turn
            ):  # before channels are looked at: what is urgent after that wakes the thread
                poll.register(self._waker.begin(), select.POLLIN)
            for reference in list(self._channels):
                if (channel := reference()) is not None:
                    channel.tend()
                    if (urgent := channel.urgent) is not None:
                        poll.register(*urgent)
                    del channel  # holds none while it waits
            poll.poll(1e3 * _TEND_S)
            if self._has_ended:
                return
            with self._turn:
                self._waker.end()


def _let_in_only(
    context: zmq.Context[zmq.Socket[bytes]],
    keys: Keys,
) -> None:
    """Answers the sockets' questions whom to let in: peers with the run's secret key (ZeroMQ's authentication protocol, RFC 27)."""
    door = context.socket(zmq.REP)
    door.linger = 0
    door.bind("inproc://zeromq.zap.01")
    wanted = [b"CURVE", z85.decode(keys.public)]

    def answer() -> None:
        with contextlib.suppress(zmq.ContextTerminated), door:
            while True:
                version, request, _, _, _, *credentials = door.recv_multipart()
                verdict = [b"200", b"OK"] if credentials == wanted else [b"400", b"not of this run"]
                door.send_multipart([version, request, *verdict, b"", b""])

    threading.Thread(target=answer, name="ampjax-wire", daemon=True).start()


def own_address(toward: str) -> str:
    """The address of this machine for connections from another one.

    Args:
      toward: The other's address, `tcp://host:port`.
    """
    host = toward.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent
        return probe.getsockname()[0]
