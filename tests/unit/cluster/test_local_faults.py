"""Messages past the network when something goes wrong: damage is an error at once, nobody waits for who is gone, and a fork says nothing."""

import errno
import mmap
import os
import struct
import threading
import time

import numpy as np
import pytest
from support.local_lines import lines, needs_local, pair

from ampjax.cluster.wire import zmq_channel, zmq_wire
from ampjax.cluster.wire.channel import Window
from ampjax.cluster.wire.local_endpoints import RING_BYTES, local_endpoints
from ampjax.cluster.wire.message import Message, encode
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.cluster.wire.zmq_wire import ZmqWire
from ampjax.errors import HostDiedError, HostError, WireError

pytestmark = needs_local


def record(kind, n, *frames, more=b""):
    return (
        struct.pack("<BxHxxxxQ", kind, n, 0)
        + b"".join(struct.pack("<qQ", *frame) for frame in frames)
        + more
    )


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        (b"x", "a damaged record: unpack_from requires"),
        (record(0, 0), "0 frames of kind 0"),
        (record(7, 1, (0, 9)), "1 frames of kind 7"),
        (record(0, 3), "where its head tells of 64"),
        (
            record(
                0,
                1,
                (-1, 9),
                more=bytes(8),
            ),
            "40 bytes, where its head tells of 48",
        ),
        (
            record(
                0,
                1,
                (-1, 16),
                more=bytes(16),
            ),
            "got 16",
        ),
        (record(0, 1, (1 << 40, 40_000)), f"40000 bytes at {1 << 40}, where 0 was read"),
        (record(0, 1, (5, 1 << 62)), f"{1 << 62} bytes at 5"),
        (record(0, 1, (-7, 9)), "9 bytes at -7"),
        (
            struct.pack("<BxHxxxxQ", 2, 0, 1 << 40),
            f"{1 << 40} as read, where 0 was read and 0 written",
        ),
    ],
)
def test_one_damaged_record_is_an_error_for_who_gets_it(damaged, text):
    with pair() as (a, b, intruder):
        a.send(Message("whole"))
        assert b.receive(10).kind == "whole"
        intruder.send(damaged)
        for i in range(9):
            a.send(
                Message(
                    "m",
                    (i,),
                    arrays=(np.zeros(40_000, np.uint8),),
                )
            )
        with pytest.raises(WireError, match="b, channel to a: expected messages of this run") as e:
            while b.receive(5) is not None:
                pass
        assert text in str(e.value) and str(e.value).endswith(
            "Look for what else has these processes' file descriptors."
        )
        with pytest.raises(WireError):
            b.send(Message("m"))


@pytest.mark.parametrize(
    ("epoch", "sequence"),
    [(0, 1), (0, 7), (3, 2)],
)
def test_a_message_that_is_not_the_next_one_is_an_error(epoch, sequence):
    with pair() as (a, b, intruder):
        a.send(Message("whole"))
        assert b.receive(10).kind == "whole"
        (frame,) = encode(Message("m"), epoch, sequence)
        intruder.send(
            record(
                0,
                1,
                (-1, len(frame)),
                more=frame + bytes(-len(frame) % 16),
            )
        )
        with pytest.raises(
            WireError,
            match=f"got message {sequence} of epoch {epoch}, .* where message 2 of epoch 0",
        ):
            b.receive(5)


class Refusing:
    """A socket that the system refuses something."""

    def __init__(self, socket, number):
        self._socket = socket
        self._number = number

    def __getattr__(self, name):
        return getattr(self._socket, name)

    def _refuse(self, *_):
        raise OSError(self._number, os.strerror(self._number))

    sendmsg = recv_into = _refuse


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM])
def test_what_the_system_has_no_memory_for_is_sent_later(number):
    near, far = lines()
    for line in (near, far):
        line._socket = Refusing(line._socket, number)
    assert near.send([b"first"])
    assert near.has_unsent
    assert near.urgent is None
    assert far.take() is None
    for line in (near, far):
        line._socket = line._socket._socket
    assert near.send([b"second"])
    assert not near.has_unsent
    assert not near.failure + far.failure
    assert [bytes(frame) for _ in range(2) for frame in far.take()] == [
        b"first",
        b"second",
    ]
    assert far.take() is None
    near.close()
    far.close()


