"""The driver's end of a host: operations that wait to be sent, batches under way, and reports that have come."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ampjax.cluster.wire.channel import Channel
from ampjax.cluster.wire.message import Message
from ampjax.errors import HostDiedError, HostError
from ampjax.hosts.hosts import HostPlace, HostState
from ampjax.hosts.operations import BatchWriter, MadeFor, Names
from ampjax.hosts.questions import question
from ampjax.sched.decisions.dispatch import DIRECTIONS

WINDOW = 8
"""Batches that a host has been sent and has not done, at most."""

_TURN_S = 0.001
"""How long a thread waits for another to receive from the same host before it looks whether what it waits for has come."""

_RECEIVE_S = 0.05


class HostLink:
    """The driver's view of one host.

    Several threads may wait for the same host, and one of them receives.

    It has more than 15 methods and twelve attributes: one socket carries batches, questions and what is read back, so one object receives for
    all three.

    Args:
      name: What errors call it.
      place: Where it is.
      channel: The channel to it.
      names: What numbers in operations stand for.
      is_alive: Whether its process is there.

    Attributes:
      batch: Operations that wait to be sent.
      needs: The hosts whose rows these need, and whose own operations have not been sent yet.
      sent: Batches that have been sent.
      done: Those of them that the host has done.
      failure: What it has said about an error.
      peers: All hosts: a host whose rows this one waits for may fail.
    """

    def __init__(
        self,
        name: str,
        place: HostPlace,
        channel: Channel,
        names: Names,
        is_alive: Callable[[], bool],
    ):
        self.name = name
        self._place = place
        self.batch = BatchWriter(names)
        self.needs: set[int] = set()
        self.sent = self.done = self.epoch = 0
        self.failure: Message | None = None
        self.peers: Sequence[HostLink] = ()
        self._channel = channel
        self._is_alive = is_alive
        self._receiving = threading.Lock()
        self._readings: dict[int, np.ndarray] = {}
        self._answers: dict[int, Message] = {}
        self._n_asked = 0
        self._progress: tuple[int, int] | None = None
        self._unfinished: deque[tuple[int, list[MadeFor | None]]] = deque()

    @property
    def place(self) -> str:
        """The place of the host, in words."""
        return self._place.text

    @property
    def n_bytes(self) -> tuple[int, int]:
        """Bytes that have been sent to the host, and that have come back."""
        return self._channel.bytes_sent, self._channel.bytes_received

    @property
    def opened(self) -> int:
        """The number of the batch to which operations are added now."""
        return self.sent + 1

    @property
    def is_idle(self) -> bool:
        """Whether the host has done all batches, as far as is known."""
        return self.done == self.sent

    def send_batch(self) -> None:
        """Sends the waiting operations as a batch."""
        self.sent += 1
        self._unfinished.append((self.sent, self.batch.made_for))
        self._channel.send(
            Message(
                "batch",
                (self.epoch, self.sent),
                arrays=tuple(self.batch.take()),
            )
        )
        self.needs.clear()

    def list_unfinished(self) -> list[tuple[int, int, MadeFor | None]]:
        """The operations that the host may not have carried out, in order: each one's batch, its place there, and its launch (`MadeFor`)."""
        batches = [*self._unfinished, (self.opened, self.batch.made_for)]
        result = []
        for batch, operations in batches:
            for place, each in enumerate(operations):
                result.append((batch, place, each))
        return result

    def oldest_unfinished(self) -> int | None:
        """The number of the first launch that the host may not have carried out; None if there is none."""
        return next(
            (made_for[0] for *_, made_for in self.list_unfinished() if made_for is not None),
            None,
        )

    def look(self) -> None:
        """Receives all messages that have come, without waiting."""
        if self._receiving.acquire(blocking=False):
            try:
                while self._receive(0.0):
                    pass
            finally:
                self._receiving.release()

    def wait_until(self, come: Callable[[], bool]) -> None:
        """Receives until something has come, or any host has failed.

        Raises:
          HostDiedError: If the process of a host has ended.
        """
        while not come() and self.failure is None:
            # One thread receives for all; the others look again when it has.
            if self._receiving.acquire(timeout=_TURN_S):
                try:
                    is_quiet = not come() and not self._receive(_RECEIVE_S)
                finally:
                    self._receiving.release()
                # Silence is looked into only when nothing has come.
                if is_quiet and not come():
                    self._require_life()
                    if any(peer.has_failed for peer in self.peers):
                        return  # this host may wait for that one

    @property
    def has_failed(self) -> bool:
        """Whether the host has reported a failure.

        Raises:
          HostDiedError: If its process has ended.
        """
        self.look()
        if self.failure is None:
            self._require_life()
        return self.failure is not None

    def _require_life(self) -> None:
        if not self._is_alive():
            fix = "Unless the trainer was closed, see what it has printed. Call `trainer.restart_hosts()`, and restore a checkpoint."
            raise HostDiedError(
                f"host `{self.name}`",
                "a process that carries out what is decided",
                "one that has ended",
                fix,
            )

    def ask(
        self,
        name: str,
        arrays: Sequence[np.ndarray] = (),
        **values: Any,
    ) -> int:
        """Puts a question. What waits to be sent must have been sent before.

        Args:
          name: What is asked (`hosts.questions`).
          arrays: Arrays that go with it.
          **values: Values that JSON can hold.

        Returns:
          The question's number, for `answer`.
        """
        self._n_asked += 1
        self._channel.send(question(self._n_asked, name, arrays, **values))
        return self._n_asked

    def wait_for_answer(self, number: int) -> None:
        """Waits for an answer, or until any host has failed.

        Args:
          number: What `ask` gave.
        """
        self.wait_until(lambda: number in self._answers)

    def answer(
        self,
        number: int,
    ) -> tuple[Any, Sequence[np.ndarray]]:
        """An answer that has come.

        Args:
          number: What `ask` gave.

        Returns:
          What was said, and arrays.

        Raises:
          HostError: If the host could not answer.
        """
        answer = self._answers.pop(number)
        if answer.kind == "refused":
            raise HostError(
                f"host `{self.name}`",
                "an answer",
                f"an error there:\n{answer.text}",
                "Mend what the last line of that error names, and ask again.",
            )
        return json.loads(answer.text), answer.arrays

    def has_read(self, number: int) -> bool:
        """Whether a launch's readings have come."""
        return number in self._readings

    def take_reading(self, number: int) -> np.ndarray:
        """Takes a launch's readings; `has_read` must hold.

        Raises:
          HostError: If they have not come, as some host has failed, or what was in flight has been given up since.
        """
        if number not in self._readings:
            for link in self.peers:
                if link.failure is not None:
                    raise failure_of(link)
            fix = "See the error before this one."
            raise HostError(
                f"host `{self.name}`",
                f"what dispatch {number} reads back",
                "that it was given up",
                fix,
            )
        return self._readings.pop(number)

    def begin_anew(
        self,
        epoch: int,
    ) -> list[tuple[int, int, MadeFor | None]]:
        """Tells the host to give up everything in flight; `wait_for_progress` must follow.

        Args:
          epoch: A number that is higher each time.

        Returns:
          What was unfinished.
        """
        with (
            self._receiving
        ):  # else a thread that still waits could take what has come for something of this epoch
            # Taken before it is cleared. The epoch is set under the same lock: older messages are
            # dropped from now on.
            unfinished = self.list_unfinished()
            self._unfinished.clear()
            self.batch.take()
            self.needs.clear()
            self.epoch = epoch
            self.sent = 0
            self.done = 0
            self.failure = None
            self._progress = None
            self._readings.clear()
        self._channel.send(Message("abandon", (epoch,)))
        return unfinished

    def wait_for_progress(self) -> tuple[int, int]:
        """Gives the host's progress when giving up.

        Returns:
          The last batch that it had begun, and how many operations of that it had carried out.
        """
        self.wait_until(lambda: self._progress is not None)
        return self._progress or (0, 0)

    def end(self) -> None:
        """Tells the host that the run is over."""
        self._channel.send(Message("end"))

    def state_with(self, nodes: Sequence[str], is_over: bool) -> HostState:
        """The known state of the host."""
        with suppress(HostError):  # it has died: that is what is told
            self.look()
        if is_over or not self._is_alive():
            state = "ended"
        elif self.failure is None:
            state = "running"
        else:
            state = "failed"
        return HostState(
            self.name,
            *self._place,
            state,
            tuple(nodes),
            *self.n_bytes,
        )

    def _receive(self, timeout_s: float) -> bool:
        """Receives a message, if one comes."""
        message = self._channel.receive(timeout_s)
        if message is None:
            return False
        kind = message.kind
        numbers = message.numbers
        # Answers have numbers of their own and hold in any epoch.
        if kind in ("answer", "refused"):
            self._answers[numbers[0]] = message
        elif numbers[0] != self.epoch:
            return True  # of what has been given up
        elif kind == "done":
            # Batches are done in order, so all before this one are, too.
            self.done = max(self.done, numbers[1])
            while self._unfinished and self._unfinished[0][0] <= self.done:
                self._unfinished.popleft()
        elif kind == "reading":
            self._readings[numbers[1]] = message.arrays[0]
        elif kind == "abandoned":
            self._progress = numbers[1], numbers[2]
        elif kind == "failed":
            self.failure = message
        return True


