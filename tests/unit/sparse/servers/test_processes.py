"""Servers in processes of their own: the same as in this one; what happens when one ends; and that none stays behind."""

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import jax.numpy as jnp
import numpy as np
import pytest
from support.optimizers import ROW_WISE, worst
from support.processes import is_there

from ampjax.cluster.wire.zmq_channel import ZmqChannel
from ampjax.errors import ServerError, SettingsError, TableError
from ampjax.sparse import Table
from ampjax.sparse.rows.partition_layout import SplitKey
from ampjax.sparse.servers import process, serving
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.servers.protocol import TREES, Request
from ampjax.sparse.servers.serving import Service
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.utils.interrupts import uninterrupted

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_objects")]

VALUES = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
ONES = np.ones((3, 3), np.float32)


@pytest.fixture(scope="module")
def processes():
    with ServerProcesses(2) as servers:
        yield servers


@pytest.fixture
def doomed(monkeypatch):
    """A server that may be killed, or stopped."""
    monkeypatch.setenv("AMPJAX_HOST_SILENCE_S", "2")
    with ServerProcesses(1) as servers:
        yield servers


def table(processes, name="sgd", values=VALUES, **settings):
    return Table(values, ROW_WISE[name], processes=processes, **settings)


# ---- the same as in this process -------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "adam",
            {
                "mode": "faithful",
                "max_lag": 2,
            },
        ),
        ("sgd", {"wire_dtype": jnp.bfloat16}),
    ],
    ids=["adam", "bfloat16"],
)
def test_all_that_a_table_does_is_the_same_bit_for_bit(processes, tmp_path, name, settings):
    rng = np.random.default_rng(1)
    tables = []
    for own in (processes, None):
        tables.append(table(own, name, partitions=3, servers=2, **settings))
    for turn in range(4):
        ids = rng.integers(0, 23, 6)
        more = np.arange(turn)
        grads = rng.normal(size=(6, 3)).astype(np.float32)
        for t in tables:
            t.apply(
                t.aggregate(
                    more,
                    ONES[:turn],
                    t.aggregate(ids, grads, columns=(1, 3)),
                )
            )
        assert (tables[0].pull(ids, columns=(0, 2)) == tables[1].pull(ids, columns=(0, 2))).all()
        if turn == 1:
            [t.resplit(5, servers=[0, 1, 1, 0, 1]) for t in tables]
        if turn == 2:
            [t.save(tmp_path / str(i)) for i, t in enumerate(tables)]
    read = [t.aggregate(ids, grads).gradients() for t in tables]
    assert all((a == b).all() for a, b in zip(*read, strict=True))
    assert tables[0].traffic == tables[1].traffic
    assert tables[0].traffic[0] == tables[0].traffic[1]
    assert (tables[0].dense() == tables[1].dense()).all()
    assert worst(tables[0].opt_state, tables[1].opt_state) == 0
    again = []
    for i, own in enumerate((None, processes)):
        again.append(
            Table.load(
                tmp_path / str(i),
                ROW_WISE[name],
                processes=own,
            )
        )
    assert (again[0].dense() == again[1].dense()).all()
    assert worst(again[0].opt_state, again[1].opt_state) == 0


@pytest.mark.nightly
def test_settings_name_the_processes(processes):
    t = table(processes, partitions=2)
    assert t.settings["processes"] is processes
    assert (Table(VALUES, t.rule, **t.settings).dense() == VALUES).all()


