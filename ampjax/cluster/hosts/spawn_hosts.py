"""Starts hosts: places hosts, sends each its program, and lets all begin once all have said a fitting hello."""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.hosts.job import DRIVER, Hello, Job, check
from ampjax.cluster.hosts.launcher import Launcher, Started
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.hosts.packed_programs import pack_program
from ampjax.cluster.wire.channel import Channel, Window, wait_any
from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.zmq_channel import Patience, ZmqChannel
from ampjax.cluster.wire.zmq_wire import ZmqWire, new_keys
from ampjax.errors import HostError, SettingsError
from ampjax.utils.setting_checks import at_least

SILENCE_VARIABLE = "AMPJAX_HOST_SILENCE_S"
"""The environment's variable for the seconds without a beat after which a host is unreachable, for machines that are too busy for 1.8."""

_LEAVE_S = 1.0
"""How long a host may take to end by itself when its driver closes."""


def _usual_patience() -> Patience:
    """The patience that the environment asks for."""
    text = os.environ.get(SILENCE_VARIABLE, "")
    try:
        silence_s = float(text) if text else Patience().silence_s
    except ValueError:
        silence_s = 0.0
    if not 0 < silence_s < float("inf"):
        fix = "Change the variable, or remove it for 1.8 s."
        raise SettingsError(
            f"environment, {SILENCE_VARIABLE}", "seconds, a number above 0", f"{text!r}", fix
        )
    return Patience(silence_s)


@dataclass(frozen=True)
class HostOptions:
    """The options that all hosts share.

    Args:
      names: Their names; `host-0`, `host-1`, … if none are given.
      devices: How many devices each must have, 0 for any number; or how many of each. On CPUs that many are made, on each as many as on
        any.
      environment: Variables of their environment besides this process's.
      digest: What the run's settings are, in short; a host with another one is refused.
      epoch: The run's epoch. What hosts of another one send is refused.
      window: How much may be under way one way on each channel.
      patience: How long to wait for signs of life; by default 1.8 s, or what `AMPJAX_HOST_SILENCE_S` says.

    Raises:
      SettingsError: If that is no number above 0.
    """

    names: tuple[str, ...] = ()
    devices: int | tuple[int, ...] = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""
    epoch: int = 0
    window: Window = field(default_factory=Window)
    patience: Patience = field(default_factory=_usual_patience)


@dataclass(frozen=True, eq=False)
class Host:
    """One host, as its driver sees the host.

    Args:
      name: Its name.
      number: Its number, from 0.
      place: The name of its machine.
      process: Its process's id there.
      channel: The channel to it.
      started: What its launcher knows of it.
    """

    name: str
    number: int
    place: str
    process: int
    channel: Channel
    started: Started

    def __repr__(self) -> str:
        state = self.started.ending()
        return f"Host({self.name} on {self.place}, process {self.process}, {'runs' if state is None else state})"

    @property
    def address(self) -> str:
        """The address where the two ends meet, `tcp://host:port`; empty for a thread."""
        return getattr(self.channel, "address", "")

    @property
    def alive(self) -> bool:
        """Whether its process is there and its program has not ended. It may still be unreachable: the channel tells."""
        return self.started.ending() is None

    def kill(self) -> None:
        """Ends the host at once, as a crash would. Does nothing to a host that has ended."""
        self.started.kill()


class SpawnedHosts(Sequence[Host]):
    """Hosts of one run, by number. They end with `close`, at the end of a `with` block, when this object is no longer referenced, and with this process.

    Args:
      hosts: The hosts.
      end: What ends them, and gives back all that they have used.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        end: Callable[[], None],
    ):
        self._hosts = tuple(hosts)
        self._end = weakref.finalize(self, end)

    def __repr__(self) -> str:
        return "Hosts:" + "".join(f"\n  {host!r}" for host in self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    @overload
    def __getitem__(self, index: int) -> Host: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Host]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __enter__(self) -> SpawnedHosts:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends all hosts: each may end in its own way for a second, and is killed then."""
        self._end()