def test_another_error_of_a_socket_is_an_error_of_the_channel():
    with pair() as (a, b, _):
        a.send(Message("m"))
        assert b.receive(10).kind == "m"
        for end in (a, b):
            end._line._socket = Refusing(end._line._socket, errno.EIO)
        with pytest.raises(
            WireError, match=r"got an error of the socket: \[Errno 5\] Input/output error"
        ):
            b.receive(5)
        with pytest.raises(WireError, match="got an error of the socket"):
            [a.send(Message("m")) for _ in range(2)]


def test_the_end_of_a_socket_is_the_end_of_its_process():
    """Although its other sockets may still beat, and nobody knows how it has ended."""
    with pair(silence_s=30.0) as (a, b, intruder):
        b.send(Message("first"))
        assert a.receive(10).kind == "first"  # so both beat
        a.send(Message("last"))
        intruder.close()
        a._line._socket.close()  # as the system does when a process is killed
        assert b.receive(10).kind == "last"
        with pytest.raises(HostDiedError, match="got its end: nobody has its socket any more"):
            b.receive(5)
        b.ending = lambda: "killed by SIGKILL"
        with pytest.raises(HostDiedError, match="got the end of its process: killed by SIGKILL"):
            b.receive(5)
        a._line._is_closed = True


def test_to_close_takes_one_time_for_all_that_read_nothing(monkeypatch):
    """And others may ask a channel meanwhile."""
    monkeypatch.setattr(zmq_channel, "LINGER_S", 0.6)
    monkeypatch.setattr(zmq_wire, "LINGER_S", 0.6)
    wires = []
    for name in "ab":
        wires.append(
            ZmqWire(
                name,
                None,
                window=Window(99, 1 << 30),
                patience=Patience(30.0, 5.0),
            )
        )
    ends = [(near := wires[0].listen("b"), wires[1].connect("a", near.address)) for _ in range(3)]
    for pair_of_ends in ends:
        for end, endpoint in zip(pair_of_ends, local_endpoints(), strict=True):
            end.use_local(endpoint)
        pair_of_ends[0].send(Message("m"))
        assert pair_of_ends[1].receive(10).kind == "m"
        pair_of_ends[1]._turn.acquire()  # it reads nothing more
        for _ in range(5):
            pair_of_ends[0].send(
                Message(
                    "m",
                    arrays=(np.zeros(RING_BYTES // 4 + 1, np.uint8),),
                )
            )
    start = time.monotonic()
    closing = threading.Thread(target=wires[0].close)
    closing.start()
    assert [end.receive(0) for end, _ in ends] == 3 * [None]
    assert time.monotonic() - start < 0.5
    closing.join(10)
    assert 0.5 < time.monotonic() - start < 1.7  # three times one would be 1.8
    for _, end in ends:
        end._turn.release()
    wires[1].close()


def test_a_fork_does_not_speak_for_its_parent():
    near, far = lines()
    child = os.fork()
    if not child:
        was_taken = near.send([b"from the child"])
        near.close()
        os._exit(1 if was_taken else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert far.take() is None and not far.is_gone
    assert near.send([b"from the parent"])
    assert bytes(far.take()[0]) == b"from the parent"
    near.close()
    far.close()


def test_memory_that_is_refused_is_an_error_with_a_place(monkeypatch):
    near, far = local_endpoints()
    wire = ZmqWire("a", None)
    channel = wire.listen("b")

    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(
        HostError, match=r"a, channel to b: expected memory to share with it, got \[Errno 12\]"
    ):
        channel.use_local(near)
    for descriptor in near[:2]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    far.close()
    wire.close()
