"""Requests of a worker that are under way at the same time; without processes."""

import threading
from types import SimpleNamespace

import numpy as np
import optax
import pytest

from ampjax.cluster.wire.memory_channel import memory_pair
from ampjax.errors import HostError, InvariantError, TableError
from ampjax.parallel.homes.row_homes import Reading
from ampjax.parallel.workers import row_servers
from ampjax.parallel.workers.row_servers import RowServers
from ampjax.parallel.workers.worker import Worker
from ampjax.parallel.workers.worker_messages import Ahead, Go, RowWork, StepWork
from ampjax.sparse import Table
from ampjax.sparse.rewrite.unique_ids import UniqueRows
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.servers.protocol import TREES, ServerAnswer

KEY = SplitKey(1, 2)


@pytest.fixture
def ends():
    """What a worker asks, and the server's end of the channel."""
    here, there = memory_pair("worker-0", "server-0")
    return RowServers([here]), there


def asked(there):
    return TREES.unpack(there.receive(0))


def answer(there, number, result=None, error=None):
    there.send(
        TREES.pack(
            "answer",
            ServerAnswer(number, result, error, ByteCounts()),
        )
    )


def test_answers_find_their_requests_in_any_order(ends):
    servers, there = ends
    first, second = (servers.begin(KEY, {0: ("history",)}, updates, {0: 8}) for updates in (4, 3))
    assert [asked(there).needs.updates for _ in range(2)] == [4, 3]
    answer(there, 2, "second")
    answer(there, 1, "first")
    assert servers.finish(first) == {0: "first"}
    assert servers.finish(second) == {0: "second"}


@pytest.mark.parametrize("has_come", [False, True])
def test_answers_that_nobody_wants_any_more_are_let_go(ends, has_come):
    servers, there = ends
    unwanted, wanted = (servers.begin(KEY, {0: ("history",)}, 0, {0: 8}) for _ in range(2))
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
    assert (
        servers.push(
            KEY,
            {0: ("receive", 5, {0: (np.arange(1), np.ones(1))}, None, 1)},
        )
        == {}
    )
    request = asked(there)
    assert request.is_silent and request.method == "receive" and not servers._answers


def test_an_answer_to_nothing_is_an_error(ends):
    servers, there = ends
    requests = servers.begin(
        KEY,
        {0: ("history",)},
        0,
        {0: 8},
    )
    answer(there, 3)
    with pytest.raises(
        InvariantError, match="server 0: expected the answer to request 1, got that to request 3"
    ):
        servers.finish(requests)


def test_answers_that_have_not_come_take_room_wanted_or_not(ends, monkeypatch):
    monkeypatch.setattr(row_servers, "MOST_ANSWERS", 3)
    monkeypatch.setattr(row_servers, "MOST_BYTES", 100)
    servers, there = ends
    assert (
        servers.has_room({0: 100})
        and not servers.has_room({0: 101})
        and not servers.has_room({0: 1}, 4)
    )
    first, second = (servers.begin(KEY, {0: ("history",)}, 0, {0: 40}) for _ in range(2))
    assert (
        servers.has_room({0: 20})
        and not servers.has_room({0: 21})
        and not servers.has_room({0: 1}, 2)
    )
    servers.forget(first)
    assert not servers.has_room({0: 21})
    answer(there, 1, "first")
    answer(there, 2, "second")
    servers.finish(second)
    assert servers.has_room({0: 100}, 3)


WIDTH = 8
IDS = np.arange(0, 40, 2)


