"""What is sent when: whenever the driver waits, all that a host can wait for is under way, whatever is decided."""

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from ampjax.drivers.run import DECIDED_FOR_HOSTS
from ampjax.hosts import fleet as fleets
from ampjax.hosts.fleet import Fleet, Ready
from ampjax.hosts.host_link import WINDOW
from ampjax.hosts.starting.make_host import BETWEEN_HOSTS

N = 4


class Batch:
    """Counts operations; keeps what each is."""

    def __init__(self):
        self.operations = []

    @property
    def n(self):
        return len(self.operations)


class SlowHost:
    """A host that does nothing before the driver waits for it; then it does all that it can."""

    failure = None

    def __init__(self, number, hosts):
        self.number = number
        self.hosts = hosts
        self.batch = Batch()
        self.needs = set()
        self.sent = self.done = 0
        self.queue = []
        self.peers = ()

    @property
    def is_idle(self):
        return self.done == self.sent

    @property
    def opened(self):
        return self.sent + 1

    def send_batch(self):
        self.sent += 1
        self.queue.append(self.batch.operations)
        self.batch = Batch()
        self.needs.clear()

    def look(self):
        pass

    def wait_until(self, come):
        if not come():
            run(self.hosts)
            assert come(), "the driver would wait for ever"


def run(hosts):
    """Lets hosts do all that they can: rows that are put must have been taken before."""
    taken = hosts[0].taken
    moved = True
    while moved:
        moved = False
        for host in hosts:
            while host.queue:
                operations = host.queue[0]
                while operations and (operations[0][0] != "put" or operations[0][1] in taken):
                    what, number = operations.pop(0)
                    taken.update([number] if what == "take" else [])
                    moved = True
                if operations:
                    break
                host.queue.pop(0)
                host.done += 1
                moved = True


@pytest.mark.parametrize(
    "most",
    [
        (1, 1),
        (2, 3),
        (fleets.FEW, fleets.MOST),
    ],
)
@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.integers(0, N - 1),
            st.integers(0, N - 1),
        ),
        max_size=120,
    )
)
def test_nobody_waits_for_ever(most, decided):
    hosts = []
    hosts += [SlowHost(number, hosts) for number in range(N)]
    hosts[0].taken = set()
    few, many, fleets.FEW, fleets.MOST = fleets.FEW, fleets.MOST, *most
    try:
        fleet = Fleet(
            types.SimpleNamespace(),
            types.SimpleNamespace(),
            lambda: Ready(hosts, frozenset(), lambda: None),
        )
        for number, (start, end) in enumerate(decided):
            if start == end:
                hosts[start].batch.operations.append(("launch", number))
            else:
                hosts[start].batch.operations.append(("take", number))
                hosts[end].batch.operations.append(("put", number))
                hosts[end].needs.add(start)
                fleet.send_if_many(start)
            fleet.send_if_many(end)
        for host in range(N):
            fleet.send([host])
            hosts[host].wait_until(lambda host=host: hosts[host].done == hosts[host].sent)
        assert not any(host.batch.n or host.queue for host in hosts)
    finally:
        fleets.FEW = few
        fleets.MOST = many


def test_a_host_never_waits_to_send_rows_to_another():
    """All that the receiver has not done are the batches that it was sent, and the one that is being filled."""
    largest = fleets.MOST - 1 + DECIDED_FOR_HOSTS
    assert (WINDOW + 1) * largest <= BETWEEN_HOSTS.messages
