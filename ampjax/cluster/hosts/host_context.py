"""The context of a host's program: the host's identity, and its channels to the driver and to the others."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ampjax.cluster.wire.channel import Channel
from ampjax.cluster.wire.local_endpoints import LocalEndpoint
from ampjax.cluster.wire.zmq_channel import ZmqChannel
from ampjax.cluster.wire.zmq_wire import LOOPBACK, ZmqWire
from ampjax.errors import SettingsError


@dataclass
class HostContext:
    """A host, as its own program sees the host.

    Args:
      name: Its name.
      number: Its number, from 0.
      names: The names of all hosts, in order.
      driver: The channel to the driver.
      find: Gives the channel to another host.
      address: That of this machine at which the others reach it.
    """

    name: str
    number: int
    names: tuple[str, ...]
    driver: Channel
    find: Callable[[str], Channel]
    address: str = LOOPBACK
    _peers: dict[str, Channel] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"HostContext({self.name}, {self.number} of {len(self.names)} on {self.place}, process {os.getpid()})"

    @property
    def place(self) -> str:
        """The name of its machine."""
        return socket.gethostname()

    def peer(self, name: str) -> Channel:
        """The channel to another host; the same at each call.

        Args:
          name: Its name.

        Returns:
          The channel.

        Raises:
          SettingsError: If no other host has that name.
        """
        if name not in self.names or name == self.name:
            others = [other for other in self.names if other != self.name]
            raise SettingsError(
                f"{self.name}, peer", f"one of {others}", repr(name), "Choose one of these."
            )
        if name not in self._peers:
            self._peers[name] = self.find(name)
        return self._peers[name]


class PeerFinder:
    """The channels from one host to the others: of two hosts, the one with the lower number listens.

    Args:
      wire: The host's wire.
      names: The names of all hosts, in order.
      endpoints: For those on the same machine, this host's half of what both need to talk past the network.
    """

    def __init__(
        self,
        wire: ZmqWire,
        names: tuple[str, ...],
        endpoints: Mapping[str, LocalEndpoint],
    ):
        number = names.index(wire.name)
        self._wire = wire
        self._endpoints = dict(endpoints)
        self._listening = {name: wire.listen(name) for name in names[number + 1 :]}
        self._book: Mapping[str, tuple[str, str, int]] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses at which this host listens, by the name of the connecting peer."""
        return {name: channel.address for name, channel in self._listening.items()}

    def learn(
        self,
        book: Mapping[str, tuple[str, str, int]],
    ) -> None:
        """Gets to know the others.

        Args:
          book: By name the address at which that host listens for this one (or nothing), its machine, and its process.
        """
        self._book = book
        for name, channel in self._listening.items():
            channel.ending = self._ending(name)
            self._use_local(channel)

    def _use_local(self, channel: ZmqChannel) -> None:
        if (endpoint := self._endpoints.pop(channel.peer, None)) is not None:
            channel.use_local(endpoint)

    def __call__(self, name: str) -> Channel:
        """The channel to a host."""
        if name in self._listening:
            return self._listening[name]
        channel: ZmqChannel = self._wire.connect(
            name,
            self._book[name][0],
        )
        channel.ending = self._ending(name)
        self._use_local(channel)
        return channel

    def _ending(self, name: str) -> Callable[[], str | None]:
        """Says whether a host's process is gone, which can only be seen on the same machine."""
        _, place, process = self._book[name]
        if place != socket.gethostname():
            return lambda: None

        def ending() -> str | None:
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                return f"process {process} is gone"
            except PermissionError:
                pass
            return None

        return ending
