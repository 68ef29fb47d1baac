"""Estimates when each dispatch ran on its device by waiting for a few of them.

A dispatch that is timed starts on a device that has nothing left to do, and is waited for: it takes from when the host has issued it until
its end. Every other one takes the median time of the timed ones of its stage, direction and size. It starts when the host has issued it and
the one before has ended, since a device runs in order. Whenever a dispatch is timed, those since the last one are stretched or compressed,
so that they end when the device was seen to be done with them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median_low
from typing import Any, NamedTuple

from ampjax.drivers.tracer import Note, Tracer, add_dispatch
from ampjax.engine.compilation import compilations
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.trace.instruments import Instrument
from ampjax.trace.trace import Trace

EACH = 2
"""Dispatches of each stage, direction and size that are timed soon after they first come."""

SHARE = 0.005
"""The part of a run's time, about, that may be lost by waiting for dispatches that are timed."""

CREDIT_NS = 4_000_000
"""What may be lost before that, so that a short run has something to go by."""

TRIES = 4, 32
"""How often a dispatch that should be timed is skipped because the device is at work: one of the first few of its kind, and a later one. To
wait until the device has caught up costs the
host its lead, which comes back slowly."""

APART = 17
"""Dispatches between two such tries. So at most one of those that are decided together is tried, and in a schedule that repeats it is not
always the same one."""

_LATEST_WIDTH, _ISSUED_WIDTH = 4, 9
"""Entries of a dispatch in `_latest` and in `_issues`, which are flat lists."""

Times = tuple[int, int, int, int]
"""When a dispatch's kernels start and end, and when its parameter changes do."""

DispatchKind = tuple[int, str, bool, int]
"""A stage's number, a direction, whether parameters change, and the size: the number of bits of its rows."""

KernelKind = tuple[int, str, bool]
"""A stage's number, a direction, and whether parameters change."""


