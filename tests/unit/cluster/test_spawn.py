"""Hosts as processes: they start, talk, fail, die, hang, and leave nothing behind."""

import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import cloudpickle
import numpy as np
import pytest
from support.processes import is_there

from ampjax.cluster.hosts.job import Hello, Job, check, own_versions
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.hosts.spawn_hosts import HostOptions, spawn
from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.errors import HostDiedError, HostError, HostUnreachableError, SettingsError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts can't import a test


def echo(context):
    """Does what its driver says."""
    import os
    import time

    while True:
        message = context.driver.receive()
        match message.kind:
            case "to":
                context.peer(message.text).send(
                    Message("from", message.numbers, context.name, message.arrays)
                )
            case "from":
                context.driver.send(context.peer(message.text).receive(20))
            case "fail":
                error = ValueError("as it was told")
                error.add_note(
                    "--------------------\nFor simplicity, JAX has removed its internal frames."
                )  # as it does
                raise error
            case "many":
                for i in range(message.numbers[0]):
                    context.driver.send(Message("one", (i,), arrays=message.arrays))
                return
            case "busy":
                end = time.monotonic() + message.numbers[0]
                while time.monotonic() < end:
                    sum(range(1 << 22))  # one call that does not let go of Python's lock
                context.driver.send(Message("done"))
            case "print":
                print(message.text, flush=True)
                context.driver.send(Message("done", text=os.environ["JAX_NUM_CPU_DEVICES"]))


@pytest.fixture(scope="module")
def started():
    lines: list[str] = []
    options = HostOptions(devices=2, patience=Patience(2.0))
    with spawn(2, echo, options, LocalLauncher(lines.append)) as hosts:
        yield hosts, lines