class Asking(Worker):
    """A worker that only asks for rows: of tables at one server, which answers in a thread."""

    def __init__(self, tables):
        here, self.there = memory_pair("worker-0", "server-0")
        self._servers = RowServers([here])
        self._made = SimpleNamespace(is_sync=True)
        self._replica = 0
        self._places = {path: table.place for path, table in tables.items()}
        self._ahead = None
        self.tables = tables
        self.asked = []
        threading.Thread(target=self._answer_all, daemon=True).start()

    def _answer_all(self):
        by_key = {table.place.key: (path, table) for path, table in self.tables.items()}
        try:
            while (message := self.there.receive()) is not None:
                request = TREES.unpack(message)
                path, table = by_key[request.key]
                ((partition, local),) = request.args[0].items()
                self.asked.append((path, local.tolist()))
                answer(
                    self.there,
                    request.number,
                    {partition: table.pull(local)},
                )
        except HostError:
            pass

    def work(self, *counts, early=()):
        rows = {}
        for path, n in zip("abc", counts, strict=True):
            rows[path] = UniqueRows(
                IDS[:n],
                np.arange(n, dtype=np.int32),
            )
        masks = {}
        for path, own in rows.items():
            if path in early:
                masks[path] = np.arange(len(own.ids)) % 2 == 0
            else:
                masks[path] = None
        return StepWork(
            1,
            [],
            {p: RowWork(own, 64, Reading(), 0, 0, masks[p]) for p, own in rows.items()},
        )

    def take(self, share):
        result = {}
        for path in share.work.tables:
            result[path] = self._collect_rows(path, share).rows
        return result


@pytest.fixture
def asking(monkeypatch):
    monkeypatch.setattr(row_servers, "MOST_ANSWERS", 4)
    monkeypatch.setattr(row_servers, "MOST_BYTES", 20 * 4 * WIDTH)  # of 20 rows
    rng = np.random.default_rng(0)
    tables = {}
    for path in "abc":
        tables[path] = Table(
            rng.normal(size=(40, WIDTH)).astype(np.float32),
            optax.sgd(0.1),
        )
    worker = Asking(tables)
    yield worker
    worker.there.close()


@pytest.mark.parametrize(
    ("counts", "early", "ahead"),
    [
        ((4, 5, 6), "", "abc"),
        ((15, 10, 5), "", "ac"),  # b has no room, but c has
        ((20, 20, 20), "b", "a"),
        ((5, 5, 5), "ab", "ab"),  # four answers
        ((20, 3, 1), "a", "a"),
    ],
)
def test_as_many_tables_are_asked_ahead_as_can_wait_and_each_once(asking, counts, early, ahead):
    work = asking.work(*counts, early=early)
    asking._ask_ahead(Ahead(work))
    assert "".join(asking._ahead.pulls) == ahead
    share = asking._share_of(Go(1, None))
    rows = asking.take(share)
    for path, table in asking.tables.items():
        assert (rows[path] == table.pull(work.tables[path].rows.ids)).all()
        asked = [local for name, local in asking.asked if name == path]
        assert len(asked) == (2 if path in early else 1)
        assert (
            sorted(row for local in asked for row in local) == work.tables[path].rows.ids.tolist()
        )
    assert not asking._servers._nbytes and not asking._servers._answers


def test_rows_that_could_never_wait_are_asked_for_when_they_are_taken(asking):
    monstrous = asking.work(20, 20, 20, early="abc")
    row_servers.MOST_BYTES //= 2  # the fixture restores it
    asking._ask_ahead(Ahead(monstrous))
    assert not asking._ahead.pulls
    rows = asking.take(asking._share_of(Go(1, None)))
    assert all((rows[path] == table.pull(IDS)).all() for path, table in asking.tables.items())


def test_rows_that_were_asked_ahead_for_another_step_leave_no_room_until_they_come(asking):
    asking._ask_ahead(Ahead(asking.work(12, 1, 1)))
    share = asking._share_of(
        Go(
            2,
            asking.work(3, 4, 5),
        )
    )  # another step
    assert not share.pulls
    assert not asking._servers.has_room({0: 20 * 4 * WIDTH})
    rows = asking.take(share)
    assert [len(rows[path]) for path in "abc"] == [3, 4, 5]
    assert not asking._servers._nbytes and not asking._servers._unwanted
