"""A line between two processes of one machine: records of a private socket, and shared memory for large frames.

It loses nothing, so nothing is sent again, and what is damaged is an error at once. The ZeroMQ line beside it says only whether the peer is
alive: its thread beats while Python is busy.

A record is a head (what it is, whether its message ends with it, each frame's position in the ring and its size) and then those frames that
are not in the ring. Frames above `CHUNK_BYTES` are cut, so that the ring has room for them. A record of the other kind says up to where the
ring has been read.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ampjax.cluster.wire.local_endpoints import RING_BYTES, LocalEndpoint
from ampjax.cluster.wire.message import CHUNK_BYTES
from ampjax.cluster.wire.shared_ring import RingReader, RingWriter
from ampjax.cluster.wire.zmq_line import Line

_INLINE_BYTES = 1 << 15
"""Larger frames go through the ring. For smaller ones a socket is as fast."""

_RECORD_BYTES = 1 << 16
_MOST_FRAMES = 64
"""Bytes of a record beside its head, at most, and frames that it tells of."""

_LOOK_S = 0.05
"""How often it is looked whether the peer beats."""

_INSIDE = -1
"""The position of a frame that is not in the ring but in the record."""

_FRAMES, _PART, _READ, _CUT = range(4)
"""Records: the last frames of a message, frames of one that goes on, a position up to which the ring has been read, and frames of a message
that goes on in the midst of the last one."""

_NOBODY = BrokenPipeError, ConnectionResetError
_NOT_NOW = errno.ENOBUFS, errno.ENOMEM
"""The system has no memory for a record now. Nothing tells when it has, so it is tried again in time."""

_HEAD = struct.Struct("<BxHxxxxQ")
_FRAME = struct.Struct("<qQ")
"""What a record is, how many frames it tells of, and the position; a frame's position and its bytes."""

_PAD = 16
"""Frames in a record begin at multiples of this, so that arrays need not be copied to be aligned."""

_LARGEST = _HEAD.size + _MOST_FRAMES * (_FRAME.size + _PAD) + _RECORD_BYTES


