"""Cost model of workers on several hosts: what this machine would take, and what it costs that launches and rows travel."""

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
    """What travelling costs processors; `python -m experiments calibrate --hosts 2` measures it.

    The defaults are those of two processes on a virtual machine with two cores: sockets of this machine, encrypted.

    Args:
      launch_driver_ns: Nanoseconds of the driver to write a launch into a batch, to send it, and to hear that it is done.
      launch_host_ns: Nanoseconds of a host to read it.
      message_ns: Nanoseconds of either host for a message with rows that cross.
      byte_ns: Nanoseconds of either end for each byte of them, and of pumped payloads.

    Raises:
      SettingsError: If one is negative or not finite.
    """

    launch_driver_ns: float = 30_000.0
    launch_host_ns: float = 100_000.0
    message_ns: float = 80_000.0
    byte_ns: float = 1.0

    def __post_init__(self) -> None:
        wrong = {name: ns for name, ns in vars(self).items() if not 0 <= ns < math.inf}
        if wrong:
            raise SettingsError(
                "LinkTimes", "numbers of nanoseconds of at least 0", f"{wrong}", "0 stands for what takes no time."
            )

    def crossing_ns(self, n_bytes: int) -> float:
        """The time that rows take of the host that sends them, and as much of the one that receives them.

        Args:
          n_bytes: How many bytes they are.

        Returns:
          Nanoseconds.
        """
        return self.message_ns + n_bytes * self.byte_ns


@dataclass(frozen=True)
class ClusterCost:
    """Hosts like the machine that was measured, one for each memory space, and a driver that decides for all of them (decision 26).

    The driver takes its time for control and to send launches. A host issues and computes with one thread, in the order of decision.

    Args:
      plan: The plan; stages and nodes must have the names of those that were measured.
      profile: Measured times.
      cores: Cores of all machines together. With one for each host and one for the driver, none slows another down.
      link: What travelling costs.
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
        n_bytes = None if dispatch.stage < 0 else self.plan.stages[dispatch.stage].crossing_bytes
        return 0.0 if n_bytes is None else self.link.crossing_ns(dispatch.n_rows * n_bytes)

    def _pumped_bytes(self, dispatch: Dispatch) -> int:
        """Bytes of the pumped payloads that a dispatch moves on their way forth."""
        if dispatch.stage < 0 or dispatch.direction == BACKWARD:
            return 0
        stage = self.plan.stages[dispatch.stage]
        return 0 if stage.crossing_bytes is not None else dispatch.n_rows * (stage.moved_bytes or 0)

    @property
    def _here(self) -> HostedCost:
        return HostedCost(self.plan, self.profile, self.cores)