def spawn(
    n: int,
    main: Callable[[HostContext], Any],
    options: HostOptions | None = None,
    launcher: Launcher | None = None,
) -> SpawnedHosts:
    """Starts hosts, each of which runs a function.

    The function travels once, over a pipe that only the two processes have (or Ray's own way of starting actors), never over a socket
    of ours. It runs when all hosts are there. When it returns, its host ends; an error comes out of the driver's next `receive`.

    Args:
      n: How many hosts.
      main: What each one runs.
      options: What they have in common.
      launcher: Where they are started; processes on this machine if none is given.

    Returns:
      The hosts. Their channels are open.

    Raises:
      SettingsError: If an option is outside what it can be, or the function can't travel.
      HostError: If a host can't be started, has other versions or settings, or not enough devices.
    """
    at_least("hosts", n, 1)
    options = options or HostOptions()
    names = _names(n, options)
    program = pack_program(main, "a host's program")
    launcher = launcher or LocalLauncher()
    keys = new_keys()
    wire = ZmqWire(
        DRIVER,
        keys,
        launcher.host,
        options.epoch,
        options.window,
        options.patience,
    )
    started: list[Started] = []
    end = _End(wire, launcher, started)
    try:
        channels = [wire.listen(name) for name in names]
        window = options.window.messages, options.window.nbytes, options.window.warn_after_s
        if isinstance(options.devices, tuple):
            devices = options.devices
        else:
            devices = (options.devices,) * n
        text_keys = keys.public.decode(), keys.secret.decode()
        jobs = [
            Job(
                name,
                i,
                names,
                channel.address,
                text_keys,
                options.epoch,
                options.digest,
                devices[i],
                window,
                (options.patience.silence_s, options.patience.connect_s),
            )
            for i, (name, channel) in enumerate(zip(names, channels, strict=True))
        ]
        started += launcher.start(jobs, program, _environment(options))
        for channel, process in zip(channels, started, strict=True):
            channel.ending = process.ending
            take = getattr(process, "take_endpoint", None)
            if take is not None and (endpoint := take()) is not None:
                channel.use_local(endpoint)
        hellos = _hellos(jobs, channels, started, options.patience)
    except BaseException:
        end()
        raise
    _tell_start(jobs, channels, hellos)
    parts = zip(names, hellos, channels, started, strict=True)
    hosts = []
    for i, (name, h, channel, process) in enumerate(parts):
        hosts.append(Host(name, i, h.place, h.process, channel, process))
    return SpawnedHosts(hosts, end)


def _names(n: int, options: HostOptions) -> tuple[str, ...]:
    names = options.names or tuple(f"host-{i}" for i in range(n))
    if len(names) != n or len(set(names)) != n or DRIVER in names:
        fix = "Give each host a name of its own."
        raise SettingsError(
            "hosts, names", f"{n} different names, none of them `driver`", f"{list(names)}", fix
        )
    return names


def _tell_start(
    jobs: Sequence[Job],
    channels: Sequence[ZmqChannel],
    hellos: Sequence[Hello],
) -> None:
    """Tells each host to start, and the addresses of all hosts."""
    for job, channel in zip(jobs, channels, strict=True):
        book = {}
        for other, hello in zip(jobs, hellos, strict=True):
            book[other.name] = (
                hello.addresses.get(job.name, ""),
                hello.place,
                hello.process,
            )
        channel.send(Message("start", text=json.dumps(book)))


def _environment(options: HostOptions) -> dict[str, str]:
    most = max(options.devices) if isinstance(options.devices, tuple) else options.devices
    devices = {"JAX_NUM_CPU_DEVICES": str(most)} if most else {}
    return {**devices, **options.environment}


def _hellos(
    jobs: Sequence[Job],
    channels: Sequence[ZmqChannel],
    started: Sequence[Started],
    patience: Patience,
) -> list[Hello]:
    """The first message of each host; raises if one does not fit or does not come."""
    hellos: dict[str, Hello] = {}
    by_peer = {job.name: (job, process) for job, process in zip(jobs, started, strict=True)}
    end = time.monotonic() + patience.connect_s
    while len(hellos) < len(jobs):
        waiting = [channel for channel in channels if channel.peer not in hellos]
        ready = wait_any(waiting, max(0.0, end - time.monotonic()))
        if not ready:
            names = [channel.peer for channel in waiting]
            fix = "Look into their log, and whether the driver's address can be reached from their machines."
            raise HostError(
                "hosts", f"all of them within {patience.connect_s:g} s", f"none from {names}", fix
            )
        for channel in ready:
            job, process = by_peer[channel.peer]
            try:
                message = channel.receive(0)
            except HostError as error:
                for line in process.log_tail():
                    error.add_note(f"[{job.name}] {line}")
                raise
            if message is not None:
                hello = Hello(**json.loads(message.text))
                check(job, hello)
                hellos[job.name] = hello
    return [hellos[job.name] for job in jobs]


class _End:
    """Ends hosts, once; not in a process that was forked from theirs.

    Args:
      wire: The driver's wire.
      launcher: Who started them.
      started: The processes.
    """

    def __init__(
        self,
        wire: ZmqWire,
        launcher: Launcher,
        started: Sequence[Started],
    ):
        self._wire = wire
        self._launcher = launcher
        self._started = started
        self._owner = os.getpid()

    def __call__(self) -> None:
        if os.getpid() != self._owner:
            return
        self._wire.close()
        end = time.monotonic() + _LEAVE_S
        while any(process.ending() is None for process in self._started) and time.monotonic() < end:
            time.sleep(0.005)
        for process in self._started:
            with contextlib.suppress(OSError):
                process.kill()
        self._launcher.close()