class Timing(NamedTuple):
    """What was seen of a dispatch that was timed.

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
    """A dispatch that was issued.

    Args:
      note: What the trace keeps of it.
      start_ns: When the host had issued its kernels.
      changes_ns: When the host had issued its parameter changes.
      timing: If it was timed, what came of it.
    """

    note: Note
    start_ns: int
    changes_ns: int
    timing: Timing | None = None

    @property
    def work(self) -> KernelKind:
        """What it runs."""
        stage, direction, changes = self.note.stage, self.note.direction, self.note.changes
        return -1 if stage is None else stage.number, direction, bool(changes)

    @property
    def size(self) -> int:
        """Rows, in powers of two: dispatches are padded."""
        return self.note.rows.bit_length()


class SamplingTimer(Instrument):
    """Watches a run in wall-clock time, and times one dispatch in about `every`.

    It has more than twelve attributes: a time that was not measured is worked out from those before and after it.

    Args:
      tracer: Records the run.
      executor: Is waited for: the event loop stands still for the time of one dispatch then.
      every: One dispatch in about so many is timed; fewer where that would lose more than `SHARE` of the time.
    """

    def __init__(self, tracer: Tracer, executor: AnyExecutor, every: int):
        self._tracer, self._executor, self._every = tracer, executor, every
        self._clock, self._most = tracer.clock, tracer.trace.max_slices
        self._timed: Counter[DispatchKind] = Counter()
        self._n_tries = self._n_timed = 0  # since the last one that was timed; of these
        self._to_time: Dispatch | None = None
        self._kind: DispatchKind = (-1, "", False, 0)  # of that one
        self._timing: tuple[int, bool, int, int] | None = None  # of what is issued now, if it is timed: see `_time`
        self._start_ns = self._end_ns = 0  # of its kernels
        # Numbers of dispatches: the run's first, the next that is due, the next that may be tried.
        self._first = self._due = self._again = 0
        # Flat lists: with few containers alive the garbage collector runs less often.
        self._latest: list[
            Any
        ] = []  # of each dispatch `_LATEST_WIDTH` entries: itself, start, start of changes, timing
        self._issues: list[Any] = []  # of each `_ISSUED_WIDTH`: what `Tracer.note_parts` gives, and these times
        self._first_ns, self._lost_ns = tracer.clock(), 0.0
        self._earned_ns = 0.0  # before, what was lost has not been earned

    def decided(self, dispatch: Dispatch) -> bool:
        """Notes that a worker has got a dispatch.

        Args:
          dispatch: The dispatch.

        Returns:
          Whether it may be timed, and so must be the first of those that are issued together.
        """
        return self._tracer.begin(dispatch) >= self._earned_ns and self._is_due(dispatch)

    def before_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """If one is to be timed, sees whether its device is idle, or waits until it is.

        Args:
          dispatches: They are issued next, in one call.
        """
        self._timing = None
        if dispatches[0] is not self._to_time:
            return
        dispatch, self._to_time, asked_ns = dispatches[0], None, self._clock()
        fences = self._executor.fences
        is_idle = fences.is_idle(dispatch.worker)
        if not self._should_wait(dispatch, is_idle):
            self._lose(self._clock() - asked_ns)
            return
        if not is_idle:
            fences.wait_for(dispatch.worker)
        self._timing = asked_ns, is_idle, self._clock(), compilations()

    def after_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Notes the time; waits for one that is timed.

        Args:
          dispatches: Their kernels have been issued.
        """
        self._start_ns = self._end_ns = self._clock()
        if self._timing is not None:
            self._executor.fences.wait_for(dispatches[0].worker)
            self._end_ns = self._clock()

    def after_changes(self, dispatches: Sequence[Dispatch]) -> None:
        """Notes the time; waits for the changes of one that is timed.

        Args:
          dispatches: Their kernels and parameter changes have been issued.
        """
        start_ns = changes_ns = self._start_ns
        if self._timing is not None:
            self._time(dispatches[0], *self._timing)
            return
        if dispatches[-1].changes:
            changes_ns = self._clock()
        for dispatch in dispatches:
            self._latest += dispatch, start_ns, changes_ns if dispatch.changes else start_ns, None

    def idle(self, worker: int) -> None:
        """Notes why a worker has got nothing to do.

        Args:
          worker: Its number.
        """
        self._tracer.idle(worker)

    def carried_out(self) -> None:
        """Keeps what a trace needs of the latest dispatches. Done for all of them together it takes a third of the time."""
        latest, self._latest = self._latest, []
        for dispatch, *times in _in_parts(latest, _LATEST_WIDTH):
            if len(self._issues) < _ISSUED_WIDTH * self._most:
                self._issues += (*self._tracer.note_parts(dispatch), *times)
            else:
                self._tracer.trace.drop()

    def wait(self) -> None:
        """Blocks until devices have done what was issued."""
        self._executor.fences.wait()

    def finish(self) -> None:
        """Hands everything to the trace, which works the times out when it is read; `wait` first, unless the run has failed."""
        self.carried_out()
        self._tracer.trace.postpone(partial(_add, self._issues, self._clock()))
        self._issues = []

    def _is_due(self, dispatch: Dispatch) -> bool:
        """Whether to time a dispatch: one of the first few of its kind, then one in about `every`.

        Not exactly one in `every`, as some kinds would never be timed in a schedule that repeats.
        """
        if not self._first:
            self._first, self._due = dispatch.number, dispatch.number + self._every
        if self._to_time is not None or dispatch.number < self._again:
            return False
        kind = dispatch.stage, dispatch.direction, bool(dispatch.changes), dispatch.n_rows.bit_length()
        if self._timed[kind] >= EACH and dispatch.number < self._due:
            return False
        self._to_time, self._kind = dispatch, kind
        return True

    def _should_wait(self, dispatch: Dispatch, is_idle: bool) -> bool:
        """Whether a dispatch that is due is timed now: its device has nothing to do, or too many have been skipped."""
        if not is_idle and self._n_tries < TRIES[self._timed[self._kind] >= EACH]:
            self._n_tries += 1
            self._again = dispatch.number + APART
            return False
        self._n_tries = 0
        self._n_timed += 1
        self._timed[self._kind] += 1
        if dispatch.number >= self._due:
            self._due = dispatch.number + self._every + 5 * self._n_timed % 8
        return True

    def _time(self, dispatch: Dispatch, asked_ns: int, is_idle: bool, idle_ns: int, compiled: int) -> None:
        """Waits for the changes of a dispatch that is timed, and counts what has been lost by all that since `asked_ns`.

        If the host sets the pace, that is all, unless something unusual takes long. If the device does, which goes on working meanwhile, it
        is the time in which the host issues the next dispatch; and that is less than passes from one to the next.
        """
        clock, start_ns, end_ns = self._clock, self._start_ns, self._end_ns
        changes_ns = clock()
        costs = end_ns - start_ns, 0
        if dispatch.changes:
            self._executor.fences.wait_for(dispatch.worker)
            costs = costs[0], clock() - changes_ns
        timing = Timing(idle_ns, not is_idle, costs, compilations() > compiled)
        self._latest += dispatch, start_ns, changes_ns, timing
        spent_ns = clock() - asked_ns
        usual_ns = (asked_ns - self._first_ns - self._lost_ns) / (dispatch.number - self._first + 1)
        if timing.compiled:  # which is no loss, nor a usual time; and it must be timed again
            compiling_ns = start_ns - idle_ns + changes_ns - end_ns
            spent_ns, self._first_ns = spent_ns - compiling_ns, self._first_ns + compiling_ns
            self._timed[self._kind] -= 1
        self._lose(min(spent_ns, usual_ns * (4 if is_idle else 1)))

    def _lose(self, ns: float) -> None:
        """Counts time that has been lost; no dispatch is timed before it has been earned."""
        self._lost_ns += ns
        self._earned_ns = self._first_ns + (self._lost_ns - CREDIT_NS) / SHARE