class LocalLine:
    """A `Line` past the network. For one thread at a time.

    It has more than 15 methods and twelve attributes, since it has those of `Line`, and two rings.

    Args:
      line: The ZeroMQ line to the same peer.
      endpoint: This process's; closed here, and also if there is an error.

    Attributes:
      failure: What was wrong with what came, or with the socket; empty if nothing. Nothing is sent or taken after that.
    """

    may_lose = False

    def __init__(self, line: Line, endpoint: LocalEndpoint):
        self._line = line
        try:
            self._memory = memory = mmap.mmap(endpoint.memory, 2 * RING_BYTES)
        except OSError:
            endpoint.close()
            raise
        out, back = (0, RING_BYTES) if endpoint.is_first else (RING_BYTES, 0)
        self._out = RingWriter(memory, out, RING_BYTES)
        self._in = RingReader(memory, back, RING_BYTES)
        self._socket = socket.socket(fileno=endpoint.socket)
        self._socket.setblocking(False)
        self._buffer = bytearray(_LARGEST)
        os.close(endpoint.memory)
        self._waiting: deque[tuple[int, Sequence[Any]]] = (
            deque()
        )  # records that have not gone: kinds and frames
        self._made: list[Any] | None = None  # the next record, which the socket has not taken
        self._frames: list[Any] = []  # of a message whose last record has not come
        self._is_cut = False  # the last of them goes on
        self._looked_at = 0.0
        self._owner = os.getpid()
        self._is_open = True
        self._is_closed = False
        self.said_bye = False
        self.failure = ""
        self.urgent: tuple[int, int] | None = None

    # ---- what a line is asked ----------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """The name of the other end."""
        return self._line.peer

    @property
    def address(self) -> str:
        """The address where the ZeroMQ line listens."""
        return self._line.address

    @property
    def state(self) -> str:
        """In one word."""
        return "closed" if self.is_closed else self._line.state

    @property
    def is_closed(self) -> bool:
        """Whether this end is closed, as in a process forked from its owner: the other end could not tell the two apart."""
        return self._is_closed or os.getpid() != self._owner

    @property
    def is_up(self) -> bool:
        """Whether the peer can be sent something."""
        return self._is_open and self.was_there

    @property
    def was_there(self) -> bool:
        """Whether the peer has beaten."""
        return self._line.was_there

    @property
    def is_gone(self) -> bool:
        """Whether the peer has gone, and all of its messages have been taken."""
        return self.said_bye or not self._is_open

    @property
    def has_hung_up(self) -> bool:
        """Whether nobody has the socket's other end any more."""
        return not self._is_open

    @property
    def has_unsent(self) -> bool:
        """Whether something waits that would be lost if this end were closed, and might not be later."""
        return bool(self._waiting) and self.is_up and not self.silence_s and not self.failure

    @property
    def silence_s(self) -> float:
        """The time since the peer's last beat, in seconds; 0 for a peer that beats."""
        return self._line.silence_s

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors that are readable when something has come."""
        if self._is_open and not self.is_closed:
            socket = (self._socket.fileno(),)
        else:
            socket = ()
        if self.was_there:
            return socket
        return (*socket, *self._line.descriptors)

    def look(self) -> bool:
        """Checks whether the peer beats, and sends waiting messages.

        Returns:
          False: nothing has ever to be sent again.
        """
        now = time.monotonic()
        if (now > self._looked_at + _LOOK_S or not self.was_there) and not self.is_closed:
            self._looked_at = now
            self._line.look()
            while self._line.take() is not None:
                pass
        self._flush()
        return False

    # ---- what goes out -----------------------------------------------------------------------------------------------

    def send(self, frames: Sequence[Any]) -> bool:
        """Sends a message, or as much as can go out now; the rest waits.

        Returns:
          Whether it was taken.
        """
        if self.is_closed or not self._is_open:
            return False
        self._waiting += _records(frames)
        self._flush()
        return True

    def _flush(self) -> None:
        """Gives the socket as many records as fit."""
        self.urgent = None
        if not self.is_up or self.is_closed or self.failure:
            return  # nothing goes out before the peer has beaten, so that it is noticed if who has sent something is silent
        # Room in the ring is told first: the peer may wait for it, with all of its records.
        if self._in.is_due:
            if not self._gave([_HEAD.pack(_READ, 0, self._in.position)]):
                return
            self._in.note_report()
        # A record that has been made stays made: its frame is in the ring already.
        while self._waiting:
            self._made = self._made or self._make(*self._waiting[0])
            if self._made is None:
                self.urgent = (
                    self._socket.fileno(),
                    select.POLLIN,
                )  # the peer will say that there is room
                return
            if not self._gave(self._made):
                return
            self._made = None
            self._waiting.popleft()

    def _gave(self, record: Sequence[Any]) -> bool:
        try:
            self._socket.sendmsg(record)
        except BlockingIOError:
            self.urgent = self._socket.fileno(), select.POLLOUT
            return False
        except _NOBODY:  # `take` finds that out, behind what has come
            return True
        except OSError as error:
            self._note_failure(error)
            return False
        return True

    def _note_failure(self, error: OSError) -> None:
        if error.errno not in _NOT_NOW:
            self.failure = f"an error of the socket: {error}"

    def _make(
        self,
        kind: int,
        frames: Sequence[Any],
    ) -> list[Any] | None:
        """Makes a record; None for lack of room in the ring for its last frame, to be tried again."""
        head = [_HEAD.pack(kind, len(frames), 0)]
        inside = []
        for frame in frames:
            n = len(frame)
            position = _INSIDE
            # Small frames go through the socket, large ones through the ring.
            if n <= _INLINE_BYTES:
                inside += [frame, bytes(-n % _PAD)]
            elif (position := self._out.put(frame)) is None:
                return None
            head.append(_FRAME.pack(position, n))
        return [b"".join(head), *inside]

    # ---- what comes --------------------------------------------------------------------------------------------------

    def take(self) -> list[Any] | None:
        """The next message that has come, if any: its frames, which nobody else has."""
        while self._is_open and not self.is_closed and not self.failure:
            try:
                n = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return None
            except (
                ConnectionResetError
            ):  # it has ended without reading everything; what it has sent can still be read
                continue
            except OSError as error:
                self._note_failure(error)
                return None
            # An end of the stream comes behind everything that was sent.
            if not n:
                self._is_open = False
                return None
            try:
                frames = self._came(bytearray(memoryview(self._buffer)[:n]))
            except (ValueError, struct.error) as error:
                self.failure = f"a damaged record: {error}"
                return None
            if frames is not None:
                return frames
        return None

    def _came(self, record: bytearray) -> list[Any] | None:
        """Takes a record apart; gives the frames of a whole message."""
        kind, n, position = _HEAD.unpack_from(record)
        # The peer has read so far: there is room again.
        if kind == _READ:
            self._out.was_read(position)
            self._flush()
            return None
        at = _HEAD.size + n * _FRAME.size
        view = memoryview(record)
        if kind not in (_FRAMES, _PART, _CUT) or not n:
            raise ValueError(f"{n} frames of kind {kind}")
        frames: list[Any] = []
        # Frames in their order, from the ring or from the record, which is padded.
        for position, nbytes in _FRAME.iter_unpack(view[_HEAD.size : at]):
            if position != _INSIDE:
                frames.append(self._in.take(position, nbytes))
            else:
                frames.append(view[at : at + nbytes])
                at += nbytes + -nbytes % _PAD
        if at != len(record):
            raise ValueError(f"{len(record)} bytes, where its head tells of {at}")
        if self._in.is_due:
            self._flush()
        # The last frame so far goes on with the first of these.
        if self._is_cut:
            frames[0] = b"".join((self._frames.pop(), frames[0]))
        self._frames += frames
        self._is_cut = kind == _CUT
        if kind != _FRAMES:
            return None
        complete = self._frames
        self._frames = []
        return complete

    def close(self) -> None:
        """Closes both lines. What `has_unsent` tells of is lost."""
        self._is_closed = True
        self.urgent = None
        self._socket.close()
        self._memory.close()
        self._line.close()


def _records(frames: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """The kinds of the records of a message, and their frames. A frame for the ring is the last of its record."""
    record = []
    nbytes = 0
    for kind, frame in _cut(frames):
        record.append(frame)
        is_large = len(frame) > _INLINE_BYTES
        nbytes += 0 if is_large else len(frame)
        is_full = nbytes > _RECORD_BYTES - _INLINE_BYTES or len(record) == _MOST_FRAMES
        if is_large or is_full or kind == _FRAMES:
            yield kind, record
            record = []
            nbytes = 0


def _cut(frames: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """A message's frames, none too large for the ring, each with the kind of a record that ends with the frame."""
    for i, frame in enumerate(frames, 1):
        kind = _FRAMES if i == len(frames) else _PART
        n = len(frame)
        if n <= CHUNK_BYTES:
            yield kind, frame
        else:
            for start in range(0, n, CHUNK_BYTES):
                yield (
                    _CUT if start + CHUNK_BYTES < n else kind,
                    memoryview(frame)[start : start + CHUNK_BYTES],
                )