@pytest.mark.nightly
def test_mapped_files_go_with_the_table(processes, tmp_path):
    t = table(processes, "adam", partitions=3, folder=tmp_path)
    assert len(list(tmp_path.rglob("*.rows"))) == 9
    t.resplit(2)
    assert len(list(tmp_path.rglob("*.rows"))) == 6
    assert (t.dense() == VALUES).all()
    del t
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_tables_of_several_threads_share_the_servers(processes):
    tables = []
    for _ in range(3):
        tables.append(table(processes, partitions=2, servers=2))

    def work(t):
        for _ in range(20):
            t.push([0, 1, 2], ONES)

    threads = []
    for t in tables:
        threads.append(threading.Thread(target=work, args=(t,)))
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    wanted = table(None, partitions=2, servers=2)
    work(wanted)
    assert all(t.version == 20 and (t.dense() == wanted.dense()).all() for t in tables)


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_bad_push_changes_nothing(processes):
    t = table(processes, "adam", partitions=2, servers=2)
    t.push([1, 2, 3], ONES)
    rows = t.dense()
    state = t.opt_state
    with pytest.raises(
        TableError, match=re.escape("push, gradients: expected finite numbers, got nan in row 0")
    ):
        t.push([0, 1, 2], ONES * np.nan)
    with pytest.raises(
        TableError, match=re.escape("pull, row ids: expected ids in [0, 23), got 23 at place 0")
    ):
        t.pull([23])
    pending = t.aggregate(
        [1],
        ONES[:1] * 3e38,
        into=t.aggregate([1], ONES[:1] * 3e38),
    )
    for _ in range(
        2
    ):  # found by the server that has row 1; the other has computed its update by then, in vain
        with pytest.raises(
            TableError,
            match=re.escape("apply, gradients: expected finite numbers, got inf in row 1"),
        ):
            t.apply(pending)
    assert t.version == 1
    assert (t.dense() == rows).all()
    assert worst(t.opt_state, state) == 0
    assert t.traffic[0] == t.traffic[1]
    assert t.push([1], ONES[:1]) == 2


@pytest.mark.nightly
def test_what_goes_wrong_at_a_server_is_told(processes):
    t = table(processes)
    with pytest.raises(
        ServerError, match=r"server 0 \(process \d+\): expected an answer to `no_method`, got Attr"
    ) as e:
        processes.ask(t._shards.key, {0: ("no_method",)})
    assert "At the server" in e.value.__notes__[0]
    assert (t.pull([1]) == VALUES[[1]]).all()


def test_settings_that_are_refused(processes):
    with pytest.raises(
        TableError, match="processes: expected at least 3, one for each server, got 2"
    ):
        table(processes, partitions=3, servers=3)
    with pytest.raises(
        TableError, match=re.escape("processes: expected ServerProcesses or None, got 2.")
    ):
        table(2)
    with pytest.raises(
        SettingsError, match="setting `servers`: expected an integer of at least 1, got 0"
    ):
        ServerProcesses(0)


# ---- a process that ends ---------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_server_that_was_killed_is_named_and_started_anew_for_a_new_table(doomed, tmp_path):
    t = table(doomed, "adam")
    t.push([1, 2, 3], ONES)
    t.save(tmp_path)
    t.push([1, 2, 3], ONES)
    (first,) = doomed.ids
    os.kill(first, signal.SIGKILL)
    text = f"expected an answer to `pull`, got the end of process {first}: killed by SIGKILL. Its rows are lost: restore"
    for where in (f"server 0 (process {first}): ", "server 0: "):
        with pytest.raises(ServerError, match=re.escape(where + text)):
            t.pull([0])
    again = Table.load(tmp_path, ROW_WISE["adam"], **t.settings)
    assert doomed.ids != [first] and again.version == 1
    again.push([1, 2, 3], ONES)
    wanted = table(None, "adam")
    [wanted.push([1, 2, 3], ONES) for _ in range(2)]
    assert (again.dense() == wanted.dense()).all() and worst(again.opt_state, wanted.opt_state) == 0
    with pytest.raises(ServerError, match="expected a table that was opened at this process"):
        t.pull([0])


