"""A host's rows on their way to and from other hosts: neither sender nor receiver waits longer than necessary.

Rows that others need are read in the order of decision, but only sent when they have been computed: until then more is issued. Rows of others
are written late, too: a host goes on with what it can do without them, in the order of decision, and waits for them only before a launch
for one of the same instances, or one that writes to the same slots: rows that nobody needs are forgotten when they have been decided on,
so another instance may get their slots. So no bit changes: a transfer touches no parameters, and whatever touches the same slots is carried
out in the order of decision.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ampjax.cluster.wire.channel import Channel
from ampjax.cluster.wire.message import Message
from ampjax.engine.kernels.launch import Launch
from ampjax.errors import HostError, HostUnreachableError
from ampjax.plan.stages import ArenaKey

Slot = tuple[ArenaKey, int]
"""A row's place: its arena, and the number there."""

PATIENCE_S = 0.05
"""How long a host that waits for another's rows goes on before it looks whether the driver has given up what is in flight."""

MOST_TRIES = 100
"""How often a host tries to send rows to one that it can't reach: in 5 s the driver would have noticed that nobody can."""


class GivenUp(Exception):
    """The driver has given up everything in flight, while this host waited for another's rows."""


class RowsFailed(Exception):
    """Rows for another host could not be computed.

    Args:
      batch: The number of the batch that they belong to.
      launch: The launch that has read them.
    """

    def __init__(self, batch: int, launch: Launch):
        super().__init__(batch, launch)
        self.batch = batch
        self.launch = launch


class _Outgoing(NamedTuple):
    batch: int
    peer: int
    launch: Launch
    rows: Any

    @property
    def is_computed(self) -> bool:
        return isinstance(self.rows, np.ndarray) or self.rows.is_ready()


class _Awaited(NamedTuple):
    peer: int
    launch: Launch
    instances: frozenset[int]
    slots: frozenset[Slot]


