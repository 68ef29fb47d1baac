"""Cores that devices and a host share, in virtual time. All active ones get an equal part of the cores, one core at most."""

from __future__ import annotations

from collections import deque

Job = tuple[float, int, int]
"""A device's job: nanoseconds that it takes with a core of its own, another device, and how many jobs that device must have ended before this one begins.

Without a job to wait for, these are its own device and 0."""


class Cores:
    """One host and some devices that work through their queues in order.

    Args:
      n_devices: Devices.
      n_cores: Cores; with one for each device and one for the host, none slows another down.

    Attributes:
      now_ns: The time, in nanoseconds.
    """

    def __init__(self, n_devices: int, n_cores: float):
        self._n_cores = n_cores
        self.now_ns = 0.0
        self._queues: list[deque[Job]] = [deque() for _ in range(n_devices)]
        self._left = [0.0] * n_devices
        self._issued = [0] * n_devices
        self._ended = [0] * n_devices

    def count_jobs(self, device: int) -> int:
        """Counts the jobs that a device has not ended."""
        return len(self._queues[device])

    @property
    def busy(self) -> bool:
        """Tells whether any device has a job."""
        return any(self._queues)

    def issue(
        self,
        device: int,
        ns: float,
        after: int | None = None,
    ) -> None:
        """Queues a job at a device.

        Args:
          device: The device's number.
          ns: Nanoseconds that the job takes with a core of its own.
          after: Another device, which must end all its jobs so far before this one begins; None for no such device.
        """
        queue = self._queues[device]
        if not queue:
            self._left[device] = ns
        other = device if after is None else after
        queue.append((ns, other, 0 if after is None else self._issued[other]))
        self._issued[device] += 1

    def work(self, ns: float) -> None:
        """Lets the host work, and the devices in parallel.

        Args:
          ns: Nanoseconds that the host's work takes with a core of its own.
        """
        while ns > 0:
            ns -= self._pass(host_ns=ns)

    def wait(self) -> None:
        """Lets the devices work until one of them ends a job, while the host does nothing."""
        ended = sum(self._ended)
        while self.busy and sum(self._ended) == ended:
            self._pass()

    def _pass(self, host_ns: float | None = None) -> float:
        """Lets time pass until a job, or the host's work, has ended; gives the nanoseconds of the host's work that are done."""
        busy = []
        for device, queue in enumerate(self._queues):
            if queue and self._may_run(queue[0]):
                busy.append(device)
        n = len(busy) + (host_ns is not None)
        rate = min(1.0, self._n_cores / n)
        least = min(
            [self._left[device] for device in busy] + ([host_ns] if host_ns is not None else [])
        )
        self.now_ns += least / rate
        for device in busy:
            self._left[device] -= least
            if self._left[device] <= 0:
                self._end(device)
        return least

    def _may_run(self, job: Job) -> bool:
        _, device, after = job
        return self._ended[device] >= after

    def _end(self, device: int) -> None:
        queue = self._queues[device]
        queue.popleft()
        self._ended[device] += 1
        if queue:
            self._left[device] = queue[0][0]
