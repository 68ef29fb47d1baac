"""The asyncio driver in virtual time: one thread that decides, issues ahead of devices or hosts, and shares the machine's cores with them.

On the paper's machine every worker decides for itself, which takes no time. On this machine a Python thread decides for all workers, in the
order in which the asyncio driver's tasks take turns. Messages travel on when a dispatch has been issued, and devices work through their
queues.
"""

from __future__ import annotations

from collections import deque

from ampjax.drivers.asyncio_driver import FENCE_EVERY
from ampjax.drivers.run import DriverLoop
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.simulation.cluster_cost import ClusterCost
from ampjax.simulation.profile_cost import HostedCost
from ampjax.simulation.shared_cores import Cores


class HostedDriver:
    """Drives a run in the virtual time of a machine with one host thread.

    Args:
      loop: The run; without an executor only control runs.
      cost: What each dispatch takes of the host and of its device.
      run_ahead: Dispatches that a worker may have issued before its device has done them, about.
    """

    def __init__(
        self,
        loop: DriverLoop,
        cost: HostedCost | ClusterCost,
        run_ahead: int = 64,
    ):
        self._loop = loop
        self._cost = cost
        self._run_ahead = max(run_ahead, 2 * FENCE_EVERY)
        self._spaces = loop.scheduler.plan.spaces
        self._cores = Cores(max(self._spaces) + 1, cost.cores)

    def run(self) -> int:
        """Runs until everything has ended.

        Returns:
          The time that has passed, in nanoseconds.

        Raises:
          DeadlockError: If nothing can move.
        """
        self._loop.settle()
        turns = deque(range(self._loop.scheduler.plan.workers))
        asleep: list[int] = []
        while turns:
            worker = turns.popleft()
            moved = self._turn(worker)
            asleep.append(worker)
            if moved or not (turns or self._loop.is_finished()):
                turns.extend(asleep)
                asleep.clear()
        while self._cores.busy:
            self._cores.wait()
        return round(self._cores.now_ns)

    def _turn(self, worker: int) -> bool:
        """Issues as many dispatches as the worker's task would before the next look at its device; tells whether there was any."""
        for issued in range(FENCE_EVERY):
            dispatch = self._loop.issue(worker)
            if dispatch is None:
                return issued > 0
            self._cores.work(self._cost.host_ns(dispatch))
            self._queue(dispatch)
            self._loop.done(dispatch)
        while self._cores.count_jobs(self._spaces[worker]) > self._run_ahead:
            self._cores.wait()
        return True

    def _queue(self, dispatch: Dispatch) -> None:
        """Queues a dispatch at its worker's device. A transfer waits for the device of its source."""
        device = self._spaces[dispatch.worker]
        source = -1
        if (
            dispatch.stage >= 0
            and (stage := self._loop.scheduler.plan.stages[dispatch.stage]).kind.is_transfer
        ):
            source = stage.ports[0].space
        if source in (device, -1):
            self._cores.issue(device, self._cost.device_ns(dispatch))
            return
        if (before := self._cost.source_ns(dispatch)) > 0:
            self._cores.issue(source, before)
        self._cores.issue(device, self._cost.device_ns(dispatch), source)
