"""Requests of a worker that are under way at the same time; without processes."""

import numpy as np
import pytest

from ampjax.cluster import memory_pair
from ampjax.errors import InvariantError, TableError
from ampjax.parallel.workers.row_servers import RowServers
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.servers.protocol import TREES, Answer

KEY = SplitKey(1, 2)


@pytest.fixture
def ends():
    """What a worker asks, and the server's end of the channel."""
    here, there = memory_pair("worker-0", "server-0")
    return RowServers([here]), there


def asked(there):
    return TREES.unpack(there.receive(0))


def answer(there, number, result=None, error=None):
    there.send(TREES.pack("answer", Answer(number, result, error, ByteCounts())))


def test_answers_find_their_requests_in_any_order(ends):
    servers, there = ends
    first, second = (servers.begin(KEY, {0: ("history",)}, updates) for updates in (4, 3))
    assert [asked(there).needs.updates for _ in range(2)] == [4, 3]
    answer(there, 2, "second")
    answer(there, 1, "first")
    assert (servers.finish(first), servers.finish(second)) == ({0: "first"}, {0: "second"})


@pytest.mark.parametrize("has_come", [False, True])
def test_answers_that_nobody_wants_any_more_are_let_go(ends, has_come):
    servers, there = ends
    unwanted, wanted = (servers.begin(KEY, {0: ("history",)}, 0) for _ in range(2))
    answer(there, 1, error=TableError("pull", "a table", "none", "Restore."))
    if has_come:
        answer(there, 2, "wanted")
        assert servers.finish(wanted) == {0: "wanted"}
    servers.forget(unwanted)
    if not has_come:
        answer(there, 2, "wanted")
        assert servers.finish(wanted) == {0: "wanted"}
    assert not servers._answers and not servers._unwanted


def test_a_push_is_not_answered(ends):
    servers, there = ends
    assert servers.push(KEY, {0: ("receive", 5, {0: (np.arange(1), np.ones(1))}, None, 1)}) == {}
    request = asked(there)
    assert request.is_silent and request.method == "receive" and not servers._answers


def test_an_answer_to_nothing_is_an_error(ends):
    servers, there = ends
    requests = servers.begin(KEY, {0: ("history",)}, 0)
    answer(there, 3)
    with pytest.raises(InvariantError, match="server 0: expected the answer to request 1, got that to request 3"):
        servers.finish(requests)
