"""Who starts processes and knows how they end: on this machine, in threads, or Ray's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ampjax.cluster.hosts.job import Job


class Started(Protocol):
    """One process that was started.

    Where it has `take_endpoint` as `LocalProcess` does, the driver talks to it past the network.
    """

    def ending(self) -> str | None:
        """How it has ended, in words; None as long as it has not."""
        ...

    def kill(self) -> None:
        """Ends it at once. Does nothing if it has ended."""
        ...

    def log_tail(self) -> Sequence[str]:
        """The last lines that it has written, if they are known here."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    @property
    def host(self) -> str:
        """The address of this machine at which the processes can reach it."""
        ...

    def start(
        self,
        jobs: Sequence[Job],
        main: bytes,
        environment: Mapping[str, str],
    ) -> Sequence[Started]:
        """Starts one process for each job. Returns before they do anything.

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
        """Gives back what was kept for them. They have ended."""
        ...
