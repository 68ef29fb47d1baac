"""One end of a channel over a ZeroMQ socket, which carries out the link's decisions, and notices that the other end is gone.

ZeroMQ's own thread beats and reads, so a host that computes, or holds Python's lock, still beats, and one that was stopped does not.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ampjax.cluster.wire.channel import Window
from ampjax.cluster.wire.link import Link, LinkVerdict
from ampjax.cluster.wire.local_endpoints import LocalEndpoint
from ampjax.cluster.wire.local_line import LocalLine
from ampjax.cluster.wire.memory_channel import closed_error, waits_long
from ampjax.cluster.wire.message import Message, decode, encode, nbytes_of
from ampjax.cluster.wire.waker import Waker
from ampjax.cluster.wire.zmq_line import Line
from ampjax.errors import HostDiedError, HostError, HostUnreachableError, WireError

_SLICE_S = 0.1
"""Seconds between two checks whether the other end still exists."""

_LAST_WORDS_S = 2.0
"""How long the last messages of a process that has ended may be under way, unless its connection ends before; and how long a process that
fails waits for a connection on which to say so."""

LINGER_S = 2.0
"""How long an end that is closed waits until what was sent has gone out."""

_REASON_S = 0.5
"""How long to wait for how a process has ended once its socket has: who started it may see that a little later."""

_MOST_BAD = 16
"""So many messages in a row may be damaged or foreign before that is an error. Each time the right one is asked for again."""

_TOLD = "\0told"
_AGAIN = "\0again"
_BYE = "\0bye"
_HEARD = "\0heard"
_FAILED = "\0failed"
_JAX_NOTE = "\n--------------------\nFor simplicity, JAX has removed"
"""Begins what JAX writes below a traceback, and below the error at its end."""

_RESTORE = "What it held is lost: restore the last snapshot, and start the hosts anew."


class Patience(NamedTuple):
    """Times to wait for signs of life, in seconds.

    Args:
      silence_s: Without a beat for that long, the other end is unreachable. With the default this is noticed within 2 s.
      connect_s: How long it may take to be there at first.
    """

    silence_s: float = 1.8
    connect_s: float = 120.0


class ZmqChannel:
    """One end of a ZeroMQ channel, made by a `Wire`.

    It has more than 15 methods and twelve attributes: six are `Channel`'s, and the others answer what the other end may say or leave out, all under one lock.

    Args:
      name: The name of this end.
      line: The socket, and whether its other end is connected.
      link: The rules.
      window: How much may be under way one way.
      patience: How long to wait for signs of life.
      stir: Asks for `tend` to be called, as this channel is `urgent`.
    """

    def __init__(
        self,
        name: str,
        line: Line,
        link: Link,
        window: Window,
        patience: Patience,
        stir: Callable[[], None],
    ):
        self.name = name
        self._link = link
        self._window = window
        self._patience = patience
        self._stir = stir
        self._line: Line | LocalLine = line
        self._turn = threading.Condition(threading.Lock())
        self._waker = Waker()
        self._is_polling = False
        self._inbox: deque[Message] = deque()
        self._n_bad = 0
        self._failure = ""
        self._traceback = ""
        self._repeats = False
        self._is_heard = False
        self._n_sent = self._n_received = 0  # bytes
        self._ended_at: float | None = (
            None  # when it was first seen that the process at the other end has ended
        )
        self.ending: Callable[[], str | None] = lambda: None
        """Says how the process at the other end has ended; None as long as it has not, or nobody knows."""

    def __repr__(self) -> str:
        return f"ZmqChannel({self.name} to {self.peer} at {self.address}, {self._line.state})"

    @property
    def peer(self) -> str:
        """The name of the other end."""
        return self._line.peer

    @property
    def address(self) -> str:
        """The address where one end listens."""
        return self._line.address

    @property
    def bytes_sent(self) -> int:
        """See `Channel.bytes_sent`."""
        return self._n_sent

    @property
    def bytes_received(self) -> int:
        """See `Channel.bytes_received`."""
        return self._n_received

    def use_local(self, endpoint: LocalEndpoint) -> None:
        """Lets messages go past the network; before the first one is sent or received. The other end must do the same.

        Args:
          endpoint: This process's half of what both have; the channel closes it.

        Raises:
          HostError: If there is no room for the memory that both have.
        """
        with self._turn:
            assert isinstance(self._line, Line)
            try:
                self._line = LocalLine(self._line, endpoint)
            except OSError as error:
                where = f"{self.name}, channel to {self.peer}"
                fix = "Start fewer hosts, or free memory."
                raise HostError(where, "memory to share with it", f"{error}", fix) from error

    # ---- what users call ---------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """See `Channel.send`."""
        if message.kind.startswith("\0"):
            raise WireError(
                f"message {message.kind!r}",
                "a kind without a zero",
                "one with it",
                "Choose another name.",
            )
        with self._turn:
            self._pump()
            line = self._line
            # Asking why costs more than sending, so only a suspicion leads to it.
            doubt = line.is_closed or line.is_gone or line.silence_s or self._failed
            if doubt and (error := self._error(takes=False)):
                raise error
            # Room in the window first; a long wait is told once, and then goes on.
            if not self._wait(
                lambda: self._link.has_room(message.nbytes), self._window.warn_after_s, takes=False
            ):
                warnings.warn(
                    waits_long(self.peer, self._window),
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._wait(
                    lambda: self._link.has_room(message.nbytes),
                    takes=False,
                )
            # The number is given under the lock, so messages go out in its order.
            frames = encode(message, self._link.epoch, self._link.next_sequence)
            self._link.keep(frames if line.may_lose else [], message.nbytes)
            self._n_sent += nbytes_of(frames)
            # Sent after it is kept: it may have to be sent again at once.
            self._give(frames)
            self._pump()

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """See `Channel.receive`."""
        with self._turn:
            if not self._wait(lambda: bool(self._inbox), timeout_s):
                return None
            # Taken counts when the user has the message, not when the socket had it.
            message = self._inbox.popleft()
            if (confirmed := self._link.take_next(message.nbytes)) is not None:
                self._say(_TOLD, confirmed)
            return message

    def is_ready(self) -> bool:
        """See `Channel.is_ready`."""
        with self._turn:
            self._pump()
            return self._error() is not None or bool(self._inbox)

    def watch(self, begin: bool) -> Sequence[int]:
        """See `Channel.watch`."""
        with self._turn:
            waker = self._waker.begin() if begin else self._waker.end()
            return [waker, *self._line.descriptors]

    def tend(self) -> None:
        """Does the due work while nobody calls: answers the other end's questions, and sends lost messages again. Does not wait."""
        if self._turn.acquire(blocking=False):
            try:
                self._pump()
            finally:
                self._turn.release()

    @property
    def urgent(self) -> tuple[int, int] | None:
        """The event to wait for before the next `tend`, besides the passing of time: a file descriptor and the wanted readiness."""
        return self._line.urgent

    def finish(self) -> None:
        """Says that nothing more will be sent, and waits until the other end has got everything, for `_LAST_WORDS_S` at most.

        A process must do so before it ends: where something has come that it has not read, its end would drop what is still under way.
        """
        with self._turn, contextlib.suppress(HostError, WireError):
            self._say(_BYE)
            self._wait(
                lambda: self._is_heard or self._line.said_bye or self._line.is_closed,
                _LAST_WORDS_S,
                takes=False,
            )

    def say_bye(self) -> None:
        """Tells the other end that nothing more will be sent. Does not wait."""
        with self._turn:
            if not self._line.is_closed:
                self._pump()
                self._say(_BYE)

    def close(self, until: float | None = None) -> None:
        """See `Channel.close`.

        Args:
          until: When not to wait any longer for what has not gone out, by `time.monotonic`; in two seconds if None.
        """
        self.say_bye()
        with self._turn:
            # What has gone into the line may still be on its way.
            left_s = LINGER_S if until is None else until - time.monotonic()
            with contextlib.suppress(HostError, WireError):
                self._wait(lambda: not self._line.has_unsent, left_s, takes=False)
            if not self._line.is_closed:
                self._line.close()
            self._waker.wake()
            self._turn.notify_all()

    def fail(self, traceback: str) -> None:
        """Tells the other end that the program here has failed: its `receive` raises a `HostError`."""
        with self._turn:
            with contextlib.suppress(
                HostError, WireError
            ):  # before somebody is there, closing the socket would drop it
                self._wait(lambda: self._line.is_up, _LAST_WORDS_S, takes=False)
            self._give(encode(Message(_FAILED, text=traceback), self._link.epoch, 0))

    @property
    def has_ended(self) -> bool:
        """Whether the other end has closed the channel."""
        return self._line.said_bye

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def _wait(
        self,
        done: Callable[[], bool],
        timeout_s: float | None = None,
        takes: bool = True,
    ) -> bool:
        """Waits until a condition holds; False if time runs out. One thread looks at the socket for all waiting threads."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # First what has come: it may be what is waited for, or explain an end.
            self._pump()
            if done():
                return True
            if (error := self._error(takes)) is not None:
                raise error
            if end is None:
                left = _SLICE_S
            else:
                left = min(_SLICE_S, end - time.monotonic())
            if left <= 0:
                return False
            # Another thread looks at the socket, and wakes this one.
            if self._is_polling:
                self._turn.wait(left)
            else:
                self._poll(left)

    def _poll(self, timeout_s: float) -> None:
        """Lets the others have their turn until something may have come."""
        poll = select.poll()
        # Registered under the lock, so nothing comes between the last look and the wait.
        for descriptor in (self._waker.begin(), *self._line.descriptors):
            poll.register(descriptor, select.POLLIN)
        if (urgent := self._line.urgent) is not None:
            poll.register(urgent[0], urgent[1] | select.POLLIN)
        self._is_polling = True
        # Others may send and receive meanwhile.
        self._turn.release()
        try:
            poll.poll(timeout_s * 1e3)
        finally:
            self._turn.acquire()
            self._is_polling = False
            self._waker.end()
            self._turn.notify_all()

    def _error(self, takes: bool = True) -> Exception | None:
        """The reason why nothing more can come, or go; for a taker of messages, only once all arrived messages have been taken."""
        line = self._line
        where = f"{self.name}, channel to {self.peer}"
        if line.is_closed:
            return closed_error(self.name, self.peer)
        # Messages that came before the end are still to be taken.
        if takes and self._inbox:
            return None
        # From the surest reason to the least: damage, an error there, an end, silence.
        if self._failed:
            between = (
                "is between the two ends"
                if line.may_lose
                else "else has these processes' file descriptors"
            )
            return WireError(
                where, "messages of this run", self._failed, f"Look for what {between}."
            )
        if self._traceback:
            raised, note, _ = self._traceback.strip().rpartition(_JAX_NOTE)
            *_, last = (raised if note else self._traceback).strip().splitlines()
            error = HostError(
                self.peer, "a program without an error", last, "Look at the notes of this error."
            )
            error.add_note(f"At {self.peer}:\n{self._traceback}")
            return error
        ended = self.ending()
        if ended or line.said_bye or line.has_hung_up:
            if self._may_still_speak(is_known=bool(ended) or line.said_bye):
                return None
            self._pump()  # its last messages may have come meanwhile
            closes = (
                "it has closed the channel" if line.said_bye else "nobody has its socket any more"
            )
            got = f"the end of its process: {ended}" if ended else f"its end: {closes}"
            if takes and self._inbox:
                return None
            return HostDiedError(where, "a host at the other end", got, _RESTORE)
        silence = line.silence_s
        if line.was_there and silence > self._patience.silence_s:
            got = (
                f"no sign of life for {silence:.1f} s; its process may hang, or the network is cut"
            )
            return HostUnreachableError(where, "a beat from the other end", got, _RESTORE)
        if not line.was_there and silence > self._patience.connect_s:
            got = f"no sign of life in {silence:.0f} s from {self.address}"
            fix = "Look into the hosts' log, and whether this address can be reached from there."
            return HostUnreachableError(where, "a process at the other end", got, fix)
        return None

    def _may_still_speak(self, is_known: bool) -> bool:
        """Whether something may still come from a process that has ended, or become known of its end.

        Not once its connection has ended, which comes after all that it sent. Only how it has ended may still become known then.
        """
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        if self._line.has_hung_up:
            return not is_known and now < self._ended_at + _REASON_S
        return not self._line.is_gone and now < self._ended_at + _LAST_WORDS_S

    # ---- what comes --------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Takes all that has come from the socket."""
        n = len(self._inbox)
        # A new connection: what the other end has not confirmed may be lost.
        if self._line.look():
            for frames in self._link.unconfirmed():
                self._give(frames)
            self._repeats = True
        # Then all that has come, in order.
        while not self._failed and (frames := self._line.take()) is not None:
            self._came(frames)
        if self._repeats:  # the other end does not know what has been taken here
            self._repeats = False
            self._say(_TOLD, self._link.tell())
        # Whoever waits for messages looks again.
        if len(self._inbox) > n:
            self._waker.wake()
            self._turn.notify_all()

    def _came(self, frames: Sequence[memoryview]) -> None:
        try:
            message, epoch, sequence = decode(frames)
        except WireError as error:
            return self._refuse(error.got)
        # Control messages have no number: they are not sent again.
        if sequence == 0 and epoch == self._link.epoch and message.kind.startswith("\0"):
            return self._control(message)
        verdict = self._link.judge(epoch, sequence)
        if verdict is LinkVerdict.NEXT:
            self._n_bad = 0
            self._n_received += nbytes_of(frames)
            self._inbox.append(message)
        elif verdict is LinkVerdict.AGAIN and self._line.may_lose:
            self._repeats = True
        else:
            got = f"message {sequence} of epoch {epoch}, {verdict.value}"
            self._refuse(
                f"{got}, where message {self._link.expected} of epoch {self._link.epoch} was next"
            )
        return None

    def _control(self, message: Message) -> None:
        match message:
            case Message(kind="\0told", numbers=(sequence,)):
                self._link.confirm(sequence)
                self._turn.notify_all()
            case Message(kind="\0again", numbers=(sequence,)) if self._line.may_lose:
                for frames in self._link.unconfirmed(sequence):
                    self._give(frames)
            case Message(kind="\0bye"):
                self._say(_HEARD)
                self._line.said_bye = True
            case Message(kind="\0heard"):
                self._is_heard = True
            case Message(kind="\0failed", text=text):
                self._traceback = text

    @property
    def _failed(self) -> str:
        """The lasting failure; empty if there is none."""
        return self._failure or self._line.failure

    def _refuse(self, got: str) -> None:
        """Something that is not the next message: asks for that one, but not for ever. Only the first of a row asks."""
        self._n_bad += 1
        if not self._line.may_lose or self._n_bad >= _MOST_BAD * (1 + self._window.messages):
            self._failure = got
        elif self._n_bad % (1 + self._window.messages) == 1:
            self._say(_AGAIN, self._link.expected)

    def _say(self, kind: str, *numbers: int) -> None:
        self._give(encode(Message(kind, numbers), self._link.epoch, 0))

    def _give(self, frames: Sequence[Any]) -> None:
        """Gives the line a message, and makes sure that the message goes out though nobody calls."""
        self._line.send(frames)
        if self._line.urgent is not None:
            self._stir()
