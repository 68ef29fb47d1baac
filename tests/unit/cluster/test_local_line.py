"""Messages past the network: whatever their size, they arrive whole and in order; nothing is left behind, however a process ends."""

import mmap
import os
import signal
import sys
import threading
import time
from collections import deque

import cloudpickle
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.local_lines import lines, needs_linux, needs_local, open_files, pair
from support.processes import is_there

from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.hosts.spawn_hosts import HostOptions, spawn
from ampjax.cluster.wire.channel import Window
from ampjax.cluster.wire.local_endpoints import RING_BYTES
from ampjax.cluster.wire.message import CHUNK_BYTES, Message
from ampjax.cluster.wire.shared_ring import RingReader, RingWriter
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.errors import HostDiedError, HostUnreachableError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts can't import a test

pytestmark = [needs_local, pytest.mark.usefixtures("few_objects")]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "take", "tell"]),
            st.integers(1, 700),
        ),
        max_size=60,
    )
)
@example([("put", 385), ("take", 1), ("tell", 1), ("put", 577)])
def test_what_is_read_from_a_ring_is_what_was_written(steps):
    memory = mmap.mmap(-1, 4096)
    writer = RingWriter(memory, 1024, 1024)
    reader = RingReader(memory, 1024, 1024)
    there = deque()
    told = 0
    for number, (what, n) in enumerate(steps):
        if what == "put":
            frame = bytes([number % 251 + 1]) * n
            position = writer.put(frame)
            assert (
                position is not None or there or reader.position != told
            )  # a ring that is free has room
            there.extend([] if position is None else [(position, frame)])
        elif what == "take" and there:
            position, frame = there.popleft()
            assert reader.take(position, len(frame)).tobytes() == frame
        elif what == "tell" and reader.position != told:
            told = reader.position
            writer.was_read(told)
    for position, frame in there:
        assert reader.take(position, len(frame)).tobytes() == frame
    assert memory[:1024] == bytes(1024) and memory[2048:] == bytes(
        2048
    )  # nothing was written beside it


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.integers(1, 1024),
        min_size=30,
        max_size=60,
    )
)
def test_a_ring_that_has_been_read_has_room_for_a_quarter_of_it(sizes):
    memory = mmap.mmap(-1, 4096)
    writer = RingWriter(memory, 0, 4096)
    reader = RingReader(memory, 0, 4096)
    for n in sizes:
        reader.take(writer.put(bytes(n)), n)
        if reader.is_due:
            writer.was_read(reader.position)
            reader.note_report()


def test_a_ring_does_not_believe_what_cannot_be():
    memory = mmap.mmap(-1, 1024)
    writer = RingWriter(memory, 0, 1024)
    reader = RingReader(memory, 0, 1024)
    assert writer.put(bytes(1000)) == 0
    for position in (0, 1025, 1 << 40):
        with pytest.raises(
            ValueError, match=f"{position} as read, where 0 was read and 1024 written"
        ):
            writer.was_read(position)
    assert writer.put(bytes(1000)) is None
    assert not reader.take(0, 1000).any()
    for position, n in ((900, 10), (1100, 1000), (1 << 40, 9), (-1, 1), (2048, 1)):
        with pytest.raises(
            ValueError, match=f"{n} bytes at {position}, where 1024 was read of a ring of 1024"
        ):
            reader.take(position, n)


INTERESTING = [
    0,
    1,
    (1 << 15) + 1,
    (1 << 20) - 7,
    15 << 17,
    21 << 17,
    CHUNK_BYTES,
]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*INTERESTING, CHUNK_BYTES + 1, RING_BYTES + 5])
            | st.integers(0, 1 << 17),
            st.lists(
                st.sampled_from(INTERESTING) | st.integers(0, CHUNK_BYTES),
                max_size=4,
            ),
        ),
        min_size=1,
        max_size=8,
    )
)
@example(
    [(10, [21 << 17, 15 << 17, CHUNK_BYTES])]
)  # once more than there was room for, as the next ones
@example(
    [
        (10, [5 << 19]),
        (10, [2 << 20]),
        (10, [4 << 20]),
    ]
)
@example([(RING_BYTES + 1, [])])
@example(
    [
        (3 << 20, []),
        (6 << 20, []),
    ]
)
def test_what_is_sent_arrives_whatever_the_sizes_of_frames(messages):
    """Nobody sends while the other end reads, so whatever waits then must go out because of what the reader reports."""
    rows = np.arange(RING_BYTES + 5, dtype=np.uint32).view(np.uint8)
    sent = []
    for head, arrays in messages:
        sent.append([memoryview(rows[k : k + n]) for k, n in enumerate((head, *arrays))])
    near, far = lines()
    for frames in sent:
        assert near.send(frames)
    found = []
    for _ in range(100):
        while (frames := far.take()) is not None:
            found.append([np.frombuffer(frame, np.uint8) for frame in frames])
        near.take()
        if not near.has_unsent and len(found) == len(sent):
            break
    assert [[len(frame) for frame in frames] for frames in found] == [
        [len(f) for f in frames] for frames in sent
    ]
    assert all(
        (x == y).all() for a, b in zip(found, sent, strict=True) for x, y in zip(a, b, strict=True)
    )
    near.close()
    far.close()


SIZES = [
    0,
    1,
    (1 << 15) - 1,
    1 << 15,
    (1 << 15) + 1,
    1 << 16,
    (1 << 22) + 5,
    3 * RING_BYTES + 1,
]