@pytest.mark.nightly
def test_a_server_that_hangs_is_noticed_and_ended(doomed):
    t = table(doomed)
    (process,) = doomed.ids
    os.kill(process, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(
        ServerError, match=rf"got the end of process {process}: no sign of life for 2"
    ):
        t.pull([0])
    assert time.monotonic() - start < 4 and not is_there(process)  # 2 s, and a busy machine


def test_a_request_that_comes_again_is_answered_from_memory():
    service = Service(OneAtATime())
    service._server.ask = lambda key, method, *args: calls.append(args) or len(calls)
    calls: list[tuple[int]] = []
    first, second = (Request(SplitKey(0, 0), "commit", (i,), i) for i in (1, 2))
    answers = []
    for request in (first, first, second, second):
        answers.append(service.answer(request).result)
    assert answers == [1, 1, 2, 2]
    assert calls == [(1,), (2,)]


@pytest.mark.nightly
def test_one_interrupt_waits_and_a_second_one_ends_the_server(doomed, monkeypatch):
    t = table(doomed)
    receive = ZmqChannel.receive
    times = iter([1, 2])

    def interrupted(channel, *timeout_s):
        for _ in range(next(times)):
            signal.raise_signal(signal.SIGINT)
        return receive(channel, *timeout_s)

    monkeypatch.setattr(ZmqChannel, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        t.pull([0])
    monkeypatch.undo()
    assert (t.pull([0]) == VALUES[[0]]).all()
    monkeypatch.setattr(ZmqChannel, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        t.pull([0])
    with pytest.raises(
        ServerError,
        match="server 0: expected an answer to `pull`, got KeyboardInterrupt in the midst",
    ):
        t.pull([0])


@pytest.mark.nightly
def test_an_answer_that_was_left_unread_is_taken_for_no_other(doomed):
    t = table(doomed)
    request = Request(
        t._shards.key,
        "pull",
        (
            {0: np.array([1])},
            np.dtype(np.float32),
        ),
    )
    doomed._servers[0].send(request)  # and an interrupt comes before its answer is read
    with pytest.raises(ServerError, match="expected an answer to `pull`, got the end of process"):
        t.pull([3])
    with pytest.raises(ServerError):
        t.pull([5])


@pytest.mark.nightly
def test_an_interrupted_update_is_made_as_a_whole(processes, monkeypatch):
    t, wanted = (table(where, "adam", partitions=2, servers=2) for where in (processes, None))
    wanted.push([1, 2, 3], ONES)
    prepare = PendingUpdate.prepare

    def interrupted(*args):
        commit = prepare(*args)
        return lambda: (commit(), signal.raise_signal(signal.SIGINT))

    monkeypatch.setattr(PendingUpdate, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        t.push([1, 2, 3], ONES)
    assert (
        t.version == 1
        and (t.dense() == wanted.dense()).all()
        and worst(t.opt_state, wanted.opt_state) == 0
    )


def test_an_interrupt_comes_at_the_end_of_the_outermost_block():
    reached = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        reached.append("the end of the outer block")
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.nightly
def test_a_new_split_needs_only_the_servers_that_it_is_on():
    with ServerProcesses(2) as servers:
        t = table(servers)
        other = table(servers, partitions=2, servers=2)
        os.kill(int(servers.ids[1] or 0), signal.SIGKILL)
        t.resplit(2)
        assert (t.dense() == VALUES).all()
        with pytest.raises(ServerError):
            other.dense()


class OneAtATime:
    """A channel on which a message and its answer must follow one another."""

    def __init__(self):
        self.asked = []

    def send(self, message):
        assert not self.asked, "another thread waits for its answer"
        self.asked.append(TREES.unpack(message))
        time.sleep(0.001)

    def receive(self):
        (wanted,) = self.asked
        self.asked.clear()
        return TREES.pack("export", wanted.name)


def test_threads_of_a_server_ask_for_functions_one_after_the_other(monkeypatch):
    fetched = []
    monkeypatch.setattr(serving, "ImportedFunctions", lambda fetch: fetch)
    monkeypatch.setattr(serving, "RowKernels", lambda types, fetch: fetch)
    fetch = Service(OneAtATime())._kernels(0, None)
    threads = [
        threading.Thread(target=lambda i=i: fetched.append(fetch(f"f{i}", ()) == f"f{i}"))
        for i in range(8)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert fetched == 8 * [True]


@pytest.mark.nightly
def test_an_optimizer_that_cannot_travel_is_told_and_harms_no_other_table(doomed, monkeypatch):
    kept = table(doomed)
    t = table(doomed, "adam")

    def fails(*_):
        raise RuntimeError("not this one")

    monkeypatch.setattr(process, "export_function", fails)
    with pytest.raises(ServerError, match="that can travel, got RuntimeError: not this one"):
        t.push([1, 2, 3], ONES)
    monkeypatch.undo()
    assert t.push([1, 2, 3], ONES) == 1
    assert (kept.dense() == VALUES).all()


# ---- nothing stays behind --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_closed_servers_are_gone_and_say_so(doomed):
    t = table(doomed)
    (process,) = doomed.ids
    doomed.close()
    doomed.close()
    assert not is_there(process) and doomed.ids == [None]
    with pytest.raises(
        ServerError,
        match=re.escape(
            "answer to `pull`, got no process: the servers were closed. Make new servers"
        ),
    ):
        t.pull([0])
    with pytest.raises(ServerError, match="server processes: expected open ones, got closed ones"):
        table(doomed)


def test_servers_end_when_nobody_holds_them():
    t = table(ServerProcesses(1))
    (process,) = t.settings["processes"].ids
    assert is_there(process)
    del t
    gc.collect()
    assert not is_there(process)


@pytest.mark.nightly
def test_servers_forget_tables_and_updates_that_nobody_holds(processes):
    t = table(processes)
    other = table(processes)
    key = t._shards.key
    gone = weakref.ref(t)
    pending = t.aggregate([1], ONES[:1])
    number = pending.number
    assert processes.ask(key, {0: ("rows", number)})[0]
    del pending
    gc.collect()
    assert processes.ask(key, {0: ("rows", number)})[0] == {}
    del t
    gc.collect()
    assert gone() is None
    other.pull([0])
    with pytest.raises(ServerError, match="a table that was opened at this process"):
        processes.ask(key, {0: ("rows", 0)})


@pytest.mark.nightly
def test_nothing_is_kept_for_servers_that_are_never_asked():
    with ServerProcesses(2) as servers:
        t = table(servers)
        for _ in range(5):
            t.push([1], ONES[:1])
        gc.collect()
        t.pull([0])
        assert not any(server.dropped for server in servers._servers)


def test_a_forked_process_is_refused(processes, monkeypatch):
    """Its requests would go through the socket of the process that it was forked from, and take that one's answers."""
    t = table(processes)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        with pytest.raises(ServerError, match="forked from process"):
            t.pull([0])
    np.testing.assert_array_equal(
        t.pull([0]),
        VALUES[:1],
    )


@pytest.mark.nightly
@pytest.mark.nightly
def test_servers_end_with_a_script_however_that_ends():
    """No script has a guard of `__main__`."""
    script = """
        import os, signal
        import numpy as np, optax
        from ampjax.sparse import Table
        from ampjax.sparse.servers.processes import ServerProcesses

        table = Table(np.ones((4, 2), np.float32), optax.sgd(0.5), processes=ServerProcesses(1))
        table.push([1], np.ones((1, 2), np.float32))
        print(table.pull([1]).tolist(), *table.settings["processes"].ids, flush=True)
    """
    ends = "signal.raise_signal(signal.SIGINT)", "os.kill(os.getpid(), signal.SIGKILL)"
    programs = []
    for end in ends:
        programs.append([sys.executable, "-c", textwrap.dedent(script) + end])
    running = []
    for program in programs:
        running.append(subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for script_process in running:
        output, errors = script_process.communicate()
        *rows, server = output.split()
        assert rows == [b"[[0.5,", b"0.5]]"], errors.decode()
        for _ in range(500):
            if not is_there(int(server)):
                break
            time.sleep(0.01)
        assert not is_there(int(server))
    assert [ended.returncode for ended in running] == [-signal.SIGINT, -signal.SIGKILL]
