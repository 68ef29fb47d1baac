"""Channels: all that is sent comes, once and in order, whatever happens to the connection; or an error says why not."""

import contextlib
import gc
import re
import threading
import time
import weakref

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples, left_to_nightly
from support.local_lines import needs_local
from support.lossy_proxy import LossyProxy

from ampjax.cluster.wire.channel import Window, wait_any
from ampjax.cluster.wire.link import Link, LinkVerdict
from ampjax.cluster.wire.local_endpoints import local_endpoints
from ampjax.cluster.wire.memory_channel import memory_pair
from ampjax.cluster.wire.message import Message, encode
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.cluster.wire.zmq_wire import Keys, ZmqWire, new_keys
from ampjax.errors import HostDiedError, HostUnreachableError, WireError

KEYS = new_keys()
QUICK = Patience(1.0, 5.0)


@contextlib.contextmanager
def over_zmq(
    window=None,
    keys: Keys | None = KEYS,
    patience=QUICK,
    proxy=None,
):
    a = ZmqWire("a", keys, window=window, patience=patience)
    b = ZmqWire("b", keys, window=window, patience=patience)
    try:
        near = a.listen("b")
        with proxy(near.address) if proxy else contextlib.nullcontext(near) as way:
            yield near, b.connect("a", way.address), way
    finally:
        a.close()
        b.close()


@contextlib.contextmanager
def in_memory(window=None):
    a, b = memory_pair("a", "b", window)
    yield a, b, None
    a.close()


@contextlib.contextmanager
def past_the_network(window=None):
    with over_zmq(window) as (a, b, _):
        for channel, end in zip(
            (a, b),
            local_endpoints(),
            strict=True,
        ):
            channel.use_local(end)
        yield a, b, None


@pytest.fixture(params=[over_zmq, pytest.param(past_the_network, marks=needs_local), in_memory])
def pair(request):
    return request.param


def rows(i):
    return Message(
        "rows",
        (i,),
        arrays=(
            np.full(
                (i % 7, 30),
                i,
                np.float32,
            ),
        ),
    )


def is_right(message, i):
    return (
        message.numbers == (i,)
        and message.arrays[0].shape == (i % 7, 30)
        and (message.arrays[0] == i).all()
    )


# ---- all kinds -------------------------------------------------------------------------------------------------------


def assert_both_count_the_same(a, b):
    """What one end has sent, headers included, is what the other has received."""
    for one, other in ((a, b), (b, a)):
        assert one.bytes_sent == other.bytes_received > sum(rows(i).nbytes for i in range(50))


def test_messages_come_in_order_both_ways_at_once(pair):
    with pair(Window(messages=4)) as (a, b, _):
        right = []

        def take(end):
            right.extend(is_right(end.receive(10), i) for i in range(50))

        def give(end):
            for i in range(50):
                end.send(rows(i))

        threads = []
        for f in (take, give):
            for e in (a, b):
                threads.append(
                    threading.Thread(
                        target=f,
                        args=(e,),
                        daemon=True,
                    )
                )
        [t.start() for t in threads]
        [t.join(30) for t in threads]
        assert right == 100 * [True]
        assert_both_count_the_same(a, b)


@pytest.mark.first_case
def test_a_sender_waits_while_the_window_is_full_and_warns(pair):
    with pair(Window(messages=3, warn_after_s=0.05)) as (a, b, _):
        n_sent = []

        def give():
            with pytest.warns(
                RuntimeWarning, match="b has taken no message for 0.05 s, and 3 messages or"
            ):
                for i in range(5):
                    a.send(rows(i))
                    n_sent.append(i)

        thread = threading.Thread(target=give)
        thread.start()
        thread.join(0.5)
        assert n_sent == [0, 1, 2]
        assert all(is_right(b.receive(5), i) for i in range(5))
        thread.join()


def test_a_message_larger_than_the_window_goes_alone(pair):
    with pair(Window(nbytes=100)) as (a, b, _):
        for i in (5, 6):
            a.send(rows(i))
            assert is_right(b.receive(5), i)


def test_what_has_not_come_in_time_is_none_and_a_closed_end_is_an_error(pair):
    with pair() as (a, b, _):
        a.send(rows(3))
        assert (
            is_right(
                b.receive(5),
                3,
            )
            and b.receive(0.01) is None
            and not b.is_ready()
        )
        a.send(rows(4))
        a.close()
        assert is_right(b.receive(5), 4)
        with pytest.raises(HostDiedError, match="b, channel to a: expected"):
            b.receive(5)
        with pytest.raises(HostDiedError):
            b.send(rows(5))


