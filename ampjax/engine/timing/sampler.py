"""Chooses the launches to time, so that little time is lost, and notes when all launches were issued.

It is used where launches are issued: by a driver for the devices of its own process (`drivers.sampling_timer`), and by a host for its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ampjax.engine.timing.compilation_count import compilations
from ampjax.engine.timing.device_times import Timing

EACH = 2
"""Launches of each stage, direction and size that are timed soon after they first come."""

SHARE = 0.005
"""The part of a run's time, about, that may be lost by waiting for launches that are timed."""

CREDIT_NS = 4_000_000
"""What may be lost before that, so that a short run has something to go by."""

TRIES = 4, 32
"""How often a launch that should be timed is skipped because the device is at work: one of the first few of its kind, and a later one. To
wait until the device has caught up costs the
host its lead, which comes back slowly."""

APART = 17
"""Launches between two such tries. So at most one of those that are decided together is tried, and in a schedule that repeats it is not
always the same one."""

LATEST_WIDTH = 4
"""Entries of a launch in `Sampler.latest`."""

LaunchKind = tuple[int, str, bool, int]
"""A stage's number, a direction, whether parameters change, and the size: the number of bits of its rows."""


class Timed(Protocol):
    """A launch as a sampler sees one: a `Launch` and a `Dispatch` fit."""

    @property
    def number(self) -> int:
        """Its number, in the order of issue."""
        ...

    @property
    def worker(self) -> int:
        """The worker that runs the launch."""
        ...

    @property
    def stage(self) -> int:
        """The number of its stage."""
        ...

    @property
    def direction(self) -> str:
        """Its direction."""
        ...

    @property
    def n_rows(self) -> int:
        """Its rows."""
        ...

    @property
    def changes(self) -> Sequence[Any]:
        """The parameter changes that follow."""
        ...


class WaitedFor(Protocol):
    """Questions and waits of a sampler (`engine.fences.Fences`)."""

    def is_idle(self, worker: int) -> bool:
        """As `Fences.is_idle`."""
        ...

    def wait_for(self, worker: int) -> None:
        """As `Fences.wait_for`."""
        ...


