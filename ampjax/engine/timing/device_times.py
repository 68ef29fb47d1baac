"""Works out the time of each launch on its device from the launches that were waited for.

A launch that is timed starts on a device that has nothing left to do, and is waited for: it takes from when the host has issued it until
its end. Every other one takes the median time of the timed ones of its stage, direction and size. It starts when the host has issued it and
the one before has ended, since a device runs in order. Whenever a launch is timed, those since the last one are stretched or compressed,
so that they end when the device was seen to be done with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

Times = tuple[int, int, int, int]
"""When a launch's kernels start and end, and when its parameter changes do."""

KernelKind = tuple[int, str, bool]
"""A stage's number, a direction, and whether parameters change."""


class Timing(NamedTuple):
    """The measurements of a launch that was timed.

    Args:
      idle_ns: When everything before it had ended.
      waited: Whether the device was at work until then; else it may have been idle for long.
      costs: How long its kernels took, and its parameter changes.
      compiled: Whether something was compiled for it, so that its time is no other's.
    """

    idle_ns: int
    waited: bool
    costs: tuple[int, int]
    compiled: bool = False


class Issued(NamedTuple):
    """A launch that was issued.

    Args:
      work: What it runs.
      rows: Rows of payload.
      start_ns: When the host had issued its kernels.
      changes_ns: When the host had issued its parameter changes.
      timing: If it was timed, what came of it.
    """

    work: KernelKind
    rows: int
    start_ns: int
    changes_ns: int
    timing: Timing | None = None

    @property
    def size(self) -> int:
        """Rows, in powers of two: launches are padded."""
        return self.rows.bit_length()


class Costs:
    """Costs of launches, by the median of the timed ones: of two the shorter, since disturbances only make a timing longer.

    Args:
      issues: Launches, some of them timed.
    """

    def __init__(self, issues: Iterable[Issued]):
        costs_of: dict[KernelKind, dict[int, list[tuple[int, int]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for issue in issues:
            if issue.timing is not None and not issue.timing.compiled:
                costs_of[issue.work][issue.size].append(issue.timing.costs)
        self._costs = {
            work: {
                size: (
                    median_low(k for k, _ in costs),
                    median_low(c for _, c in costs),
                )
                for size, costs in sizes.items()
            }
            for work, sizes in costs_of.items()
        }
        every = []
        for sizes in costs_of.values():
            for costs in sizes.values():
                for cost in costs:
                    every.append(cost)
        self._usual = (
            median_low([k for k, _ in every] or [0]),
            median_low([c for _, c in every if c] or [0]),
        )

    def of(self, issue: Issued) -> tuple[float, float]:
        """Estimates the cost of a launch.

        Returns:
          Nanoseconds of its kernels and of its parameter changes: the medians of its kind. If its size was never timed, those of the
            nearest size;
          if its stage was never timed with (or without) changes, those without (or with); else the medians of all.
        """
        stage, direction, changes = issue.work
        # The same kind of launch, or else the same stage and direction with (or without) changes.
        for work in (issue.work, (stage, direction, not changes)):
            if sizes := self._costs.get(work):
                kernels, of_changes = (
                    sizes.get(issue.size)
                    or sizes[min(sizes, key=lambda size: abs(size - issue.size))]
                )
                return kernels, of_changes if changes else 0.0
        return self._usual[0], self._usual[1] if changes else 0.0


def place_in_time(
    issues: Sequence[Issued],
    costs: Costs,
    done_ns: int,
) -> list[Times]:
    """Places the launches of one worker in time.

    Args:
      issues: All of them, in the order of issue.
      costs: What they take.
      done_ns: A time when all had ended.

    Returns:
      The times of each: in order, none overlapping, none before the host had issued it.
    """
    placed: list[Times] = []
    part: list[Issued] = []
    for issue in issues:
        # Everything before this launch had ended when it was issued: these launches are placed by
        # that.
        if issue.timing is not None and part:
            placed += _fit_times(part, costs, issue.timing.idle_ns, issue.timing.waited)
            part = []
        part.append(issue)
    return placed + _fit_times(part, costs, done_ns, False)


def _fit_times(
    part: Sequence[Issued],
    costs: Costs,
    end_ns: int,
    exact: bool,
) -> list[Times]:
    """The times of some launches, the first of which may be timed, that end at `end_ns` or (not exact) before."""
    factor, times, busy_ns = 1.0, *_run(part, costs, 1.0)
    for _ in range(
        4
    ):  # with the factor it can change where the device is idle, so once may not be enough
        if times:
            over = times[-1][3] - end_ns
        else:
            over = 0
        if over == 0 or (over < 0 and not exact) or times[-1][3] == busy_ns:
            break
        # Only what follows the last idle time can be stretched.
        factor *= max(end_ns - busy_ns, 0) / (times[-1][3] - busy_ns)
        times, busy_ns = _run(part, costs, factor)
    result = []
    for a, b, c, d in times:
        result.append((min(a, end_ns), min(b, end_ns), min(c, end_ns), min(d, end_ns)))
    return result


def _run(
    part: Sequence[Issued],
    costs: Costs,
    factor: float,
) -> tuple[list[Times], int]:
    """The times of launches if each untimed one takes `factor` times its cost; and the moment since when the device has run only such launches."""
    times: list[Times] = []
    free_ns = busy_ns = 0
    for issue in part:
        if issue.timing:
            kernels, changes = issue.timing.costs
        else:
            kernels, changes = (factor * cost for cost in costs.of(issue))
        # A device runs in order, and nothing before the host has issued it.
        start = max(free_ns, issue.start_ns)
        between = start + int(kernels)
        then = max(between, issue.changes_ns)
        # The device was idle before the changes, or before the kernels: it is busy since then.
        if then > between:
            busy_ns = then
        elif start > free_ns:
            busy_ns = start
        free_ns = then + int(changes)
        # A timed launch takes what was measured, so it can't be stretched either.
        if issue.timing is not None:
            busy_ns = free_ns
        times.append((start, between, then, free_ns))
    return times, busy_ns
