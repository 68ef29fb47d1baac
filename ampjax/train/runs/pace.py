"""The pace of a run, which decides when the scheduler is asked and tells the time: this machine, a simulated machine, or a recording."""

from __future__ import annotations

import time
from typing import Protocol

from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.cost import Cost
from ampjax.drivers.replay_driver import Follower, ReplayDriver
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.trace.trace import Trace
from ampjax.train.checkpoints.position import Position


class Pace(Protocol):
    """Drives a loop to its end and tells the time."""

    @property
    def over(self) -> bool:
        """Tells whether no more passes can be run."""
        ...

    async def drive(self, loop: DriverLoop, trace: Trace | None) -> None:
        """Runs a loop to its end.

        Args:
          loop: The scheduler, the executor and the data.
          trace: Filled with where each worker's time goes.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
        """
        ...

    def now_s(self) -> float:
        """Seconds on the clock that the run goes by."""
        ...


class RealTime:
    """Runs as fast as this machine can.

    Args:
      run_ahead: Dispatches that may be issued to a device before it has done them, about.
    """

    over = False

    def __init__(self, run_ahead: int):
        self._run_ahead = run_ahead

    async def drive(self, loop: DriverLoop, trace: Trace | None) -> None:
        """Runs a loop to its end.

        Args:
          loop: The scheduler, the executor and the data.
          trace: Filled with where each worker's time goes.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
        """
        await AsyncioDriver(loop, self._run_ahead, trace).run()

    def now_s(self) -> float:
        """Seconds on this machine's clock."""
        return time.perf_counter()


class VirtualTime:
    """Runs in the virtual time of a simulated machine; numbers are computed on this one.

    Args:
      cost: How long dispatches take on the simulated machine.
      position: Holds the simulated machine's clock.
    """

    over = False

    def __init__(self, cost: Cost, position: Position):
        self._cost = cost
        self._position = position
        position.is_virtual = True

    async def drive(self, loop: DriverLoop, trace: Trace | None) -> None:
        """Runs a loop to its end.

        Args:
          loop: The scheduler, the executor and the data.
          trace: Filled with where each worker's time goes.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
        """
        driver = VirtualDriver(loop, self._cost, trace, self._position.virtual_ns)
        await driver.run_beside()
        self._position.virtual_ns = driver.now_ns

    def now_s(self) -> float:
        """Seconds on the simulated machine's clock."""
        return self._position.virtual_ns / 1e9


class Recorded:
    """The pace of a recording, on this machine's clock.

    Args:
      follower: Where in the recording the run is.
      run_ahead: Dispatches that may be issued to a device before it has done them, about.
    """

    def __init__(self, follower: Follower, run_ahead: int):
        self._follower = follower
        self._run_ahead = run_ahead

    @property
    def over(self) -> bool:
        """Tells whether the recording holds no more passes."""
        return self._follower.over

    async def drive(self, loop: DriverLoop, trace: Trace | None) -> None:
        """Runs a loop to its end, or to where the recording ends.

        Args:
          loop: The scheduler, the executor and the data.
          trace: None: replays are not traced.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
          ReplayError: At the first decision that differs.
          RecordingEnds: If the recording ends before the pass.
        """
        await ReplayDriver(loop, self._follower, self._run_ahead).run()

    def now_s(self) -> float:
        """Seconds on this machine's clock."""
        return time.perf_counter()