class Sampler:
    """Times one launch in about `every`.

    It has more than twelve attributes: whether a launch is timed depends on what was timed before, and on what that has cost.

    Args:
      fences: Say how far devices are. While a sampler waits for one, whoever issues stands still.
      clock: Gives the time, in nanoseconds.
      every: One launch in about so many is timed; fewer where that would lose more than `SHARE` of the time. 1 times all.

    Attributes:
      latest: What was noted: of each launch `LATEST_WIDTH` entries: itself, when its kernels were issued, when its changes were, and a
        `Timing` or None. A flat list: with few containers alive the garbage collector runs less often.
    """

    def __init__(
        self,
        fences: WaitedFor,
        clock: Callable[[], int],
        every: int,
    ):
        self._fences = fences
        self._clock = clock
        self._every = every
        self._timed: Counter[LaunchKind] = Counter()
        self._n_tries = self._n_timed = 0  # since the last one that was timed; of these
        self._to_time: Timed | None = None
        self._kind: LaunchKind = (-1, "", False, 0)  # of that one
        self._timing: tuple[int, bool, int, int] | None = (
            None  # of what is issued now, if it is timed: see `_time`
        )
        self._start_ns = self._end_ns = 0  # of its kernels
        # Numbers of launches: the run's first, the next that is due, the next that may be tried.
        self._first = self._due = self._again = 0
        self.latest: list[Any] = []
        self._first_ns = clock()
        self._lost_ns = 0.0
        self._earned_ns = 0.0  # before, what was lost has not been earned

    def wants(self, launch: Timed, now_ns: int) -> bool:
        """Whether a launch may be timed, and so must be the first of the launches that are issued together."""
        return self._every == 1 or (now_ns >= self._earned_ns and self._is_due(launch))

    def before_kernels(self, launches: Sequence[Timed]) -> None:
        """Before a launch that is to be timed, asks whether its device is idle, or waits for the device."""
        self._timing = None
        if launches[0] is not self._to_time and self._every > 1:
            return
        launch = launches[0]
        self._to_time = None
        asked_ns = self._clock()
        is_idle = self._fences.is_idle(launch.worker)
        if self._every > 1 and not self._should_wait(launch, is_idle):
            self._lose(self._clock() - asked_ns)
            return
        if not is_idle:
            self._fences.wait_for(launch.worker)
        self._timing = asked_ns, is_idle, self._clock(), compilations()

    def after_kernels(self, launches: Sequence[Timed]) -> None:
        """Notes the time; waits for one that is timed."""
        self._start_ns = self._end_ns = self._clock()
        if self._timing is not None:
            self._fences.wait_for(launches[0].worker)
            self._end_ns = self._clock()
            if self._every == 1:  # there is nothing else to do while it is issued
                self._start_ns = self._timing[2]

    def after_changes(self, launches: Sequence[Timed]) -> None:
        """Notes the time; waits for the changes of one that is timed.

        Args:
          launches: Their kernels and parameter changes have been issued.
        """
        start_ns = changes_ns = self._start_ns
        if self._timing is not None:
            self._time(launches[0], *self._timing)
            return
        if launches[-1].changes:
            changes_ns = self._clock()
        for launch in launches:
            self.latest += launch, start_ns, changes_ns if launch.changes else start_ns, None

    def take(self) -> list[Any]:
        """Takes the notes that `latest` describes."""
        latest = self.latest
        self.latest = []
        return latest

    def _is_due(self, launch: Timed) -> bool:
        """Whether to time a launch: one of the first few of its kind, then one in about `every`.

        Not exactly one in `every`, as some kinds would never be timed in a schedule that repeats.
        """
        if not self._first:
            self._first = launch.number
            self._due = launch.number + self._every
        if self._to_time is not None or launch.number < self._again:
            return False
        kind = launch.stage, launch.direction, bool(launch.changes), launch.n_rows.bit_length()
        if self._timed[kind] >= EACH and launch.number < self._due:
            return False
        self._to_time = launch
        self._kind = kind
        return True

    def _should_wait(self, launch: Timed, is_idle: bool) -> bool:
        """Whether a launch that is due is timed now: its device has nothing to do, or too many have been skipped."""
        if not is_idle and self._n_tries < TRIES[self._timed[self._kind] >= EACH]:
            self._n_tries += 1
            self._again = launch.number + APART
            return False
        self._n_tries = 0
        self._n_timed += 1
        self._timed[self._kind] += 1
        if launch.number >= self._due:
            self._due = launch.number + self._every + 5 * self._n_timed % 8
        return True

    def _time(
        self,
        launch: Timed,
        asked_ns: int,
        is_idle: bool,
        idle_ns: int,
        compiled: int,
    ) -> None:
        """Waits for the changes of a launch that is timed, and counts the time lost by all steps since `asked_ns`.

        If the host sets the pace, that is all, unless something unusual takes long. If the device does, which goes on working meanwhile, it
        is the time in which the host issues the next launch; and that is less than passes from one to the next.
        """
        clock = self._clock
        start_ns = self._start_ns
        end_ns = self._end_ns
        changes_ns = clock()
        costs = end_ns - start_ns, 0
        if launch.changes:
            self._fences.wait_for(launch.worker)
            costs = costs[0], clock() - changes_ns
        timing = Timing(idle_ns, not is_idle, costs, compilations() > compiled)
        self.latest += launch, start_ns, changes_ns, timing
        spent_ns = clock() - asked_ns
        usual_ns = (asked_ns - self._first_ns - self._lost_ns) / (launch.number - self._first + 1)
        if timing.compiled:  # which is no loss, nor a usual time; and it must be timed again
            compiling_ns = start_ns - idle_ns + changes_ns - end_ns
            spent_ns = spent_ns - compiling_ns
            self._first_ns = self._first_ns + compiling_ns
            self._timed[self._kind] -= 1
        self._lose(min(spent_ns, usual_ns * (4 if is_idle else 1)))

    def _lose(self, ns: float) -> None:
        """Counts time that has been lost; no launch is timed before that time has been earned."""
        self._lost_ns += ns
        self._earned_ns = self._first_ns + (self._lost_ns - CREDIT_NS) / SHARE