@pytest.mark.nightly
@pytest.mark.slow
def test_messages_of_every_size_both_ways_at_once():
    def messages(seed):
        rng = np.random.default_rng(seed)
        yield Message(
            "many",
            arrays=tuple(np.full(n % 900, n, np.int64) for n in range(300)),
        )
        for size in SIZES * 2:
            sizes = rng.permutation(
                [
                    size,
                    *rng.integers(
                        0,
                        1 << 17,
                        rng.integers(0, 4),
                    ),
                ]
            )
            yield Message(
                "some",
                (seed,),
                "text",
                tuple(rng.integers(0, 255, n, np.uint8) for n in sizes),
            )

    with pair() as (a, b, _):
        right = []

        def take(end, seed):
            for wanted in messages(seed):
                found = end.receive(20)
                right.append(all(array.flags.writeable for array in found.arrays))
                same = []
                for x, y in zip(found.arrays, wanted.arrays, strict=True):
                    same.append((x == y).all() and x.dtype == y.dtype)
                right.append(
                    all(same)
                    and (found.kind, found.numbers, found.text)
                    == (wanted.kind, wanted.numbers, wanted.text)
                )

        def give(end, seed):
            for message in messages(seed):
                end.send(message)

        threads = []
        for f, e, s in ((take, a, 1), (give, a, 2), (take, b, 2), (give, b, 1)):
            threads.append(threading.Thread(target=f, args=(e, s)))
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
        assert right == [True] * 4 * (1 + 2 * len(SIZES))


def test_a_sender_does_not_wait_and_everything_goes_out_while_it_does_something_else():
    with pair(Window(messages=4096, nbytes=1 << 40)) as (a, b, _):
        big = np.arange(RING_BYTES // 3, dtype=np.uint8)
        small = np.ones(1000)
        start = time.monotonic()
        for _ in range(9):
            a.send(Message("big", arrays=(big,)))
        for _ in range(600):
            a.send(Message("small", arrays=(small,)))
        assert time.monotonic() - start < 5  # it would wait for ever: nobody receives
        for _ in range(9):  # from here on nobody calls the sender
            assert (b.receive(20).arrays[0] == big).all()
        assert all((b.receive(20).arrays[0] == small).all() for _ in range(600))


def test_text_and_numbers_larger_than_the_ring():
    message = Message(
        "large",
        tuple(range(1 << 18)),
        "text" * (RING_BYTES // 4 + 1),
        (np.arange(9),),
    )
    with pair() as (a, b, _):
        a.send(message)
        found = b.receive(20)
        assert (
            found.numbers == message.numbers
            and found.text == message.text
            and (found.arrays[0] == range(9)).all()
        )


def test_what_was_sent_before_an_end_is_closed_still_arrives():
    with pair() as (a, b, _):
        b.send(Message("here"))
        assert a.receive(10).kind == "here"
        b.send(Message("never read"))  # so that the socket ends with an error
        for i in range(40):
            a.send(
                Message(
                    "last",
                    (i,),
                    arrays=(np.full(50_000, i),),
                )
            )
        closing = threading.Thread(target=a.close)
        closing.start()
        for i in range(40):
            message = b.receive(10)
            assert message.numbers == (i,)
            assert (message.arrays[0] == i).all()
        with pytest.raises(HostDiedError, match="it has closed the channel"):
            b.receive(5)
        closing.join()


def serve(context):
    """Sends what its driver asks for, to it or to the other host, until it is told that it is over."""
    while (message := context.driver.receive()).kind != "end":
        to = context.peer(message.text) if message.text else context.driver
        for i in range(message.numbers[0]):
            to.send(
                Message(
                    "rows",
                    (i,),
                    arrays=(np.full(30_000, i, np.float32),),
                )
            )
        if message.kind == "pass":
            for i in range(message.numbers[0]):
                found = to.receive(20)
                context.driver.send(Message("rows", (i,), arrays=found.arrays))


def processes_of_hosts(number=None):
    """Two hosts that talk to each other, of which one may get a signal; their processes, which have been ended."""
    with spawn(
        2,
        serve,
        HostOptions(patience=Patience(2.0)),
        LocalLauncher(lambda line: None),
    ) as hosts:
        hosts[0].channel.send(Message("to", (10,), "host-1"))
        hosts[1].channel.send(Message("pass", (10,), "host-0"))
        for i in range(10):
            assert (hosts[1].channel.receive(20).arrays[0] == i).all()
        if number is not None:
            hosts[0].channel.send(Message("to", (4000,)))  # more than there is room for
            assert hosts[0].channel.receive(20).numbers == (0,)
            os.kill(hosts[0].process, number)
            wanted = HostDiedError if number == signal.SIGKILL else HostUnreachableError
            with pytest.raises(wanted):
                while hosts[0].channel.receive(20) is not None:
                    pass
        return [host.process for host in hosts]


@pytest.fixture(scope="module")
def what_lasts():
    """Makes what outlives hosts, such as the thread that starts them."""
    assert not any(map(is_there, processes_of_hosts()))


@pytest.mark.nightly
@pytest.mark.slow
@needs_linux
@pytest.mark.usefixtures("what_lasts")
@pytest.mark.parametrize(
    "number",
    [None, signal.SIGKILL, signal.SIGSTOP],
)
def test_processes_leave_nothing_behind(number):
    before = open_files()
    assert not any(map(is_there, processes_of_hosts(number)))
    assert open_files() == before
