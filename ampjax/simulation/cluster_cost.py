"""Cost model of workers on several hosts: this machine's times, and the cost of launches and rows on their way."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampjax.errors import SettingsError
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import BACKWARD, Dispatch
from ampjax.simulation.profile import Profile
from ampjax.simulation.profile_cost import HostedCost


@dataclass(frozen=True)
class LinkTimes:
    """The processor time of sending launches and rows between processes; measured by `python -m experiments calibrate --hosts 2`.

    The defaults were measured with two processes on one virtual machine with two cores, over encrypted sockets.

    Args:
      launch_driver_ns: Nanoseconds that the driver needs to write a launch into a batch, to send it, and to receive its acknowledgement.
      launch_host_ns: Nanoseconds that a host needs to read a launch.
      message_ns: Nanoseconds that the sender, and also the receiver, needs for a message with rows.
      byte_ns: Nanoseconds that each of the two needs for a byte of these rows, or of pumped payloads.

    Raises:
      SettingsError: If one is negative or not finite.
    """

    launch_driver_ns: float = 30_000.0
    launch_host_ns: float = 100_000.0
    message_ns: float = 80_000.0
    byte_ns: float = 1.0

    def __post_init__(self) -> None:
        wrong = {}
        for name, ns in vars(self).items():
            if not 0 <= ns < math.inf:
                wrong[name] = ns
        if wrong:
            raise SettingsError(
                "LinkTimes",
                "numbers of nanoseconds of at least 0",
                f"{wrong}",
                "0 stands for what takes no time.",
            )

    def crossing_ns(self, n_bytes: int) -> float:
        """Computes the sending host's time for rows; the receiving host needs as much.

        Args:
          n_bytes: How many bytes they are.

        Returns:
          Nanoseconds.
        """
        return self.message_ns + n_bytes * self.byte_ns


@dataclass(frozen=True)
class ClusterCost:
    """A cost model of several hosts, each like the measured machine, and of one driver that decides for all hosts (decision 26).

    There is a host for each memory space. The driver needs time for control and for sending launches. A host issues and computes with one
    thread, in the order in which launches were decided.

    Args:
      plan: The plan; stages and nodes must have the names of those that were measured.
      profile: Measured times.
      cores: Cores of all machines together. With one for each host and one for the driver, none slows another down.
      link: The times for launches and rows that travel.
    """

    plan: Plan
    profile: Profile
    cores: float
    link: LinkTimes = LinkTimes()

    def host_ns(self, dispatch: Dispatch) -> float:
        """The time for which a dispatch keeps the driver busy; pumped payloads come from there.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        return (
            self._here.control_ns(dispatch)
            + self.link.launch_driver_ns
            + self._pumped_bytes(dispatch) * self.link.byte_ns
        )

    def device_ns(self, dispatch: Dispatch) -> float:
        """The time that the host of its worker needs for a dispatch.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        here = self._here
        crossing = self.source_ns(dispatch)
        received = self.link.launch_host_ns + self._pumped_bytes(dispatch) * self.link.byte_ns
        return received + here.issue_ns(dispatch) + (crossing or here.device_ns(dispatch))

    def source_ns(self, dispatch: Dispatch) -> float:
        """The time that a transfer needs of the host from which its rows come; 0 for any other dispatch.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        if dispatch.stage < 0:
            n_bytes = None
        else:
            n_bytes = self.plan.stages[dispatch.stage].crossing_bytes
        if n_bytes is None:
            return 0.0
        return self.link.crossing_ns(dispatch.n_rows * n_bytes)

    def _pumped_bytes(self, dispatch: Dispatch) -> int:
        """Bytes of the pumped payloads that a dispatch moves on their way forth."""
        if dispatch.stage < 0 or dispatch.direction == BACKWARD:
            return 0
        stage = self.plan.stages[dispatch.stage]
        if stage.crossing_bytes is not None:
            return 0
        return dispatch.n_rows * (stage.moved_bytes or 0)

    @property
    def _here(self) -> HostedCost:
        return HostedCost(self.plan, self.profile, self.cores)
