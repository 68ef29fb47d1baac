"""Rows on their way between hosts: who waits for what, and in which order they are written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.cluster.wire.memory_channel import memory_pair
from ampjax.engine.kernels.launch import Launch
from ampjax.errors import HostError, HostUnreachableError
from ampjax.hosts import row_exchange
from ampjax.hosts.row_exchange import GivenUp, RowExchange, RowsFailed


def launch(number, *instances, slots=()):
    """A launch of messages of some instances, which writes to slots of the only arena."""
    n = len(instances)
    pack = np.array(
        [
            *[0] * 2 * n,
            *instances,
            len(slots),
            *slots,
        ],
        np.int32,
    )
    return Launch(
        number,
        0,
        0,
        "forward",
        n,
        n,
        n_outputs=1,
        pack=pack,
    )


def slots_of(launch):
    pairs = []
    for slot in launch.out_rows[0].tolist():
        pairs.append(("arena", slot))
    return pairs


class Both:
    """Two hosts; what the second one has written."""

    def __init__(self):
        here, there = memory_pair("a", "b")
        self.written = []
        self.waits = 0
        self.second_channel = there
        self.first = RowExchange(
            {1: here},
            self._write,
            slots_of,
            self._wait,
            int,
        )
        self.second = RowExchange(
            {0: there},
            self._write,
            slots_of,
            self._wait,
            int,
        )

    def _write(self, launch, since, rows):
        self.written.append((launch.number, rows.tolist()))

    def _wait(self):
        self.waits += 1
        raise GivenUp


def test_a_host_goes_on_until_it_needs_rows():
    both = Both()
    both.second.await_rows(0, launch(1, 4, 5))
    both.second.write_for(launch(2, 6, 7))
    assert not both.written and not both.waits
    assert both.second.needs(
        launch(
            3,
            5,
        )
    ) and not both.second.needs(launch(3, 6))
    with pytest.raises(GivenUp):
        both.second.write_for(launch(3, 5))
    both.first.send(
        1,
        1,
        [np.array([1.0])],
    )
    both.second.write_for(launch(3, 5))
    assert both.written == [(1, [1.0])]
    assert not both.second.needs(
        launch(
            3,
            5,
        )
    )


def test_rows_that_are_not_computed_are_sent_later():
    class Rows:
        """Rows that are being computed."""

        ready = False

        def is_ready(self):
            return self.ready

        def __array__(self, dtype=None, copy=None):
            return np.array([2.0])

    both = Both()
    rows = Rows()
    both.second.await_rows(0, launch(1, 4))
    both.first.send_later(1, 1, launch(1), rows)
    both.first.send_computed()
    both.second.write_received()
    assert not both.written
    rows.ready = True
    both.first.send_computed()
    both.second.write_received()
    assert both.written == [(1, [2.0])]


def test_who_waits_sends_first_what_others_wait_for():
    both = Both()
    both.first.send_later(
        1,
        1,
        launch(1),
        np.array([1.0]),
    )
    both.first.await_rows(1, launch(2, 4))
    with pytest.raises(GivenUp):
        both.first.write_for(launch(3, 4))
    both.second.await_rows(0, launch(1, 4))
    assert both.written == [(1, [1.0])]


def test_who_waits_goes_on_once_rows_have_come_though_it_has_not_sent_all_its_own():
    both = Both()
    both.first.await_rows(1, launch(1, 4))
    for number in (2, 3):
        both.first.send_later(
            1,
            1,
            launch(number),
            np.array([number]),
        )
        both.second.await_rows(0, launch(number, number))
    both.second.send(
        0,
        1,
        [np.array([1])],
    )
    both.first.write_for(launch(5, 4))
    both.second.write_received()
    assert both.written == [(1, [1]), (2, [2])]
    both.first.send_all()
    both.second.write_received()
    assert both.written[2:] == [(3, [3])]


def test_only_rows_of_earlier_batches():
    both = Both()
    for batch in (1, 2):
        both.first.send_later(
            batch,
            1,
            launch(batch),
            np.array([batch]),
        )
        both.second.await_rows(0, launch(batch, batch))
    both.first.send_all(up_to=1)
    both.second.write_received()
    assert both.written == [(1, [1])]


def test_what_was_given_up_is_dropped():
    both = Both()
    both.first.send(
        1,
        1,
        [np.array([1.0])],
    )
    both.first.send_later(
        1,
        1,
        launch(2),
        np.array([2.0]),
    )
    for end in (both.first, both.second):
        end.give_up(1)
    both.first.send(
        1,
        3,
        [np.array([3.0])],
    )
    both.second.await_rows(0, launch(3, 4))
    both.second.finish()
    both.first.finish()
    assert both.written == [(3, [3.0])]


def test_a_slot_that_another_instance_gets_is_written_in_the_order_of_decision():
    """Rows that nobody needs are forgotten when they have been decided on, so their slots are free before they have come."""
    both = Both()
    both.second.await_rows(
        0,
        launch(1, 4, slots=[7]),
    )
    assert both.second.needs(
        launch(
            2,
            5,
            slots=[6, 7],
        )
    )
    assert not both.second.needs(launch(2, 5, slots=[6]))
    both.first.send(
        1,
        1,
        [np.array([1.0])],
    )
    both.second.write_for(launch(2, 5, slots=[7]))
    assert both.written == [(1, [1.0])]


def test_who_finds_only_what_was_given_up_sends_what_others_wait_for():
    both = Both()
    both.first.send(
        1, 99, [np.array([0.0])]
    )  # of a time before all is given up, and never received
    for end in (both.first, both.second):
        end.give_up(1)
    both.second.send_later(
        1,
        0,
        launch(1),
        np.array([1.0]),
    )
    both.second.await_rows(0, launch(2, 4))
    with pytest.raises(GivenUp):
        both.second.write_for(launch(3, 4))
    assert both.waits == 1
    both.first.await_rows(1, launch(1, 4))
    assert both.written == [(1, [1.0])]


def test_rows_of_a_later_time_are_kept():
    both = Both()
    both.first.give_up(1)
    both.first.send(
        1,
        1,
        [np.array([1.0])],
    )
    with pytest.raises(GivenUp):
        both.second.await_rows(0, launch(1, 4))
    both.second.give_up(1)
    both.second.await_rows(0, launch(1, 4))
    assert both.written == [(1, [1.0])]


def test_rows_that_cannot_be_computed_are_told_with_their_launch():
    class Failing:
        def is_ready(self):
            return True

        def __array__(self, dtype=None, copy=None):
            raise ZeroDivisionError

    both = Both()
    both.first.send_later(3, 1, launch(7), Failing())
    with pytest.raises(RowsFailed) as found:
        both.first.send_computed()
    assert (
        found.value.batch,
        found.value.launch.number,
    ) == (3, 7)
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_rows_for_a_host_that_has_died_are_lost():
    both = Both()
    both.second_channel.close()
    both.first.send_later(
        1,
        1,
        launch(1),
        np.array([1.0]),
    )
    both.first.finish()


class Cut:
    """A channel that can't reach the other end for a while."""

    def __init__(self, n):
        self.n = n
        self.sent = []

    def send(self, message):
        if self.n:
            self.n -= 1
            raise HostUnreachableError("a channel", "a beat from the other end", "none", "")
        self.sent.append(message)