class RowExchange:
    """Rows on their way.

    It has more than 15 methods, since rows go both ways, and each way has those that can wait and those that are waited for.

    Args:
      peers: The channels to the other hosts, by number.
      write: Writes a transfer's rows; gets the launch, the time since when the host has waited for them, and the rows.
      slots_of: Gives the slots that a launch writes; of the launch of a transfer, those that its rows are written or added to.
      look_for_the_end: Called while the host waits; raises `GivenUp` if the driver has given up what is in flight.
      now_ns: The clock.

    Attributes:
      epoch: How often everything in flight has been given up; what others have sent before is dropped.
    """

    def __init__(
        self,
        peers: Mapping[int, Channel],
        write: Callable[[Launch, int, np.ndarray], None],
        slots_of: Callable[[Launch], Iterable[Slot]],
        look_for_the_end: Callable[[], None],
        now_ns: Callable[[], int],
    ):
        self._peers = peers
        self._write = write
        self._look_for_the_end = look_for_the_end
        self._now_ns = now_ns
        self._slots_of = slots_of
        self._outgoing = deque[_Outgoing]()
        self._awaited = deque[_Awaited]()
        self._arrived: dict[int, deque[Message]] = {peer: deque() for peer in peers}
        self.epoch = 0

    def send(
        self,
        peer: int,
        number: int,
        arrays: Sequence[np.ndarray],
    ) -> None:
        """Sends arrays to another host now, or as soon as that host can be reached.

        Raises:
          GivenUp: If the driver has given up what is in flight.
          HostUnreachableError: If only this host can't reach the other one, and the driver can.
        """
        message = Message(
            "rows",
            (self.epoch, number),
            arrays=tuple(arrays),
        )
        tries = 0
        while True:
            try:
                return self._peers[peer].send(message)
            except HostUnreachableError:
                if (tries := tries + 1) > MOST_TRIES:
                    raise
                self._look_for_the_end()
                time.sleep(PATIENCE_S)
            except HostError:  # the other one has died: the driver knows, or will
                return

    def send_later(
        self,
        batch: int,
        peer: int,
        launch: Launch,
        rows: Any,
    ) -> None:
        """Sends rows to another host at the next look after the rows have been computed.

        Args:
          batch: The number of the batch that they belong to.
          peer: The other host.
          launch: The launch that has read them.
          rows: The rows; perhaps not computed yet.
        """
        self._outgoing.append(_Outgoing(batch, peer, launch, rows))

    def send_computed(self) -> None:
        """Sends the rows that have been computed.

        Raises:
          RowsFailed: If computing them has failed.
        """
        while self._outgoing and self._outgoing[0].is_computed:
            self._send_first()

    def send_all(self, up_to: int | None = None) -> None:
        """Sends rows; waits until all have been computed.

        Args:
          up_to: Only those of this batch and earlier ones.

        Raises:
          RowsFailed: If computing them has failed.
        """
        while self._outgoing and (up_to is None or self._outgoing[0].batch <= up_to):
            self._send_first()

    def _send_first(self) -> None:
        first = self._outgoing.popleft()
        try:
            rows = np.asarray(first.rows)
        except Exception as error:  # whatever a body, or XLA, has raised
            raise RowsFailed(first.batch, first.launch) from error
        self.send(first.peer, first.launch.number, [rows])

    def await_rows(self, peer: int, launch: Launch) -> None:
        """Notes that rows of another host are to be written."""
        self._awaited.append(
            _Awaited(
                peer,
                launch,
                frozenset(launch.ids.tolist()),
                frozenset(self._slots_of(launch)),
            )
        )
        self.write_received()

    def write_received(self) -> None:
        """Writes the rows that have come, in order, up to the first missing ones.

        Raises:
          GivenUp: If the driver has given up what is in flight.
        """
        self._take_in()
        while self._awaited:
            # In the order of launches: later rows may go to slots that earlier launches read.
            first = self._awaited[0]
            if (rows := self._next_rows(first.peer, first.launch.number)) is None:
                return
            self._write_first(self._now_ns(), rows)

    def needs(self, launch: Launch) -> bool:
        """Whether rows that a launch may read, add to, or take the place of have not been written yet."""
        if not self._awaited:
            return False
        ids = launch.ids.tolist()
        # The same instance: its messages may read these rows.
        if any(not awaited.instances.isdisjoint(ids) for awaited in self._awaited):
            return True
        # Or the same slots: written before an older transfer's rows come, they would be
        # overwritten.
        slots = [*self._slots_of(launch)]
        return any(not awaited.slots.isdisjoint(slots) for awaited in self._awaited)

    def write_for(self, launch: Launch) -> None:
        """Writes the rows that a launch needs, and waits for missing ones, sending rows to others meanwhile.

        Raises:
          GivenUp: If the driver has given up what is in flight.
          RowsFailed: If computing what others may wait for has failed.
        """
        while self.needs(launch):
            self._wait_for_first()

    def finish(self) -> None:
        """Sends and writes everything.

        Raises:
          GivenUp: If the driver has given up what is in flight.
          RowsFailed: If computing what others may wait for has failed.
        """
        # Sent first, so that others can go on while this host waits for theirs.
        self.send_all()
        while self._awaited:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        begin_ns = self._now_ns()
        first = self._awaited[0]
        self._write_first(
            begin_ns,
            self.receive(first.peer, first.launch.number),
        )

    def _write_first(
        self,
        begin_ns: int,
        rows: Sequence[np.ndarray],
    ) -> None:
        self._write(self._awaited.popleft().launch, begin_ns, *rows)

    def receive(
        self,
        peer: int,
        number: int,
    ) -> Sequence[np.ndarray]:
        """Waits for the arrays that another host sends for a launch, sending rows to others meanwhile.

        Raises:
          GivenUp: If the driver has given up what is in flight.
          RowsFailed: If computing what others may wait for has failed.
        """
        while (rows := self._next_rows(peer, number)) is None:
            if self._outgoing:  # what has come meanwhile is used before this host waits for the next ones to be computed
                self._send_first()
            # Nothing is left to send: wait for the peer, and now and then look whether all was
            # given up.
            elif (message := self._from(peer, PATIENCE_S)) is not None:
                self._arrived[peer].append(message)
            else:
                self._look_for_the_end()
            self._take_in()  # so that nobody has to wait to send
        return rows

    def _next_rows(
        self,
        peer: int,
        number: int,
    ) -> Sequence[np.ndarray] | None:
        """Gives the arrays that another host has sent for a launch, if any have come; arrays from before a giving-up are dropped."""
        arrived = self._arrived[peer]
        while arrived:
            message = arrived[0]
            if (
                message.numbers[0] > self.epoch
            ):  # the other host has been told already, and this one will be
                raise GivenUp
            arrived.popleft()
            if message.numbers[0] == self.epoch:
                if message.numbers[1] != number:
                    got = f"those of dispatch {message.numbers[1]}"
                    fix = "This is a mistake of ampjax's."
                    raise HostError(f"host {peer}", f"rows of dispatch {number}", got, fix)
                return message.arrays
        return None

    def _take_in(self) -> None:
        """Takes the messages that have come from others."""
        for peer, channel in self._peers.items():
            while channel.is_ready() and (message := self._from(peer, 0.0)) is not None:
                self._arrived[peer].append(message)

    def _from(self, peer: int, patience_s: float) -> Message | None:
        """The next message of another host, if one comes soon."""
        try:
            return self._peers[peer].receive(patience_s)
        except HostError:  # the other one has died: the driver knows, or will
            time.sleep(patience_s)
            return None

    @property
    def bytes_sent(self) -> dict[int, int]:
        """Bytes that have been sent to each of the other hosts so far."""
        return {peer: channel.bytes_sent for peer, channel in self._peers.items()}

    def give_up(self, epoch: int) -> None:
        """Forgets everything."""
        self._outgoing.clear()
        self._awaited.clear()
        self.epoch = epoch
