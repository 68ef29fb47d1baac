"""All processes of a run, from the runner's side: started together, asked, watched and ended together.

If one of them is lost, the others are of no use: what it held is gone, and they have moved on. So all end, and are started anew.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ampjax.cluster.hosts.launcher import Launcher
from ampjax.cluster.hosts.packed_programs import pack_program
from ampjax.cluster.hosts.resources import Resources
from ampjax.cluster.hosts.spawn_hosts import HostOptions, SpawnedHosts, spawn
from ampjax.cluster.wire.channel import wait_any
from ampjax.cluster.wire.message import Message
from ampjax.errors import AmpError, HostDiedError, HostError
from ampjax.parallel.workers.lost_processes import RESTORE, cause_of
from ampjax.parallel.workers.worker_main import main
from ampjax.parallel.workers.worker_messages import TREES
from ampjax.parallel.workers.worker_program import WorkerProgram
from ampjax.sparse.servers.process import Begun, server_environment
from ampjax.utils.interrupts import uninterrupted

OnQuestion = Callable[[int, Message], None]
"""Takes a server's number, and what it asks."""


@dataclass(frozen=True)
class ProcessState:
    """The state of one process of a runner.

    Args:
      name: What errors and logs call it.
      machine: The name of its machine in the resources.
      role: `server` or `worker`.
      process: Its process's id there; None before it is started.
      state: `not started`, `running`, or how it has ended.
    """

    name: str
    machine: str
    role: str
    process: int | None
    state: str