@pytest.mark.parametrize("n", [0, 3])
def test_rows_for_a_host_that_can_not_be_reached_are_kept_until_it_can(n):
    looks = []
    channel = Cut(n)
    rows = RowExchange(
        {1: channel},
        print,
        slots_of,
        lambda: looks.append(1),
        int,
    )
    rows.send(1, 7, [np.array([1.0])])
    assert [message.numbers for message in channel.sent] == [(0, 7)]
    assert len(looks) == n


def test_a_cut_that_only_this_host_has_is_an_error(monkeypatch):
    monkeypatch.setattr(row_exchange, "PATIENCE_S", 0)
    rows = RowExchange(
        {1: Cut(1_000)},
        print,
        slots_of,
        lambda: None,
        int,
    )
    with pytest.raises(HostUnreachableError):
        rows.send(1, 7, [np.array([1.0])])


def test_who_gives_up_need_not_reach_anybody():
    both = Both()
    channel = Cut(1_000)
    with pytest.raises(GivenUp):
        RowExchange(
            {1: channel},
            print,
            slots_of,
            both._wait,
            int,
        ).send(
            1,
            7,
            [np.array([1.0])],
        )
    assert both.waits == 1 and not channel.sent


def test_rows_of_another_dispatch_are_an_error():
    both = Both()
    both.first.send(
        1,
        3,
        [np.array([1.0])],
    )
    with pytest.raises(
        HostError, match="host 0: expected rows of dispatch 1, got those of dispatch 3"
    ):
        both.second.await_rows(0, launch(1, 4))


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3)),
        max_size=30,
    ),
    st.data(),
)
def test_each_launch_finds_what_was_written_before_it_for_its_instance(operations, data):
    """Whenever rows come: a launch finds those of its instance, all written in the order of decision, as if each had been waited for."""
    both = Both()
    sent = 0
    numbers = [number for number, (is_transfer, _) in enumerate(operations) if is_transfer]

    def send(n):
        nonlocal sent
        for number in numbers[sent:n]:
            both.first.send(
                1,
                number,
                [np.array([number])],
            )
        sent = max(sent, n)

    before = []
    for number, (is_transfer, instance) in enumerate(operations):
        send(data.draw(st.integers(0, len(numbers))))
        if is_transfer:
            both.second.await_rows(0, launch(number, instance))
            before.append((number, instance))
        else:
            send(len(before))
            both.second.write_for(launch(number, instance))
            assert {n for n, i in before if i == instance} <= {n for n, _ in both.written}
    send(len(numbers))
    both.second.finish()
    assert [n for n, _ in both.written] == numbers
