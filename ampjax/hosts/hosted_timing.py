"""Lets hosts time their launches, each by its own clock, and converts all times to the driver's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ampjax.cluster.wire.clock_offset import ClockMap, ClockReading, read_clock
from ampjax.engine.timing.measured import LAUNCH_TIMES, WAIT_BEGIN, WAIT_END, MeasuredHost
from ampjax.errors import HostError
from ampjax.hosts.fleet import Fleet
from ampjax.hosts.hosts import DRIVER
from ampjax.plan.planner import Plan


class HostedTiming:
    """Times the launches of hosts during a run.

    Args:
      plan: The plan.
      fleet: The hosts.
    """

    def __init__(self, plan: Plan, fleet: Fleet):
        self._plan = plan
        self._fleet = fleet
        self._clock: Callable[[], int] = int
        self._begun: list[ClockReading] = []
        self._sent: list[dict[str, int]] = []  # before, by host
        self._of_driver: list[tuple[int, int]] = []

    def begin(
        self,
        clock: Callable[[], int],
        every: int,
        most: int,
    ) -> None:
        """Lets hosts begin to time launches. Nothing is under way.

        Args:
          clock: The driver's clock, in nanoseconds.
          every: About one launch in so many is timed; 1 times all.
          most: So many launches are kept of each host, at most.

        Raises:
          HostError: If a host has failed.
        """
        self._clock = clock
        self._begun = self._read_clocks()
        self._of_driver = [link.n_bytes for link in self._fleet.links]
        sent = []
        for said, _ in self._fleet.ask(
            self._fleet.everyone,
            "time",
            every=every,
            most=most,
        ):
            sent.append(said)
        self._sent = sent

    def finish(self) -> Sequence[MeasuredHost]:
        """Takes the measurements of hosts; waits until everything sent has been done.

        Returns:
          What each has measured, by the driver's clock; nothing, if one of them has failed.
        """
        try:
            answers = self._fleet.ask(self._fleet.everyone, "times")
            ended = self._read_clocks()
        except HostError:  # the run ends with an error that tells more
            return []
        result = []
        for host in range(len(answers)):
            result.append(
                self._convert(
                    host,
                    ClockMap(self._begun[host], ended[host]),
                    *answers[host],
                )
            )
        return result

    def _read_clocks(self) -> list[ClockReading]:
        return [
            read_clock(
                lambda host=host: self._fleet.ask([host], "clock")[0][0],
                self._clock,
            )
            for host in self._fleet.everyone
        ]

    def _convert(
        self, host: int, clocks: ClockMap, said: Any, arrays: Sequence[Any]
    ) -> MeasuredHost:
        sent, done_ns, n_dropped = said
        launches, waits = (array.copy() for array in arrays)
        launches[:, LAUNCH_TIMES] = clocks.here(launches[:, LAUNCH_TIMES])
        waits[:, [WAIT_BEGIN, WAIT_END]] = clocks.here(waits[:, [WAIT_BEGIN, WAIT_END]])
        links = self._fleet.links
        to_host, from_host = self._of_driver[host]
        link = links[host]
        of_peers = {}
        for peer, n in sent.items():
            of_peers[links[int(peer)].name] = n - self._sent[host][peer]
        workers = tuple(
            w for w in range(self._plan.workers) if self._fleet.layout.of_worker(w) == host
        )
        return MeasuredHost(
            link.name,
            link.place,
            workers,
            clocks.offset_ns,
            clocks.error_ns,
            launches,
            waits,
            int(clocks.here(done_ns)),
            n_dropped,
            {DRIVER: link.n_bytes[1] - from_host, **of_peers},
            link.n_bytes[0] - to_host,
        )
