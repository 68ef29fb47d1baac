"""The users' choice of hosts, and the information on hosts that users can read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ampjax.cluster.hosts.launcher import Launcher
from ampjax.errors import SettingsError
from ampjax.utils.setting_checks import at_least, one_of

KINDS = "processes", "threads"
"""The kinds of hosts."""


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

    Raises:
      SettingsError: If an argument is out of its range.
    """

    n: int
    kind: str = "processes"
    spaces: int | None = None
    launcher: Launcher | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        at_least("hosts", self.n, 1)
        one_of("hosts, kind", self.kind, KINDS)
        if self.launcher is not None and self.kind != "processes":
            raise SettingsError("hosts, launcher", "None: threads are of this process", "one", "Leave one of both out.")
        if self.spaces is not None:
            at_least("hosts, spaces", self.spaces, self.n)

    @property
    def n_spaces(self) -> int:
        """Memory spaces of all hosts together."""
        return self.spaces or self.n

    @property
    def host_of_space(self) -> tuple[int, ...]:
        """The host of each memory space: the first spaces are on the first host."""
        return tuple(space * self.n // self.n_spaces for space in range(self.n_spaces))

    def space_of_workers(self, workers: int) -> list[int]:
        """The memory space of each worker: the first workers have the first space.

        Args:
          workers: The number of workers, at least that of spaces.

        Returns:
          The memory space's number for each worker.
        """
        return [worker * self.n_spaces // workers for worker in range(workers)]


class Place(NamedTuple):
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
