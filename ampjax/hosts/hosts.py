"""The users' choice of hosts, and the information on hosts that users can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ampjax.cluster.hosts.launcher import Launcher
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.hosts.ray_launcher import launcher_for
from ampjax.cluster.hosts.resources import Device, RemoteDevice, Resources, find_resources
from ampjax.errors import SettingsError
from ampjax.utils.setting_checks import at_least, one_of

KINDS = "processes", "threads"
"""The kinds of hosts."""

DRIVER = "driver"
"""What the trainer's own process is called."""


@dataclass(frozen=True)
class Hosts:
    """The hosts on which a trainer's workers run; each host has the memory spaces of some workers.

    Args:
      n: The number of hosts.
      kind: `processes` of this machine; or `threads` of this process, which start at once but are no faster: for tests, and to look at
        what a run on several hosts does.
      spaces: Memory spaces of all hosts together; workers are shared out evenly among them. None for one on each host. A recording can be
        replayed on any number of hosts with as many spaces.
      launcher: The launcher that starts the processes, such as `ampjax.cluster.RayLauncher()`; None for this machine.
      resources: The machines of a resource file (see `from_resources`): one host on each, with a memory space for each of its devices.

    Raises:
      SettingsError: If an argument is out of its range.
    """

    n: int
    kind: str = "processes"
    spaces: int | None = None
    launcher: Launcher | None = field(default=None, repr=False)
    resources: Resources | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        at_least("hosts", self.n, 1)
        one_of("hosts, kind", self.kind, KINDS)
        if self.launcher is not None and self.kind != "processes":
            raise SettingsError(
                "hosts, launcher",
                "None: threads are of this process",
                "one",
                "Leave one of both out.",
            )
        if self.spaces is not None:
            at_least("hosts, spaces", self.spaces, self.n)
        if self.resources is not None:
            self._require_alike(self.resources)
        if DRIVER in self.names:
            fix = "Give that machine another name."
            raise SettingsError(
                "hosts",
                f"names other than `{DRIVER}`, the trainer's own process",
                f"`{DRIVER}`",
                fix,
            )

    def _require_alike(self, resources: Resources) -> None:
        """Checks that nothing contradicts the resources.

        Raises:
          SettingsError: If something does, and they differ.
        """
        n, kind, n_spaces = _parts(resources)
        for where, expected, got, is_right in (
            ("hosts", f"{n}, one on each machine", f"{self.n}", self.n == n),
            ("hosts, kind", f"`{kind}`, as of the resources", f"`{self.kind}`", self.kind == kind),
            (
                "hosts, spaces",
                f"{n_spaces}, one for each device",
                f"{self.spaces}",
                self.spaces == n_spaces,
            ),
            (
                "hosts, launcher",
                "None: addresses say who starts processes",
                "one",
                self.launcher is None,
            ),
        ):
            if not is_right:
                raise SettingsError(where, expected, got, "Write `Hosts.from_resources(...)`.")

    @classmethod
    def from_resources(
        cls,
        info: str | Path | Mapping[str, Any] | Resources,
    ) -> Hosts:
        """The hosts of a resource file, the same file that `ampjax.parallel.get_runner` takes: one on each machine, with the machine's name.

        On machines with an `address` hosts are processes, started here or by Ray. Without addresses they are threads of this process, each
        with some of its devices. `servers` has no meaning for a trainer, but not all machines may have 0 of them.

        Args:
          info: A file, what one holds, or resources.

        Raises:
          SettingsError: If the file can't be read, is no such file, or names a machine or a device twice.
        """
        resources = find_resources(info)
        return cls(*_parts(resources), resources=resources)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hosts: the names of machines in the resources, or `host0`, `host1`, ..."""
        if self.resources is None:
            return tuple(f"host{number}" for number in range(self.n))
        return tuple(machine.host for machine in self.resources.machines)

    @property
    def make_launcher(self) -> Callable[[], Launcher]:
        """Makes a launcher of processes."""
        if self.resources is not None:
            return launcher_for([machine.address for machine in self.resources.machines])
        launcher = self.launcher
        return LocalLauncher if launcher is None else lambda: launcher

    @property
    def devices(self) -> tuple[tuple[Device, ...], ...]:
        """The devices of each host, if resources say which: numbers, if hosts are processes."""
        machines = () if self.resources is None else self.resources.machines
        result = []
        for m in machines:
            result.append(tuple(d.number if isinstance(d, RemoteDevice) else d for d in m.devices))
        return tuple(result)

    @property
    def n_spaces(self) -> int:
        """Memory spaces of all hosts together."""
        return self.spaces or self.n

    @property
    def host_of_space(self) -> tuple[int, ...]:
        """The host of each memory space: the first spaces are on the first host."""
        if self.resources is not None:
            return self.resources.homes
        return tuple(space * self.n // self.n_spaces for space in range(self.n_spaces))

    def space_of_workers(self, workers: int) -> list[int]:
        """The memory space of each worker: the first workers have the first space.

        Args:
          workers: The number of workers, at least that of spaces.

        Returns:
          The memory space's number for each worker.
        """
        return [worker * self.n_spaces // workers for worker in range(workers)]

    def workers_of_names(self, workers: int) -> dict[str, list[int]]:
        """The workers of each host, by its name.

        Args:
          workers: The number of workers.
        """
        result: dict[str, list[int]] = {name: [] for name in self.names}
        for worker, space in enumerate(self.space_of_workers(workers)):
            result[self.names[self.host_of_space[space]]].append(worker)
        return result


def _parts(resources: Resources) -> tuple[int, str, int]:
    """The number of hosts on the machines of resources, their kind, and the number of their memory spaces."""
    kind = "processes" if resources.has_processes else "threads"
    return len(resources.machines), kind, len(resources.devices)


def hosts_from(hosts: int | str | Path | Mapping[str, Any] | Resources | Hosts) -> Hosts:
    """The hosts that a user asks for.

    Args:
      hosts: Their number, a resource file or what one holds, or hosts.

    Raises:
      SettingsError: As `Hosts`.
    """
    if isinstance(hosts, Hosts):
        return hosts
    is_number = (
        isinstance(hosts, str) and hosts.strip().isdigit()
    )  # which is refused, with what to do
    if isinstance(hosts, str | Path | Mapping | Resources) and not is_number:
        return Hosts.from_resources(hosts)
    return Hosts(hosts)  # type: ignore[arg-type]


class HostPlace(NamedTuple):
    """The place of a host.

    Args:
      text: In words.
      process: The number of its process on its machine.
    """

    text: str
    process: int


@dataclass(frozen=True)
class HostState:
    """The state of a host.

    Args:
      name: What errors call it.
      place: Where it is.
      process: The number of its process on its machine.
      state: `running`, `failed` or `ended`.
      nodes: The nodes whose parameters it keeps.
      bytes_sent: Bytes that the driver has sent to it.
      bytes_received: Bytes that have come back. Rows between hosts do not come by the driver.
    """

    name: str
    place: str
    process: int
    state: str
    nodes: tuple[str, ...]
    bytes_sent: int
    bytes_received: int