class ProcessGroup:
    """The servers and workers of a runner.

    It has more than 15 methods and twelve attributes, since starting, asking and ending happen under one lock: what one of them finds lost the others must know.

    Args:
      resources: The machines.
      make_launcher: Makes what starts the processes, each time that they are.
      is_sync: Whether workers step together, and so join each other.
    """

    def __init__(
        self,
        resources: Resources,
        make_launcher: Callable[[], Launcher],
        is_sync: bool = True,
    ):
        machines = resources.machines
        self._n_servers = len(resources.servers)
        self._make_launcher = make_launcher
        self._names = [f"server-{i}" for i in range(self._n_servers)]
        self._names += [f"worker-{i}" for i in range(len(resources.homes))]
        result = []
        for machine in (*resources.servers, *resources.homes):
            result.append(machines[machine].host)
        self._machines = result
        self._devices = tuple(device.number for device in resources.devices)
        self._is_sync = is_sync
        self._lock = threading.RLock()
        self._program = b""
        self._epoch = 0
        self._n_asked = 0
        self._asked_before = 0  # the last number of those that were started before
        self._hosts: SpawnedHosts | None = None
        self._inbox: dict[int, collections.deque[Any]] = {}
        self._ended: dict[int, str] = {}
        self._why = ""
        self._is_closed = False
        self._on_question: Callable[[], OnQuestion | None] = lambda: None

    @property
    def n_workers(self) -> int:
        """The number of workers."""
        return len(self._names) - self._n_servers

    @property
    def is_lost(self) -> bool:
        """Tells whether all processes are gone, and others could be started."""
        return self._hosts is None and not self._is_closed

    @property
    def states(self) -> list[ProcessState]:
        """The state of each process."""
        return [self._state(number) for number in range(len(self._names))]

    def _state(self, number: int) -> ProcessState:
        role = "server" if number < self._n_servers else "worker"
        name = self._names[number]
        machine = self._machines[number]
        if self._hosts is None:
            return ProcessState(
                name,
                machine,
                role,
                None,
                self._ended.get(number, "not started"),
            )
        host = self._hosts[number]
        return ProcessState(
            name,
            machine,
            role,
            host.process,
            host.started.ending() or "running",
        )

    # ---- start and end -----------------------------------------------------------------------------------------------

    def carry(self, program: WorkerProgram, on_question: OnQuestion) -> None:
        """Receives the program from which workers are made.

        Args:
          program: It travels when processes are started.
          on_question: A method that answers what a server asks while it works for a worker.

        Raises:
          SettingsError: If something in it can't travel.
        """
        self._program = pack_program(program, "the loss function and the optimizer")
        self._on_question = weakref.WeakMethod(
            on_question
        )  # its object ends the processes when nobody holds it

    def begin_server(self, number: int) -> Begun:
        """Starts all processes, if they do not run, and returns the server of a number.

        Raises:
          HostError: If one can't be started.
        """
        hosts = self.start()
        return Begun(
            hosts[number],
            functools.partial(self._end_if, hosts),
            functools.partial(self._watch, hosts),
        )

    def start(self) -> SpawnedHosts:
        """Starts all processes, if they do not run.

        Returns:
          The processes: servers and then workers.

        Raises:
          HostError: If one can't be started, or they were closed.
        """
        with self._lock:
            self._require_open()
            if self._hosts is not None and all(host.alive for host in self._hosts):
                return self._hosts
            self.end()
            self._epoch = self._epoch + 1
            self._asked_before = self._n_asked
            options = HostOptions(
                tuple(self._names),
                environment=_environment(),
                epoch=self._epoch,
            )
            program = functools.partial(
                main,
                n_servers=self._n_servers,
                devices=self._devices,
                is_sync=self._is_sync,
                program=self._program,
            )
            self._hosts = spawn(
                len(self._names),
                program,
                options,
                self._make_launcher(),
            )
            self._inbox = {worker: collections.deque() for worker in range(self.n_workers)}
            self._ended.clear()
            return self._hosts

    def _end_if(self, hosts: SpawnedHosts) -> None:
        with self._lock:
            if self._hosts is hosts:  # else others have been started since
                self.end()

    def close(self) -> None:
        """Ends all processes, and starts none any more."""
        with self._lock:
            self._is_closed = True
            self.end()

    def end(self, why: str = "they were ended") -> None:
        """Ends all processes at once.

        Args:
          why: What errors say from now on, unless one of them has ended by itself.
        """
        with self._lock:
            hosts = self._hosts
            self._hosts = None
            if hosts is not None:
                self._why = why
                ended = {}
                for i, host in enumerate(hosts):
                    ended[i] = host.started.ending() or "ended with the others"
                self._ended = ended
                for host in reversed(
                    hosts
                ):  # the first worker last: its end would let the others write of theirs
                    host.kill()
                hosts.close()

    # ---- messages ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Holds Ctrl-C back from messages that belong together: a worker that has begun a step waits there for all others.

        What cuts them in two all the same, such as a second Ctrl-C, ends all processes.
        """
        with uninterrupted():
            try:
                yield
            except AmpError:
                raise
            except BaseException as error:
                self.end(f"{type(error).__name__} in the midst of a message")
                raise

    def tell(self, what: Any) -> None:
        """Sends all workers the same message, which has no answer.

        Raises:
          HostError: If a process has ended.
        """
        message = TREES.pack("work", what)
        with self.exchange():
            for worker in range(self.n_workers):
                self._send(worker, message)

    def tell_each(self, whats: Sequence[Any]) -> None:
        """Tells each worker something.

        Args:
          whats: By worker, its message.

        Raises:
          HostError: If a process has ended.
        """
        messages = [TREES.pack("work", what) for what in whats]
        with self.exchange():
            for worker, message in enumerate(messages):
                self._send(worker, message)

    def tell_one(self, worker: int, what: Any) -> None:
        """Tells one worker something.

        Raises:
          HostError: If its process has ended.
        """
        with self.exchange():
            self._send(worker, TREES.pack("work", what))

    def ask(
        self,
        make: Callable[[int], Any],
        everyone: bool = False,
    ) -> Any:
        """Asks the first worker, and lets the others do the same.

        Args:
          make: Makes the question of its number.
          everyone: Whether the others do something for it.

        Returns:
          The first worker's answer.

        Raises:
          HostError: If a process has ended.
        """
        self._n_asked += 1
        question = make(self._n_asked)
        with self.exchange():
            if everyone:
                self.tell(question)
            else:
                self._send(0, TREES.pack("work", question))
            (answer,) = self.answers(self._n_asked, [0])
        return answer.value

    def next_number(self) -> int:
        """A number for a step: none comes twice."""
        self._n_asked += 1
        return self._n_asked

    def answers(
        self,
        number: int,
        workers: Sequence[int],
    ) -> list[Any]:
        """Waits for answers. Meanwhile questions of servers are answered, and all processes are watched.

        Args:
          number: What the answers are to; others of the same workers are left over from what has failed.
          workers: Of which workers.

        Returns:
          Their answers.

        Raises:
          HostError: If a process has ended, or an error was raised there.
        """
        hosts = self._running()
        answers = {}
        if number <= self._asked_before:
            raise HostDiedError(
                "runner", "an answer", "none: its processes were lost, and others started", RESTORE
            )
        while True:
            for worker in workers:
                while worker not in answers and self._inbox[worker]:
                    answer = self._inbox[worker].popleft()
                    answers |= {worker: answer} if answer.number == number else {}
            if len(answers) == len(workers):
                return [answers[worker] for worker in workers]
            self._take_in(hosts)

    def _take_in(self, hosts: SpawnedHosts) -> None:
        """Waits until some messages have come, and sorts them."""
        numbers = {host.channel: i - self._n_servers for i, host in enumerate(hosts)}
        try:
            for channel in wait_any(list(numbers)):
                message = channel.receive(0)
                worker = numbers[channel]
                if message is not None and worker >= 0:
                    self._inbox[worker].append(TREES.unpack(message))
                elif message is not None and (answer_question := self._on_question()) is not None:
                    answer_question(worker + self._n_servers, message)
        except HostError as error:
            raise self._failure(error) from None

    def _watch(self, hosts: SpawnedHosts) -> None:
        """Raises if a worker has been lost, for which a server may be waiting. Servers are asked by somebody else just now."""
        if self._hosts is not hosts:
            return
        workers = hosts[self._n_servers :]
        try:
            for worker, host in enumerate(workers):
                if (message := host.channel.receive(0)) is not None:
                    self._inbox[worker].append(TREES.unpack(message))
        except HostError as error:
            raise self._failure(error) from None

    def _send(self, worker: int, message: Message) -> None:
        try:
            self._running()[self._n_servers + worker].channel.send(message)
        except HostError as error:
            raise self._failure(error) from None

    def _require_open(self) -> None:
        if self._is_closed:
            fix = "Make another runner, and restore the last checkpoint there."
            raise HostDiedError("runner", "its processes", "none: it was closed", fix)

    def _running(self) -> SpawnedHosts:
        self._require_open()
        if self._hosts is None:
            lost = ", ".join(
                f"{self._names[i]}: {text}"
                for i, text in self._ended.items()
                if "with the others" not in text
            )
            raise HostDiedError("runner", "its processes", f"none ({lost or self._why})", RESTORE)
        return self._hosts

    def _failure(self, error: HostError) -> HostError:
        """The error that names the process that was lost first, as far as this is known. All processes are ended then."""
        places = []
        for name, machine in zip(self._names, self._machines, strict=True):
            places.append(f"{name} on machine `{machine}`")
        cause = cause_of(error, self._running(), places)
        self.end()
        return cause


def _environment() -> dict[str, str]:
    """Builds the processes' environment. Servers choose the CPU by themselves."""
    result = server_environment()
    if jax.default_backend() != "cpu":
        del result["JAX_PLATFORMS"]
    return result
