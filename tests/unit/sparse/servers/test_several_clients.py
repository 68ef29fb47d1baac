"""A server that several clients ask: what one needs of another waits at the server, and what comes twice counts once."""

import threading

import jax
import numpy as np
import optax
import pytest

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.wire.memory_channel import memory_pair
from ampjax.errors import ServerError
from ampjax.optim.row_rule import RowTypes
from ampjax.optim.split_by_rows import ALONE, split_alone
from ampjax.sparse.rows.gradient_buffer import GradientBuffer
from ampjax.sparse.rows.partition_layout import PartitionLayout, SplitKey
from ampjax.sparse.rows.server_part import PartSettings, ServerNeeds
from ampjax.sparse.rows.shared_history import SharedHistory
from ampjax.sparse.servers.exports import export_function
from ampjax.sparse.servers.protocol import TREES, Request
from ampjax.sparse.servers.serving import Service, serve

KEY = SplitKey(1, 2)
FLOAT = np.dtype(np.float32)
SETTINGS = PartSettings(
    PartitionLayout(4, 1),
    (0,),
    RowTypes((), FLOAT, ()),
    SharedHistory(0),
    1,
)
OPEN = Request(KEY, "open", (SETTINGS, 0), number=1)


def push(value, client, number):
    work = {
        0: (
            np.array([3]),
            np.array(
                [value],
                np.float32,
            ),
        )
    }
    return Request(
        KEY,
        "receive",
        (5, work, None, client),
        number,
        is_silent=True,
    )


class Client:
    """One end of a channel to a server that runs in a thread."""

    def __init__(self, name):
        self.channel, self.there = memory_pair(name, "server-0")

    def send(self, request):
        self.channel.send(TREES.pack("request", request))

    def answer(self, timeout_s=30.0):
        message = self.channel.receive(timeout_s)
        return None if message is None else TREES.unpack(message)


@pytest.fixture
def clients():
    """The driver and two workers of a server."""
    driver, first, second = (Client(name) for name in ("driver", "worker-0", "worker-1"))
    there = {"worker-0": first.there, "worker-1": second.there}
    context = HostContext(
        "server-0",
        0,
        ("server-0", *there),
        driver.there,
        there.__getitem__,
    )

    def run():
        with pytest.raises(Exception, match="closed"):
            serve(context, tuple(there))

    thread = threading.Thread(target=run)
    thread.start()
    yield driver, first, second
    driver.channel.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_request_waits_for_all_pushes_and_each_counts_once(clients):
    driver, first, second = clients
    driver.send(OPEN)
    assert driver.answer().error is None
    driver.send(
        Request(
            KEY,
            "rows",
            (5,),
            number=2,
            needs=ServerNeeds(update=5, clients=2),
        )
    )
    second.send(push(2.0, 1, 1))
    second.send(push(2.0, 1, 2))  # once more, as another request
    second.send(Request(KEY, "history", (), number=3))
    assert second.answer().number == 3  # so all before it has been done
    assert driver.answer(0.0) is None
    first.send(push(1.0, 0, 1))
    local, sums = driver.answer().result[0]
    assert local.tolist() == [3]
    assert sums.tolist() == [3.0]


def test_a_pull_waits_for_an_update(clients):
    driver, first, _ = clients
    driver.send(OPEN)
    driver.answer()
    first.send(
        Request(
            KEY,
            "history",
            (),
            number=1,
            needs=ServerNeeds(updates=1),
        )
    )
    first.send(Request(KEY, "history", (), number=2))
    assert first.answer().number == 2
    assert first.answer(0.0) is None


def pull(number, updates=0, announced=False):
    args = (
        {0: np.array([3])},
        FLOAT,
        None,
        announced,
    )
    return Request(KEY, "pull", args, number, needs=ServerNeeds(updates=updates))


def test_an_update_waits_for_pulls_that_were_announced(clients):
    driver, first, second = clients
    driver.send(OPEN)
    driver.answer()
    driver.send(
        Request(
            KEY,
            "history",
            (),
            number=2,
            needs=ServerNeeds(pulls=2),
        )
    )
    first.send(pull(1, announced=True))
    second.send(pull(1))  # one of which nobody was told
    assert [first.answer().number, second.answer().number] == [1, 1]
    assert driver.answer(0.0) is None
    second.send(pull(2, announced=True))
    assert [second.answer().number, driver.answer().number] == [2, 2]


def test_requests_that_wait_forever_hold_up_nothing_else(clients):
    driver, first, second = clients
    driver.send(OPEN)
    driver.answer()
    for number in (1, 2):
        first.send(pull(number, updates=1))
        second.send(pull(number, updates=1))
    second.send(pull(3))
    assert second.answer().number == 3
    first.channel.close()  # with those that wait
    driver.send(Request(KEY, "history", (), number=2))
    assert driver.answer().number == 2


def test_requests_that_come_before_a_function_are_done_after_it():
    here, there = memory_pair("driver", "server-0")
    service = Service(there)
    rule = split_alone(optax.adagrad(0.5), (4,), FLOAT).rules[ALONE]
    rows = np.ones(4, np.float32)
    here.send(
        TREES.pack(
            "request",
            Request(KEY, "history", (), number=7),
        )
    )
    here.send(
        TREES.pack(
            "export",
            export_function(
                rule,
                "init",
                (jax.ShapeDtypeStruct(rows.shape, rows.dtype),),
            ),
        )
    )
    (state,) = service._kernels(0, rule.types).init(rows)
    np.testing.assert_array_equal(
        state, np.full(4, 0.1, np.float32)
    )  # optax's first sum of squares
    assert [request.number for request in service.early] == [7]


def test_a_client_that_is_gone_does_not_end_the_server(clients):
    driver, first, _ = clients
    first.channel.close()
    driver.send(OPEN)
    assert driver.answer().error is None


def test_an_error_that_nobody_waits_for_ends_the_server():
    here, _ = memory_pair("server-0", "driver")
    with pytest.raises(ServerError, match="expected a table that was opened at this process"):
        Service(here).serve(push(1.0, 0, 1))


def test_sums_go_by_the_numbers_of_clients():
    values = [1e8, 1.0, -1e8, 1.0]
    sums = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        buffer = GradientBuffer(SETTINGS.types, SETTINGS.layout)
        for client in order:
            buffer.add(
                0,
                np.array([7]),
                np.array([values[client]], np.float32),
                client,
            )
        assert buffer.n_clients == 4
        sums.append(buffer.rows()[0][1].tolist())
    assert sums[0] == sums[1]