def test_one_of_several_channels_is_ready(pair):
    with pair() as (a, b, _), pair() as (c, d, _):
        assert wait_any([b, d], 0.01) == []
        c.send(rows(1))
        assert wait_any([b, d], 5) == [d] and is_right(
            d.receive(0),
            1,
        )
        thread = threading.Timer(0.05, a.send, [rows(2)])
        thread.start()
        assert wait_any([b, d], 5) == [b]
        thread.join()


def test_what_cannot_travel_harms_no_other_message(pair):
    with pair() as (a, b, _):
        with pytest.raises(WireError, match="dtype object"):
            a.send(
                Message(
                    "m",
                    arrays=(np.array([None]),),
                )
            )
        a.send(rows(1))
        assert is_right(b.receive(5), 1)


# ---- the link's rules ------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    st.data(),
    st.integers(1, 30),
    st.integers(1, 5),
)
def test_a_link_gives_each_message_once_and_in_order_over_a_way_that_loses_repeats_and_shuffles(
    data, n, most
):
    window = Window(messages=most, nbytes=1000)
    a = Link(1, window)
    b = Link(1, window)
    way = []
    got = []
    next_one = 1
    for _ in range(20 * n):
        if next_one <= n and a.has_room(1):
            way.append(a.next_sequence)
            a.keep([a.next_sequence], 1)
            next_one += 1
        what = data.draw(st.sampled_from(["come", "lose", "repeat", "again"]))
        if what == "again" or not way:
            way = [frames[0] for frames in a.unconfirmed()]
        elif what != "lose":
            sequence = way[data.draw(st.integers(0, len(way) - 1))]
            if what == "come":
                way.remove(sequence)
            if b.judge(1, sequence) is LinkVerdict.NEXT:
                got.append(sequence)
                if (told := b.take_next(1)) is not None:
                    a.confirm(told)
        else:
            way.pop()
    while len(got) < n:  # the way gets better
        if next_one <= n and a.has_room(1):
            a.keep([a.next_sequence], 1)
            next_one += 1
        for (sequence,) in list(a.unconfirmed()):
            if b.judge(1, sequence) is LinkVerdict.NEXT:
                got.append(sequence)
                if (told := b.take_next(1)) is not None:
                    a.confirm(told)
        assert len(list(a.unconfirmed())) <= most
    assert got == list(range(1, n + 1))
    assert (
        b.judge(0, n + 1) is LinkVerdict.FOREIGN
        and b.judge(1, n + 2) is LinkVerdict.EARLY
        and b.judge(1, n) is LinkVerdict.AGAIN
    )


# ---- bad networks ----------------------------------------------------------------------------------------------------


def exchanged(a, b):
    """Sends 60 messages each way at once, and says of each that has come whether it is right. Nobody waits for ever."""
    right = []

    def take(end):
        right.extend(is_right(end.receive(20), i) for i in range(60))

    def give(end):
        for i in range(60):
            end.send(rows(i))

    threads = []
    for f in (take, give):
        for end in (a, b):
            threads.append(
                threading.Thread(
                    target=f,
                    args=(end,),
                    daemon=True,
                )
            )
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    return right


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "cut",
        "replay",
        *left_to_nightly(("delay", "truncate", "garbage")),
    ],
)
def test_a_bad_network_changes_no_number(fault):
    patience = Patience(10.0, 20.0)  # the machine may be busy
    with over_zmq(
        Window(messages=8),
        patience=patience,
        proxy=lambda at: LossyProxy(at, 1, fault, 40),
    ) as (
        a,
        b,
        proxy,
    ):
        assert exchanged(a, b) == 120 * [True] and proxy.n_faults > 0
        assert_both_count_the_same(a, b)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_connections_that_are_cut_while_they_are_made_do_not_overtake_each_other(seed):
    """One in some twenty such runs, both ways, ended with a connection that one end took for the peer's and the other one for nobody's."""
    with over_zmq(
        Window(messages=8),
        patience=Patience(10.0, 20.0),
        proxy=lambda at: LossyProxy(at, seed, "cut", 40),
    ) as (a, b, _):
        assert exchanged(a, b) == 120 * [True]


def test_a_network_that_is_cut_for_good_is_an_error_on_both_ends():
    with over_zmq(proxy=lambda at: LossyProxy(at, 2)) as (a, b, proxy):
        a.send(rows(1))
        assert is_right(b.receive(5), 1)
        start = time.monotonic()
        proxy.close()
        for end in (a, b):
            with pytest.raises(
                HostUnreachableError,
                match=r"expected a beat from the other end, got no sign of life for",
            ):
                end.receive(10)
        assert time.monotonic() - start < 2.0
        with pytest.raises(HostUnreachableError):
            a.send(rows(2))