@pytest.mark.nightly
@pytest.mark.slow
def test_hosts_talk_to_the_driver_and_to_each_other(started):
    hosts, lines = started
    array = np.arange(6, dtype=np.float32)
    for a, b in ((0, 1), (1, 0)):
        hosts[a].channel.send(
            Message(
                "to",
                (7,),
                hosts[b].name,
                (array,),
            )
        )
        hosts[b].channel.send(Message("from", text=hosts[a].name))
        message = hosts[b].channel.receive(20)
        assert (message.numbers, message.text) == ((7,), f"host-{a}")
        assert (message.arrays[0] == array).all()
    hosts[1].channel.send(Message("print", text="two\nlines"))
    assert hosts[1].channel.receive(20).text == "2"
    for _ in range(200):
        if len(lines) == 2:
            break
        time.sleep(0.01)
    assert lines == ["[host-1] two", "[host-1] lines"]
    assert re.fullmatch(r"Host\(host-0 on \S+, process \d+, runs\)", repr(hosts[0]))
    assert hosts[0].alive and hosts[0].address.startswith("tcp://127.0.0.1:")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_busy_host_beats_and_a_stopped_one_is_unreachable_until_it_goes_on(started):
    hosts, _ = started
    hosts[1].channel.send(Message("busy", (3,)))
    assert hosts[1].channel.receive(20).kind == "done"
    os.kill(hosts[1].process, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(
        HostUnreachableError, match="driver, channel to host-1: expected a beat from the other end"
    ):
        hosts[1].channel.receive(20)
    assert 1.0 < time.monotonic() - start < 3.0 and hosts[1].alive  # 2 s, and a busy machine
    os.kill(hosts[1].process, signal.SIGCONT)
    hosts[1].channel.send(
        Message(
            "print",
            text="again",
        )
    ) if _comes_back(hosts[1].channel) else None
    assert hosts[1].channel.receive(20).kind == "done"


def _comes_back(channel):
    for _ in range(100):
        if "not connected" not in repr(channel):
            return True
        channel.tend()
        time.sleep(0.05)
    return False


@pytest.mark.nightly
@pytest.mark.slow
def test_a_program_that_fails_and_a_process_that_dies_are_told_apart():
    with spawn(3, echo, launcher=LocalLauncher(lambda line: None)) as hosts:
        hosts[0].channel.send(Message("fail"))
        with pytest.raises(
            HostError, match="host-0: expected a program without an error, got ValueError: as it"
        ) as e:
            hosts[0].channel.receive(20)
        assert "in echo" in e.value.__notes__[0]
        hosts[2].channel.send(
            Message(
                "many",
                (60,),
                arrays=(np.ones(20_000),),
            )
        )  # more than is on its way when the program ends
        assert [hosts[2].channel.receive(20).numbers[0] for _ in range(60)] == list(range(60))
        with pytest.raises(HostDiedError):
            hosts[2].channel.receive(20)
        threading.Timer(0.1, hosts[1].kill).start()
        start = time.monotonic()
        with pytest.raises(HostDiedError, match="got the end of its process: killed by SIGKILL"):
            hosts[1].channel.receive(20)
        assert (
            time.monotonic() - start < 2
            and not hosts[1].alive
            and "killed by SIGKILL" in repr(hosts)
        )
        processes = [host.process for host in hosts]
    assert not any(map(is_there, processes))


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf"])
def test_a_patience_that_is_none(text, monkeypatch):
    monkeypatch.setenv("AMPJAX_HOST_SILENCE_S", text)
    with pytest.raises(
        SettingsError, match="AMPJAX_HOST_SILENCE_S: expected seconds, a number above 0, got"
    ):
        HostOptions()


def test_a_patience_that_the_environment_asks_for(monkeypatch):
    monkeypatch.setenv("AMPJAX_HOST_SILENCE_S", "7.5")
    assert HostOptions().patience == Patience(7.5)
    monkeypatch.delenv("AMPJAX_HOST_SILENCE_S")
    assert HostOptions().patience == Patience(1.8)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_drivers_death_ends_all_hosts_even_stopped_ones():
    script = """
        import os, signal
        from ampjax.cluster import spawn

        hosts = spawn(2, lambda context: context.driver.receive())
        os.kill(hosts[1].process, signal.SIGSTOP)
        print(*(host.process for host in hosts), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    program = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(program, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    processes = [int(text) for text in done.stdout.split()]
    end = time.monotonic() + 5
    while any(map(is_there, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    assert len(processes) == 2 and not any(map(is_there, processes))


def test_what_cannot_travel_is_named():
    lock = threading.Lock()

    def program(context):
        return lock

    with pytest.raises(
        SettingsError,
        match=r"a host's program: expected something that can travel .* got `lock`, a lock",
    ):
        spawn(1, program)
    with pytest.raises(SettingsError, match="got `argument 0`, a dict, in it `inner`, a lock"):
        spawn(1, functools.partial(print, {"inner": lock}))


def test_names_that_are_refused():
    for names in (("a",), ("a", "a"), ("a", "driver")):
        with pytest.raises(SettingsError, match="hosts, names: expected 2 different names"):
            spawn(2, echo, HostOptions(names=names))
    with pytest.raises(
        SettingsError, match="setting `hosts`: expected an integer of at least 1, got 0"
    ):
        spawn(0, echo)


@pytest.mark.parametrize(
    ("differs", "text"),
    [
        ({"python": "3.9"}, "host-0 on here: expected python 3"),
        ({"jax": "0.1"}, "as the driver has, got 0.1. Install the same versions"),
        ({"digest": "other"}, "expected the driver's settings, 'mine', got 'other'"),
        ({"devices": 1}, "expected at least 2 devices, got 1"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(differs, text):
    job = Job(
        "host-0",
        0,
        ("host-0",),
        "tcp://127.0.0.1:1",
        ("", ""),
        digest="mine",
        devices=2,
    )
    assert Job.decode(job.encode()) == job
    fits = {**own_versions(), "digest": "mine", "devices": 2, "place": "here"}
    check(job, Hello(**fits))
    with pytest.raises(HostError, match=re.escape(text)):
        check(job, Hello(**{**fits, **differs}))


@pytest.mark.nightly
@pytest.mark.slow
def test_a_host_that_cannot_start_is_told_with_what_it_has_written():
    options = HostOptions(environment={"JAX_PLATFORMS": "no_such_platform"}, devices=1)
    with pytest.raises(HostError) as e:
        spawn(1, echo, options, LocalLauncher(lambda line: None))
    assert "no_such_platform" in str(e.value) + "".join(
        getattr(
            e.value,
            "__notes__",
            [],
        )
    )
