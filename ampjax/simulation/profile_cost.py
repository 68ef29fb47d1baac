"""Cost models from a measured profile: machines like this one, where each worker decides for itself, or with one host thread."""

from __future__ import annotations

from dataclasses import dataclass

from ampjax.drivers.cost import FlopsCost
from ampjax.engine.make_launches import brings_updates
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.simulation.profile import Profile, timing_key, timing_key_with_updates, update_key


@dataclass(frozen=True)
class ProfileCost:
    """A cost model of devices as fast as the one that was measured; fully connected layers may run on faster devices.

    With `flops`, stages with fully connected layers take time by their operations, and everything else takes its measured time. The paper
    did the same for its table 3: its authors replaced such layers by waits and ran the rest (Appendix C).

    Args:
      plan: The plan; stages and nodes must have the names of those that were measured.
      profile: Measured times.
      flops: The cost of fully connected layers; None for measured times.
    """

    plan: Plan
    profile: Profile
    flops: FlopsCost | None = None

    def __call__(self, dispatch: Dispatch) -> int:
        """Nanoseconds that a dispatch takes."""
        if self.flops is not None and self.flops.has_layers(dispatch):
            return self.flops(dispatch)
        return round(_sum(self.plan, dispatch, self.profile, "times"))


@dataclass(frozen=True)
class HostedCost:
    """A cost model of the machine that was measured, with a single host thread as in the asyncio driver.

    This one Python thread decides and issues for all workers, and shares the cores with them.

    Args:
      plan: The plan; stages and nodes must have the names of those that were measured.
      profile: Measured times.
      cores: Cores of the machine.
    """

    plan: Plan
    profile: Profile
    cores: float

    def host_ns(self, dispatch: Dispatch) -> float:
        """The time for which a dispatch keeps the host busy.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        return self.issue_ns(dispatch) + self.control_ns(dispatch)

    def issue_ns(self, dispatch: Dispatch) -> float:
        """The time that a thread needs to call a dispatch's kernels.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        return _sum(self.plan, dispatch, self.profile, "issue")

    def control_ns(self, dispatch: Dispatch) -> float:
        """The time that the scheduler needs to decide on a dispatch.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        return sum(
            self.profile.ns(key, rows, "control") for key, rows in _run_by(self.plan, dispatch)
        )

    def device_ns(self, dispatch: Dispatch) -> float:
        """Computes the time that a worker's device needs for a dispatch, from its issue.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        return _sum(self.plan, dispatch, self.profile, "kernels")

    def source_ns(self, dispatch: Dispatch) -> float:
        """The time that a transfer needs of the device from which its rows come: 0, since the other device runs the kernel.

        Args:
          dispatch: The dispatch.

        Returns:
          Nanoseconds.
        """
        del dispatch
        return 0.0


def _sum(
    plan: Plan,
    dispatch: Dispatch,
    profile: Profile,
    part: str,
) -> float:
    """Sums the nanoseconds of a dispatch's stages and updates.

    Both in one kernel have a time of their own, where that was measured for as many rows, or for fewer and for more.
    """
    if dispatch.stage >= 0 and brings_updates(plan.stages[dispatch.stage], dispatch):
        both = timing_key_with_updates(plan, dispatch)
        sizes = getattr(profile, part).get(both, ())
        if sizes and min(sizes) <= dispatch.n_rows <= max(sizes):
            return profile.ns(both, dispatch.n_rows, part)
    updates = [(key, 1) for change in dispatch.changes if (key := update_key(change))]
    return sum(profile.ns(key, rows, part) for key, rows in _run_by(plan, dispatch) + updates)


def _run_by(
    plan: Plan,
    dispatch: Dispatch,
) -> list[tuple[str, int]]:
    """The key of the stage that a dispatch runs, and its rows. A sink computes nothing and is not measured."""
    is_measured = dispatch.stage >= 0 and not plan.stages[dispatch.stage].kind.is_sink
    if is_measured:
        return [(timing_key(plan, dispatch), dispatch.n_rows)]
    return []
