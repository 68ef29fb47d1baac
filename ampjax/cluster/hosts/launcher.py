"""Launchers start processes and know their endings: on this machine, in threads, or by Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ampjax.cluster.hosts.job import Job


class Started(Protocol):
    """One process that was started.

    Where it has `take_endpoint` as `LocalProcess` does, the driver talks to it past the network.
    """

    def ending(self) -> str | None:
        """The ending of the process, in words; None for a process that runs."""
        ...

    def kill(self) -> None:
        """Ends the process at once. Does nothing to a process that has ended."""
        ...

    def log_tail(self) -> Sequence[str]:
        """The last lines that the process has written, if known here."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    @property
    def host(self) -> str:
        """The address of this machine for the processes."""
        ...

    def start(
        self,
        jobs: Sequence[Job],
        main: bytes,
        environment: Mapping[str, str],
    ) -> Sequence[Started]:
        """Starts one process for each job. Returns before the processes do anything.

        Args:
          jobs: Their jobs.
          main: What they run, packed.
          environment: Variables of the environment that they have besides this process's.

        Returns:
          The processes, in order.

        Raises:
          HostError: If one can't be started; none is left then.
        """
        ...

    def close(self) -> None:
        """Frees the resources kept for processes, all of which have ended."""
        ...
