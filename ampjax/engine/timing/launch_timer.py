"""Times launches in the process that carries launches out, for a driver elsewhere. Keeps numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampjax.engine.kernels.launch import Launch
from ampjax.engine.timing import measured
from ampjax.engine.timing.compilation_count import compilations
from ampjax.engine.timing.device_times import Timing
from ampjax.engine.timing.sampler import LATEST_WIDTH, Sampler, WaitedFor

_WIDTH = measured.COMPILED + 1


class LaunchTimer:
    """Notes when launches are carried out.

    Args:
      fences: Say how far this process's devices are.
      clock: Gives the time, in nanoseconds.
      every: About one launch in so many is timed; 1 times all.
      most: So many launches are kept, at most.
    """

    def __init__(
        self,
        fences: WaitedFor,
        clock: Callable[[], int],
        every: int,
        most: int,
    ):
        self._fences = fences
        self.clock = clock
        self._most = most
        self._n_dropped = 0
        self._sampler = Sampler(fences, clock, every)
        self._rows: list[int] = []  # flat, like `_waits`: see decision 15
        self._waits: list[int] = []

    def wants(self, launch: Launch) -> bool:
        """Whether a launch may be timed, and so must be the first of the launches that are issued together."""
        return self._sampler.wants(launch, self.clock())

    def carry_out(
        self,
        launches: Sequence[Launch],
        run: Callable[[], int],
        change: Callable[[int], None],
    ) -> None:
        """Lets launches be issued, and notes the times of issue.

        Args:
          launches: Launches that coalesce.
          run: Issues their kernels. Gives how many of the last one's parameter changes these make.
          change: Issues the last one's other parameter changes, from one on.
        """
        self._sampler.before_kernels(launches)
        n_changed = run()
        self._sampler.after_kernels(launches)
        change(n_changed)
        self._sampler.after_changes(launches)

    def read(
        self,
        launch: Launch,
        read: Callable[[], Any],
    ) -> Any:
        """Lets rows be read back, which waits for the rows, and notes the time taken.

        Args:
          launch: The launch, with the worker on whose device they are.
          read: Reads them.

        Returns:
          What it gave.
        """
        self._fences.wait_for(launch.worker)
        begin_ns = self.clock()
        compiled = compilations()
        rows = read()
        end_ns = self.clock()
        timing = Timing(
            begin_ns,
            True,
            (end_ns - begin_ns, 0),
            compilations() > compiled,
        )
        self._sampler.latest += launch, begin_ns, begin_ns, timing
        return rows

    def note_wait(self, worker: int, begin_ns: int) -> None:
        """Notes that a worker has waited for another host's rows until now."""
        if len(self._waits) < 3 * self._most:
            self._waits += worker, begin_ns, self.clock()

    def collect(self) -> None:
        """Keeps the needed numbers of the latest launches, which can then be forgotten."""
        for launch, start_ns, changes_ns, timing in zip(
            *[iter(self._sampler.take())] * LATEST_WIDTH, strict=True
        ):
            if len(self._rows) >= _WIDTH * self._most:
                self._n_dropped += 1
                continue
            self._rows += launch.number, launch.stage, bool(launch.changes), start_ns, changes_ns
            if timing is None:
                self._rows += (0,) * 6
            else:
                self._rows += 1, timing.idle_ns, timing.waited, *timing.costs, timing.compiled

    def take(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Takes all measurements.

        Returns:
          `MeasuredHost.launches`, its `waits`, by this clock, and how many launches were not kept.
        """
        self.collect()
        rows = (
            np.array(self._rows, np.int64).reshape(-1, _WIDTH),
            np.array(self._waits, np.int64).reshape(-1, 3),
        )
        self._rows = []
        self._waits = []
        return *rows, self._n_dropped
