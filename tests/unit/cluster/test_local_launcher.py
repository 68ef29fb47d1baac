"""How processes of one machine get what they talk over: who has it, what happens where the system refuses, and that nothing is left open."""

import errno
import os
import socket
import subprocess
import sys

import cloudpickle
import pytest
from support.local_lines import needs_linux, needs_local, open_files

from ampjax.cluster.hosts import local_launcher, spawn_hosts
from ampjax.cluster.hosts.job import Job
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.hosts.spawn_hosts import HostOptions, spawn
from ampjax.cluster.wire import local_line
from ampjax.cluster.wire.local_endpoints import local_endpoints
from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.errors import HostError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts can't import a test
pytestmark = [needs_local, needs_linux, pytest.mark.usefixtures("few_objects")]


def quiet(**options):
    return LocalLauncher(lambda line: None, **options)


def jobs(n):
    names = tuple(f"host-{i}" for i in range(n))
    result = []
    for i, name in enumerate(names):
        result.append(
            Job(
                name,
                i,
                names,
                "tcp://127.0.0.1:1",
                ("a", "b"),
            )
        )
    return result


def refuse(number, after=0, call=None):
    """A function that fails, after some calls of another one."""
    left = iter(range(after))

    def refused(*arguments, **options):
        if next(left, None) is None:
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return refused


class NoProcess:
    """Stands for a process: keeps what it would have got."""

    def __init__(self, job, main, environment, log, endpoint):
        self.peers = set(job.endpoints)
        self.endpoint = endpoint
        [
            os.fstat(descriptor) for each in job.endpoints.values() for descriptor in each[:2]
        ]  # they are open now


def started(n, monkeypatch, **options):
    """By host its peers past the network, and how many of them the driver has."""
    monkeypatch.setattr(local_launcher, "LocalProcess", NoProcess)
    processes = quiet(**options).start(jobs(n), b"", {})
    ends = [process.endpoint for process in processes if process.endpoint is not None]
    [end.close() for end in ends]
    return [process.peers for process in processes], len(ends)


def test_who_talks_past_the_network(monkeypatch):
    before = open_files()
    all_of_3 = [
        {"driver", "host-1", "host-2"},
        {"driver", "host-0", "host-2"},
        {"driver", "host-0", "host-1"},
    ]
    assert started(3, monkeypatch) == (all_of_3, 3)
    assert started(3, monkeypatch, is_direct=False) == (3 * [set()], 0)
    assert started(9, monkeypatch) == (9 * [{"driver"}], 9)
    assert started(70, monkeypatch) == (
        64 * [{"driver"}] + 6 * [set()],
        64,
    )
    assert open_files() == before


@pytest.mark.parametrize(
    ("where", "name", "number", "after"),
    [
        (os, "memfd_create", errno.ENOSYS, 0),
        (os, "memfd_create", errno.EMFILE, 2),
        (os, "dup", errno.EMFILE, 2),
        (os, "ftruncate", errno.ENOSPC, 0),
        (socket, "socketpair", errno.EACCES, 1),
    ],
)
def test_where_the_system_refuses_messages_go_over_the_network(
    where, name, number, after, monkeypatch
):
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(
            where,
            name,
            refuse(number, after, getattr(where, name)),
        )
        assert started(3, patch) == (3 * [set()], 0)
    assert open_files() == before
    with monkeypatch.context() as patch:
        patch.setattr(where, name, refuse(number))
        with pytest.raises(OSError, match=rf"\[Errno {number}\]"):
            local_endpoints()
    assert open_files() == before


@pytest.mark.parametrize("after", [0, 1])
def test_a_process_that_cannot_be_started_leaves_nothing_open(after, monkeypatch):
    local_launcher._in_a_lasting_thread(lambda: None)
    before = open_files()
    monkeypatch.setattr(
        subprocess,
        "Popen",
        refuse(errno.EAGAIN, after, subprocess.Popen),
    )
    with pytest.raises(HostError, match=rf"host-{after}: expected a process, got \[Errno 11\]"):
        quiet().start(jobs(2), b"", {})
    assert open_files() == before


@pytest.mark.nightly
@pytest.mark.slow
def test_memory_that_cannot_be_had_ends_all_hosts_and_leaves_nothing_open(monkeypatch):
    local_launcher._in_a_lasting_thread(lambda: None)
    before = open_files()
    monkeypatch.setattr(local_line.mmap, "mmap", refuse(errno.ENOMEM))
    with pytest.raises(
        HostError,
        match=r"driver, channel to host-0: expected memory to share with it, got \[Errno 12\]",
    ):
        spawn(2, hello, launcher=quiet())
    assert open_files() == before


def hello(context):
    context.driver.send(Message("hello", text=repr(context.driver)))
    context.driver.receive()


class Plain:
    """What a launcher of the user's own may give: only what `Started` asks for."""

    def __init__(self, process):
        self.ending = process.ending
        self.kill = process.kill
        self.log_tail = process.log_tail


class OwnLauncher(LocalLauncher):
    def start(self, *arguments):
        return [Plain(process) for process in super().start(*arguments)]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_launcher_of_ones_own_needs_to_know_nothing_of_it():
    launcher = OwnLauncher(lambda line: None, is_direct=False)
    with spawn(
        1,
        hello,
        HostOptions(patience=Patience(5.0)),
        launcher,
    ) as hosts:
        assert hosts[0].channel.receive(20).kind == "hello"


def test_a_fork_does_not_end_its_parents_hosts():
    class Told:
        """Keeps what it was told."""

        def __init__(self):
            self.calls = []

        def close(self):
            self.calls.append("closed")

        def kill(self):
            self.calls.append("killed")

        def ending(self):
            return "ended" if self.calls else None

    wire = Told()
    launcher = Told()
    process = Told()
    process.calls = ["started"]
    end = spawn_hosts._End(wire, launcher, [process])
    child = os.fork()
    if not child:
        end()
        os._exit(len(wire.calls + launcher.calls + process.calls) - 1)
    assert os.waitpid(child, 0)[1] == 0
    end()
    assert (wire.calls, launcher.calls, process.calls) == (
        ["closed"],
        ["closed"],
        ["started", "killed"],
    )