class Ticket:
    """Is ready when a host has done a batch; stands in place of an array of JAX that one waits for.

    Args:
      link: The host.
      send: Sends what waits to be sent to it.
    """

    def __init__(self, link: HostLink, send: Callable[[], None]):
        self._link = link
        self._send = send
        self._epoch = link.epoch
        self._batch = link.opened if link.batch.n else link.sent

    def is_ready(self) -> bool:
        """Whether the batch is done, or has been given up."""
        if not self._is_done():
            self._link.look()
        return self._is_done()

    def _is_done(self) -> bool:
        return self._link.done >= self._batch or self._link.epoch != self._epoch

    def block_until_ready(self) -> Ticket:
        """Waits for the batch."""
        # The batch may still wait here to be sent.
        if self._link.sent < self._batch and self._link.epoch == self._epoch:
            self._send()
        self._link.wait_until(self._is_done)
        return self


class RemoteRows:
    """Rows that a launch reads back from a host; used as a NumPy array, the object waits for the rows.

    Args:
      link: The host.
      number: The launch's number.
      send: Sends what waits to be sent to it.
    """

    def __init__(
        self,
        link: HostLink,
        number: int,
        send: Callable[[], None],
    ):
        self._link = link
        self._number = number
        self._send = send
        self._epoch = link.epoch
        self._rows: np.ndarray | None = None

    def block_until_ready(self) -> RemoteRows:
        """Waits for the rows.

        Raises:
          HostError: If a host has failed, or what was in flight has been given up since.
        """
        link = self._link
        if self._rows is None:
            if not link.has_read(self._number) and link.epoch == self._epoch:
                self._send()
                link.wait_until(lambda: link.has_read(self._number) or link.epoch != self._epoch)
            self._rows = link.take_reading(self._number)
        return self

    def __array__(
        self,
        dtype: Any = None,
        copy: bool | None = None,
    ) -> np.ndarray:
        self.block_until_ready()
        assert self._rows is not None
        if copy:
            return np.array(self._rows, dtype)
        return np.asarray(self._rows, dtype)


def failure_of(link: HostLink, stages: Sequence[Any] = ()) -> HostError:
    """The error of a host that has failed.

    Args:
      link: The host.
      stages: The plan's stages, to name the one at fault.
    """
    assert link.failure is not None
    _, _, number, stage, direction, n_messages = link.failure.numbers
    ids = link.failure.arrays[0].tolist()
    where = f"host `{link.name}`"
    if stage >= 0 and len(stages):
        where += f", dispatch {number} of `{stages[stage].name}`"
        if n_messages:
            where += f" ({DIRECTIONS[direction]}, {n_messages} messages of instances {', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''})"
    return HostError(
        where,
        "what was decided to be carried out",
        f"an error there:\n{link.failure.text.rstrip()}\n",
        "Mend what the last line of that error names, and start the run again.",
    )
