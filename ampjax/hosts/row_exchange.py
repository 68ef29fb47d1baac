"""A host's rows on their way to other hosts and from them: neither the sender nor the receiver waits for longer than it must.

Rows that others need are read in the order of decision, but only sent when they have been computed: until then more is issued. Rows of others
are written late, too: a host goes on with what it can do without them, in the order of decision, and waits for them only before a launch
for one of the same instances. That changes no bit: a transfer touches no parameters, what is written to the same slots is written in the
order of decision, and a slot is used again only when the instance that had it needs it no longer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ampjax.cluster import Channel, Message
from ampjax.engine.kernels.launch import Launch
from ampjax.errors import HostError

PATIENCE_S = 0.05
"""How long a host that waits for another's rows goes on before it looks whether the driver has given up what is in flight."""


class GivenUp(Exception):
    """The driver has given up what is in flight, while this host waited for another's rows."""


class _Outgoing(NamedTuple):
    batch: int
    peer: int
    number: int
    rows: Any

    @property
    def is_computed(self) -> bool:
        return isinstance(self.rows, np.ndarray) or self.rows.is_ready()


class _Awaited(NamedTuple):
    peer: int
    launch: Launch
    instances: frozenset[int]


class RowExchange:
    """Rows on their way.

    Args:
      peers: The channels to the other hosts, by number.
      write: Writes a transfer's rows; gets the launch, the time since when the host has waited for them, and the rows.
      look_for_the_end: Called while the host waits; raises `GivenUp` if the driver has given up what is in flight.
      now_ns: The clock.

    Attributes:
      epoch: How often everything in flight has been given up; what others have sent before is dropped.
    """

    def __init__(
        self,
        peers: Mapping[int, Channel],
        write: Callable[[Launch, int, np.ndarray], None],
        look_for_the_end: Callable[[], None],
        now_ns: Callable[[], int],
    ):
        self._peers, self._write, self._look_for_the_end, self._now_ns = peers, write, look_for_the_end, now_ns
        self._outgoing = deque[_Outgoing]()
        self._awaited = deque[_Awaited]()
        self.epoch = 0

    def send(self, peer: int, number: int, arrays: Sequence[np.ndarray]) -> None:
        """Sends arrays to another host now.

        Args:
          peer: Its number.
          number: The launch's that they belong to.
          arrays: The arrays.
        """
        self._peers[peer].send(Message("rows", (self.epoch, number), arrays=tuple(arrays)))

    def send_later(self, batch: int, peer: int, number: int, rows: Any) -> None:
        """Sends rows to another host as soon as they have been computed and this one looks.

        Args:
          batch: The number of the batch that they belong to.
          peer: The other host.
          number: The launch's that has read them.
          rows: The rows; perhaps not computed yet.
        """
        self._outgoing.append(_Outgoing(batch, peer, number, rows))

    def send_computed(self) -> None:
        """Sends the rows that have been computed."""
        while self._outgoing and self._outgoing[0].is_computed:
            self._send_first()

    def send_all(self, up_to: int | None = None) -> None:
        """Sends rows; waits until they have been computed.

        Args:
          up_to: Only those of this batch and earlier ones.
        """
        while self._outgoing and (up_to is None or self._outgoing[0].batch <= up_to):
            self._send_first()

    def _send_first(self) -> None:
        first = self._outgoing[0]
        self.send(first.peer, first.number, [np.asarray(first.rows)])
        self._outgoing.popleft()

    def await_rows(self, peer: int, launch: Launch) -> None:
        """Notes that rows of another host are to be written.

        Args:
          peer: The other host.
          launch: The launch of the transfer.
        """
        self._awaited.append(_Awaited(peer, launch, frozenset(_instances(launch))))
        self.write_received()

    def write_received(self) -> None:
        """Writes the rows that have come, as far as those before them have."""
        while self._awaited and self._peers[self._awaited[0].peer].is_ready():
            self._write_first()

    def needs(self, launch: Launch) -> bool:
        """Whether rows that a launch may read, or add to, have not been written yet.

        Args:
          launch: The launch.
        """
        if not self._awaited:
            return False
        own = _instances(launch)
        return any(not awaited.instances.isdisjoint(own) for awaited in self._awaited)

    def write_for(self, launch: Launch) -> None:
        """Writes what a launch needs, and waits for it if it has not come. Sends first what others may wait for.

        Args:
          launch: The launch.

        Raises:
          GivenUp: If the driver has given up what is in flight.
        """
        while self.needs(launch):
            self._write_first()

    def finish(self) -> None:
        """Sends and writes everything.

        Raises:
          GivenUp: If the driver has given up what is in flight.
        """
        self.send_all()
        while self._awaited:
            self._write_first()

    def _write_first(self) -> None:
        first = self._awaited[0]
        if not self._peers[first.peer].is_ready():
            self.send_all()
        begin_ns = self._now_ns()
        (rows,) = self.receive(first.peer, first.launch.number)
        self._awaited.popleft()
        self._write(first.launch, begin_ns, rows)

    def receive(self, peer: int, number: int) -> Sequence[np.ndarray]:
        """What another host has sent for a launch.

        Args:
          peer: The other host.
          number: The launch's.

        Raises:
          GivenUp: If the driver has given up what is in flight.
        """
        while True:
            message = self._from(peer)
            if message is None:
                self._look_for_the_end()
            elif message.numbers[0] == self.epoch:
                assert message.numbers[1] == number, (message.numbers, number)
                return message.arrays
            elif message.numbers[0] > self.epoch:  # the other host has been told already, and this one will be
                raise GivenUp

    def _from(self, peer: int) -> Message | None:
        """The next message of another host, if it comes soon."""
        try:
            return self._peers[peer].receive(PATIENCE_S)
        except HostError:  # the other one has died: the driver knows, or will
            time.sleep(PATIENCE_S)
            return None

    @property
    def bytes_sent(self) -> dict[int, int]:
        """Bytes that have been sent to each of the other hosts so far."""
        return {peer: channel.bytes_sent for peer, channel in self._peers.items()}

    def give_up(self, epoch: int) -> None:
        """Forgets everything.

        Args:
          epoch: The epoch that begins.
        """
        self._outgoing.clear()
        self._awaited.clear()
        self.epoch = epoch


def _instances(launch: Launch) -> list[int]:
    """The instances of a launch's messages."""
    start = 2 * max(launch.size, launch.n_messages)
    return launch.pack[start : start + launch.n_messages].tolist()