def _in_parts(flat: Sequence[Any], n: int) -> Iterator[tuple[Any, ...]]:
    """A flat list, n entries at a time."""
    return zip(*[iter(flat)] * n, strict=True)


def _add(told: Sequence[Any], done_ns: int, trace: Trace) -> None:
    """Works out the times of a run's dispatches, and adds them to its trace."""
    issues = [Issued(Note(*issue[:-3]), *issue[-3:]) for issue in _in_parts(told, _ISSUED_WIDTH)]
    costs = Costs(issues)
    by_worker: dict[int, list[Issued]] = defaultdict(list)
    for issue in issues:
        by_worker[issue.note.worker].append(issue)
    placed = [(times, issue) for own in by_worker.values() for issue, times in place_in_time(own, costs, done_ns)]
    for times, issue in sorted(placed, key=lambda pair: pair[0][0]):
        add_dispatch(trace, issue.note, *times)


class Costs:
    """How long dispatches take, by the median of those that were timed: of two the shorter, since what disturbs a timing makes it longer.

    Args:
      issues: Dispatches, some of them timed.
    """

    def __init__(self, issues: Iterable[Issued]):
        found: dict[KernelKind, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for issue in issues:
            if issue.timing is not None and not issue.timing.compiled:
                found[issue.work][issue.size].append(issue.timing.costs)
        self._costs = {
            work: {
                size: (median_low(k for k, _ in costs), median_low(c for _, c in costs))
                for size, costs in sizes.items()
            }
            for work, sizes in found.items()
        }
        every = [cost for sizes in found.values() for costs in sizes.values() for cost in costs]
        self._usual = median_low([k for k, _ in every] or [0]), median_low([c for _, c in every if c] or [0])

    def of(self, issue: Issued) -> tuple[float, float]:
        """What a dispatch costs.

        Args:
          issue: The dispatch.

        Returns:
          Nanoseconds of its kernels and of its parameter changes: the medians of its kind. If its size was never timed, those of the
            nearest size;
          if its stage was never timed with (or without) changes, those without (or with); else the medians of all.
        """
        stage, direction, changes = issue.work
        for work in (issue.work, (stage, direction, not changes)):
            if sizes := self._costs.get(work):
                kernels, own = sizes.get(issue.size) or sizes[min(sizes, key=lambda size: abs(size - issue.size))]
                return kernels, own if changes else 0.0
        return self._usual[0], self._usual[1] if changes else 0.0


def place_in_time(issues: Sequence[Issued], costs: Costs, done_ns: int) -> list[tuple[Issued, Times]]:
    """When each dispatch of one worker ran.

    Args:
      issues: All of them, in the order of issue.
      costs: What they take.
      done_ns: A time when all had ended.

    Returns:
      Their times: in order, none overlapping, none before the host had issued it.
    """
    placed: list[tuple[Issued, Times]] = []
    part: list[Issued] = []
    for issue in issues:
        if issue.timing is not None and part:
            placed += zip(part, _fitted(part, costs, issue.timing.idle_ns, issue.timing.waited), strict=True)
            part = []
        part.append(issue)
    return placed + list(zip(part, _fitted(part, costs, done_ns, False), strict=True))


def _fitted(part: Sequence[Issued], costs: Costs, end_ns: int, exact: bool) -> list[Times]:
    """The times of some dispatches, the first of which may be timed, that end at `end_ns` or (not exact) before it."""
    factor, times, busy_ns = 1.0, *_run(part, costs, 1.0)
    for _ in range(4):  # with the factor it can change where the device is idle, so once may not be enough
        over = times[-1][3] - end_ns if times else 0
        if over == 0 or (over < 0 and not exact) or times[-1][3] == busy_ns:
            break
        factor *= max(end_ns - busy_ns, 0) / (times[-1][3] - busy_ns)
        times, busy_ns = _run(part, costs, factor)
    return [(min(a, end_ns), min(b, end_ns), min(c, end_ns), min(d, end_ns)) for a, b, c, d in times]


def _run(part: Sequence[Issued], costs: Costs, factor: float) -> tuple[list[Times], int]:
    """The times if what was not timed takes `factor` times its cost; and since when the device has been busy with that alone."""
    times: list[Times] = []
    free_ns = busy_ns = 0
    for issue in part:
        kernels, changes = issue.timing.costs if issue.timing else (factor * cost for cost in costs.of(issue))
        start = max(free_ns, issue.start_ns)
        between = start + int(kernels)
        then = max(between, issue.changes_ns)
        if then > between:
            busy_ns = then
        elif start > free_ns:
            busy_ns = start
        free_ns = then + int(changes)
        if issue.timing is not None:
            busy_ns = free_ns
        times.append((start, between, then, free_ns))
    return times, busy_ns