def test_nobody_at_the_other_end_is_an_error():
    wire = ZmqWire("a", KEYS, patience=Patience(1.0, 0.2))
    with pytest.raises(
        HostUnreachableError,
        match=r"expected a process at the other end, got no sign of life in 0 s from tcp://127",
    ):
        wire.listen("b").receive(5)
    wire.close()


def test_strangers_are_not_let_in():
    with over_zmq() as (a, b, _):
        context = zmq.Context()
        strangers = [None, new_keys()]
        for keys in strangers:
            stranger = context.socket(zmq.DEALER)
            stranger.routing_id = b"b"
            stranger.linger = 0
            if keys:
                stranger.curve_publickey, stranger.curve_secretkey = keys
                stranger.curve_serverkey = KEYS.public
            stranger.connect(a.address)
            with contextlib.suppress(
                zmq.Again
            ):  # it may have been turned away before it sends: then it would wait for ever
                stranger.send_multipart(encode(Message("evil"), 0, 1), zmq.DONTWAIT)
        b.send(rows(1))
        assert is_right(a.receive(5), 1)
        assert a.receive(0.3) is None
        b.send(rows(2))
        assert is_right(a.receive(5), 2)
        context.destroy(0)


def plain_sender(a):
    sender = zmq.Context.instance().socket(zmq.DEALER)
    sender.routing_id = b"b"
    sender.linger = 0
    sender.connect(a.address)
    return sender


def test_damaged_repeated_early_and_old_messages_are_refused_and_the_right_one_asked_for():
    a = ZmqWire("a", None, patience=QUICK)
    near = a.listen("b")
    sender = plain_sender(near)
    first = encode(rows(1), 0, 1)
    second = encode(rows(2), 0, 2)
    for frames in (
        [b"junk"],
        second,
        encode(rows(9), 7, 1),
        first[:1],
        [first[0][:20]],
        first,
        first,
    ):
        sender.send_multipart(frames)
    assert is_right(near.receive(5), 1)
    assert near.receive(0.1) is None
    sender.send_multipart(second)
    assert is_right(near.receive(5), 2)
    sender.close()
    a.close()


def test_an_end_that_sends_nothing_right_is_given_up():
    a = ZmqWire(
        "a",
        None,
        window=Window(messages=1),
        patience=QUICK,
    )
    near = a.listen("b")
    sender = plain_sender(near)
    for _ in range(40):
        sender.send_multipart([b"junk"])
    with pytest.raises(
        WireError, match=re.escape("a, channel to b: expected messages of this run")
    ):
        near.receive(5)
    sender.close()
    a.close()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_last_message_of_a_process_that_has_ended_comes_before_its_end():
    with over_zmq() as (near, far, _):
        far.send(Message("first"))
        assert near.receive(5.0) is not None
        near.ending = lambda: "exit code 1"
        assert not near.is_ready()
        far.send(Message("last"))
        message = near.receive(5.0)
        assert message is not None and message.kind == "last"
        with pytest.raises(HostDiedError, match="the end of its process: exit code 1"):
            near.receive(5.0)


def test_who_has_finished_knows_that_the_other_end_has_got_everything():
    """A socket that is closed with something in it that was not read drops what it has not sent: here 10 MB, while the other end confirms some."""
    with over_zmq(patience=Patience(10, 10)) as (a, b, _):
        a.send(Message("go"))
        assert b.receive(10).kind == "go"

        def end():
            for i in range(60):
                b.send(
                    Message(
                        "row",
                        (i,),
                        arrays=(np.ones(20_000),),
                    )
                )
            b.finish()
            b.close()

        ending = threading.Thread(target=end)
        ending.start()
        got = [a.receive(10) for _ in range(60)]
        with pytest.raises(HostDiedError, match="got its end: it has closed the channel"):
            a.receive(10)
        ending.join(10)
        assert (
            [message.numbers[0] for message in got] == list(range(60))
            and a.has_ended
            and not ending.is_alive()
        )
        a.finish()  # does not wait for who is gone


@pytest.mark.slow
def test_a_wire_is_closed_with_channels_that_are_being_collected():
    """Weak references to a cycle that is garbage are dead before its objects are gone: sockets must be closed all the same."""

    class Holder:
        """What holds a channel, and is garbage only for who looks for cycles."""

    def leave_a_cycle():
        holder = Holder()
        wire = ZmqWire("a", None)
        holder.itself = holder
        holder.channel = wire.listen("b")
        weakref.finalize(holder, wire.close)

    leave_a_cycle()
    collects = threading.Thread(target=gc.collect, daemon=True)
    collects.start()
    collects.join(10.0)
    assert not collects.is_alive()
