"""Processes on this machine: fresh interpreters, so nothing is forked while threads run, and scripts need no guard of `__main__`."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampjax.cluster.hosts.job import DRIVER, Job
from ampjax.cluster.wire.local_endpoints import LocalEndpoint, can_be_local, local_endpoints
from ampjax.cluster.wire.zmq_wire import LOOPBACK
from ampjax.errors import HostError

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from ampjax.cluster.hosts import host_program; host_program.main()"
_TAIL = 20
_MOST_JOINED = 8
"""With more hosts on a machine, they talk to each other over the network: each pair takes files, of which a process may have few."""

_MOST_DIRECT = 64
"""Further hosts talk over the network to the driver, too: while hosts are started, each pair takes four files."""

_LAST_LINES_S = 1.0
"""How long the last lines of a process that has ended are waited for: a process of its own may have its output still."""


class LocalLauncher:
    """Starts processes on this machine. Their output comes out here, each line with its host's name.

    Args:
      log: Takes a line; None prints it to the standard error of the time.
      host: The address of this machine at which other processes reach it.
      is_direct: Whether messages go past the network where the system can do so, over sockets and shared memory that the processes are started
        with. They do not need to be encrypted, as nobody else can open these.
    """

    def __init__(
        self,
        log: Callable[[str], None] | None = None,
        host: str = LOOPBACK,
        is_direct: bool = True,
    ):
        self._log = log or _print
        self.host = host
        self._is_direct = is_direct and can_be_local()

    def start(
        self,
        jobs: Sequence[Job],
        main: bytes,
        environment: Mapping[str, str],
    ) -> Sequence[LocalProcess]:
        """See `Launcher.start`."""
        started: list[LocalProcess] = []
        with contextlib.ExitStack() as undo:
            endpoints = _endpoints(jobs, self._is_direct)
            undo.callback(_close, endpoints)
            try:
                for job in jobs:
                    full_job = dataclasses.replace(job, endpoints=endpoints[job.name])
                    of_driver = endpoints[DRIVER].get(job.name)
                    started.append(LocalProcess(full_job, main, environment, self._log, of_driver))
                    endpoints[DRIVER].pop(job.name, None)
            except OSError as error:
                for process in started:
                    process.kill()
                fix = "Start fewer hosts, or free memory and processes."
                raise HostError(
                    jobs[len(started)].name,
                    "a process",
                    f"{error}",
                    fix,
                ) from error
        return started

    def close(self) -> None:
        """See `Launcher.close`."""


_Endpoints = dict[str, dict[str, LocalEndpoint]]
"""By process and peer, the process's half of what the two have."""


def _endpoints(jobs: Sequence[Job], is_direct: bool) -> _Endpoints:
    """The sockets and memory for pairs of processes that talk past the network; none if switched off, or where the system refuses."""
    names = [job.name for job in jobs]
    if is_direct:
        pairs = [(DRIVER, name) for name in names[:_MOST_DIRECT]]
    else:
        pairs = []
    if is_direct and len(names) <= _MOST_JOINED:
        pairs += itertools.combinations(names, 2)
    result: _Endpoints = {name: {} for name in (DRIVER, *names)}
    try:
        for a, b in pairs:
            result[a][b], result[b][a] = local_endpoints()
    except OSError:
        _close(result)
        return {name: {} for name in result}
    return result


def _close(endpoints: _Endpoints) -> None:
    for endpoint in itertools.chain.from_iterable(
        of_process.values() for of_process in endpoints.values()
    ):
        endpoint.close()


class LocalProcess:
    """One process on this machine.

    Args:
      job: Its job.
      main: What it runs, packed.
      environment: Variables of its environment besides this process's.
      log: Takes its lines.
      endpoint: The driver's half of what it needs to talk to it past the network; this object's if there is no error.
    """

    def __init__(
        self,
        job: Job,
        main: bytes,
        environment: Mapping[str, str],
        log: Callable[[str], None],
        endpoint: LocalEndpoint | None = None,
    ):
        self._endpoint = endpoint
        descriptors = []
        for of_process in job.endpoints.values():
            for descriptor in of_process[:2]:
                descriptors.append(descriptor)
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL)
        command = [sys.executable, "-c", _PROGRAM, *sys.path]
        self._process: subprocess.Popen[bytes] = _in_a_lasting_thread(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=host_environment(environment),
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in a terminal is for the driver alone
            )
        )
        arguments = job.name, log
        self._reader = threading.Thread(
            target=self._read, args=arguments, name=f"log of {job.name}", daemon=True
        )
        self._reader.start()
        text = job.encode()
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(
            BrokenPipeError
        ):  # then it has ended, and that is noticed where it is waited for
            stdin.write(struct.pack("<QQQ", os.getpid(), len(text), len(main)) + text + main)
            stdin.flush()

    def _read(
        self,
        name: str,
        log: Callable[[str], None],
    ) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\n")
                self._tail.append(text)
                log(f"[{name}] {text}")
        self._process.wait()  # so that others see at once that it is gone

    def ending(self) -> str | None:
        """See `Started.ending`."""
        code = self._process.poll()
        if code is None:
            return None
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def take_endpoint(self) -> LocalEndpoint | None:
        """Gives the driver's end of the line past the network to this process, for the caller to close; None at the next call."""
        result = self._endpoint
        self._endpoint = None
        return result

    def kill(self) -> None:
        """See `Started.kill`."""
        if (endpoint := self.take_endpoint()) is not None:
            endpoint.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(
                _LAST_LINES_S
            )  # what it has written last, and the file that it is read from

    def log_tail(self) -> Sequence[str]:
        """See `Started.log_tail`."""
        if self._process.poll() is not None:
            self._reader.join(_LAST_LINES_S)
        return list(self._tail)


def host_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process on this machine: the present one, with additions."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_wanted: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
_starter: list[tuple[int, threading.Thread]] = []
_starting = threading.Lock()


def _in_a_lasting_thread(call: Callable[[], Any]) -> Any:
    """Calls in a thread that lives as long as this process: Linux kills a host when the thread that started the host ends."""
    with _starting:
        if not _starter or _starter[-1][0] != os.getpid():
            thread = threading.Thread(target=_serve, name="ampjax-starts-hosts", daemon=True)
            thread.start()
            _starter.append((os.getpid(), thread))
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _wanted.put((call, answer))
    result = answer.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _serve() -> None:
    while True:
        call, answer = _wanted.get()
        try:
            answer.put(call())
        except BaseException as error:
            answer.put(error)
