"""Times of every dispatch on its device, of which only a few are waited for.

A dispatch that is timed starts on a device that has nothing left to do, and is waited for: it takes from when the host has issued it until
its end. Every other one takes the median time of the timed ones of its stage, direction and size. It starts when the host has issued it and
the one before has ended, since a device runs in order. Whenever a dispatch is timed, those since the last one are stretched or compressed,
so that they end when the device was seen to be done with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median_low
from typing import Any, NamedTuple

from ampjax.engine.compile import compilations
from ampjax.engine.executor import Executor
from ampjax.engine.trace import Trace
from ampjax.engine.tracing import Note, Tracer, add_dispatch, tell
from ampjax.sched.dispatch import Dispatch

EACH = 2
"""Dispatches of each stage, direction and size that are timed soon after they first come."""

SHARE = 0.005
"""The part of a run's time, about, that may be lost by waiting for dispatches that are timed."""

CREDIT_NS = 2_000_000
"""What may be lost before that, so that a short run has something to go by."""

PATIENCE = 64, 512
"""Dispatches for which one that should be timed is put off while the device is at work, the first few of its kind and later ones: to wait until it has caught
up costs the host its lead, which comes back slowly."""

LATEST = 32, 2_048
"""Dispatches, and messages in them, that are kept as they are until it is taken down what a trace wants of them; more would leave the processor's caches."""

_HELD, _TOLD = 4, 9
"""Entries of a dispatch in the lists of those that are held, and of those that have been taken down."""

_BEHIND_NS = 20_000
"""A wait that takes longer was for a device that was still at work, so its end is the device's."""

Times = tuple[int, int, int, int]
"""When a dispatch's kernels start and end, and when its parameter changes do."""

Work = tuple[int, str, bool]
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


class Issue(NamedTuple):
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
    def work(self) -> Work:
        """What it runs."""
        stage, direction, changes = self.note.stage, self.note.direction, self.note.changes
        return -1 if stage is None else stage.number, direction, bool(changes)

    @property
    def size(self) -> int:
        """Rows, in powers of two: dispatches are padded."""
        return self.note.rows.bit_length()


class Sampled:
    """Watches a run in wall-clock time, and times one dispatch in about `every` (`engine.loop.Watch`).

    Args:
      tracer: Records the run.
      executor: Is waited for: the event loop stands still for the time of one dispatch then.
      every: See above; fewer are timed where that would lose more than `SHARE` of the time.
    """

    def __init__(self, tracer: Tracer, executor: Executor, every: int):
        self._tracer, self._executor, self._every = tracer, executor, every
        self._clock, self._most = tracer.clock, tracer.trace.max_slices
        self._due, self._n_timed, self._n_put_off, self._compilations = every, 0, 0, 0
        self._timed: dict[tuple[int, str, bool, int], int] = {}
        # Flat: each container that lives on brings the next search for garbage among all that there is nearer.
        self._latest: list[Any] = []  # of each dispatch `_HELD` entries: itself, start, start of changes, timing
        self._n_held = 0
        self._issues: list[Any] = []  # of each `_TOLD`: what `tell` gives, and these times
        self._first_ns, self._lost_ns, self._n_begun = tracer.clock(), 0.0, 0
        self._earned_ns = 0.0  # before, what was lost has not been earned
        self._begun_ns = self._start_ns = 0
        self._idle_ns: int | None = None
        self._costs = 0, 0

    def decided(self, dispatch: Dispatch) -> None:
        """The scheduler has chosen a dispatch."""
        self._tracer.begin(dispatch)

    def begin(self, dispatch: Dispatch) -> None:
        """It is issued now."""
        self._begun_ns = self._clock()
        self._n_begun += 1
        self._idle_ns = None
        if self._is_due(dispatch):
            self._executor.wait_for(dispatch.worker)
            self._idle_ns, self._compilations = self._clock(), compilations()

    def kernels_issued(self, dispatch: Dispatch) -> None:
        """Its kernels have been issued."""
        self._start_ns = self._clock()
        if self._idle_ns is not None:
            self._executor.wait_for(dispatch.worker)
            self._costs = self._clock() - self._start_ns, 0

    def issued(self, dispatch: Dispatch) -> None:
        """All of it has been issued."""
        changes_ns = self._clock() if dispatch.changes else 0
        timing = None if self._idle_ns is None else self._timing(dispatch, self._idle_ns, changes_ns)
        self._latest += dispatch, self._start_ns, changes_ns, timing
        self._n_held += len(dispatch.states)
        if len(self._latest) >= _HELD * LATEST[0] or self._n_held >= LATEST[1]:
            self._keep()

    def wait(self) -> None:
        """Blocks until devices have done what was issued."""
        self._executor.wait()

    def finish(self) -> None:
        """Hands everything to the trace, which works the times out when it is read; `wait` first, unless the run has failed."""
        self._keep()
        self._tracer.trace.put_off(partial(_add, self._issues, self._clock()))
        self._issues = []

    def _keep(self) -> None:
        """Takes down what a trace keeps of the latest dispatches: of all together that takes a third of the time."""
        latest, self._latest, self._n_held = self._latest, [], 0
        for dispatch, *times in _in_parts(latest, _HELD):
            if len(self._issues) < _TOLD * self._most:
                self._issues += (*tell(dispatch), *times)
            else:
                self._tracer.trace.drop()

    def _timing(self, dispatch: Dispatch, idle_ns: int, changes_ns: int) -> Timing:
        """Waits for the parameter changes of a dispatch that is timed, and counts what is lost by it.

        If the host sets the pace, that is the waiting. If the device does, which goes on working meanwhile, it is the time in which the host issues the
        next dispatch; and that is less than passes from one to the next.
        """
        if dispatch.changes:
            self._executor.wait_for(dispatch.worker)
            self._costs = self._costs[0], self._clock() - changes_ns
        waited_ns = idle_ns - self._begun_ns
        passed_ns = self._begun_ns - self._first_ns - self._lost_ns
        self._lost_ns += min(waited_ns + sum(self._costs), passed_ns / self._n_begun)
        self._earned_ns = self._first_ns + (self._lost_ns - CREDIT_NS) / SHARE
        return Timing(idle_ns, waited_ns > _BEHIND_NS, self._costs, compilations() > self._compilations)

    def _is_at_work(self, worker: int) -> bool:
        """Whether a worker's device is, as far as is known: to ask costs as much as all the rest, so that is done every eighth time only."""
        return self._n_put_off % 8 > 0 or not self._executor.is_idle(worker)

    def _is_due(self, dispatch: Dispatch) -> bool:
        """Whether to time it: the first few of its kind, then one in about so many, lest a schedule that repeats hides some kinds."""
        if self._begun_ns < self._earned_ns:
            return False
        number = -1 if dispatch.stage is None else dispatch.stage.number
        key = number, dispatch.direction, bool(dispatch.changes), dispatch.n_rows.bit_length()
        timed = self._timed.get(key, 0)
        if timed >= EACH and self._n_begun < self._due:
            return False
        if self._n_put_off < PATIENCE[timed >= EACH] and self._is_at_work(dispatch.worker):
            self._n_put_off += 1
            return False
        self._n_put_off = 0
        self._timed[key] = timed + 1
        self._n_timed += 1
        if self._n_begun >= self._due:
            self._due = self._n_begun + self._every + 5 * self._n_timed % 8
        return True


def _in_parts(flat: Sequence[Any], n: int) -> Iterator[tuple[Any, ...]]:
    """A flat list, n entries at a time."""
    return zip(*[iter(flat)] * n, strict=True)


def _add(told: Sequence[Any], done_ns: int, trace: Trace) -> None:
    """Works out the times of a run's dispatches, and adds them to its trace."""
    issues = [Issue(Note(*issue[:-3]), *issue[-3:]) for issue in _in_parts(told, _TOLD)]
    costs = Costs(issues)
    by_worker: dict[int, list[Issue]] = defaultdict(list)
    for issue in issues:
        by_worker[issue.note.worker].append(issue)
    placed = [(times, issue) for own in by_worker.values() for issue, times in place(own, costs, done_ns)]
    for times, issue in sorted(placed, key=lambda pair: pair[0][0]):
        add_dispatch(trace, issue.note, *times)


class Costs:
    """How long dispatches take, by the median of those that were timed: of two the shorter, since what disturbs a timing makes it longer.

    Args:
      issues: Dispatches, some of them timed.
    """

    def __init__(self, issues: Iterable[Issue]):
        found: dict[Work, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
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

    def of(self, issue: Issue) -> tuple[float, float]:
        """Nanoseconds of its kernels, and of its parameter changes: what is nearest, if its own size, or it with changes or without, was never timed; else what is usual."""
        stage, direction, changes = issue.work
        for work in (issue.work, (stage, direction, not changes)):
            if sizes := self._costs.get(work):
                kernels, own = sizes.get(issue.size) or sizes[min(sizes, key=lambda size: abs(size - issue.size))]
                return kernels, own if changes else 0.0
        return self._usual[0], self._usual[1] if changes else 0.0


def place(issues: Sequence[Issue], costs: Costs, done_ns: int) -> list[tuple[Issue, Times]]:
    """When each dispatch of one worker ran.

    Args:
      issues: All of them, in the order of issue.
      costs: What they take.
      done_ns: A time when all had ended.

    Returns:
      Their times: in order, none overlapping, none before the host had issued it.
    """
    placed: list[tuple[Issue, Times]] = []
    part: list[Issue] = []
    for issue in issues:
        if issue.timing is not None and part:
            placed += zip(part, _fitted(part, costs, issue.timing.idle_ns, issue.timing.waited), strict=True)
            part = []
        part.append(issue)
    return placed + list(zip(part, _fitted(part, costs, done_ns, False), strict=True))


def _fitted(part: Sequence[Issue], costs: Costs, end_ns: int, exact: bool) -> list[Times]:
    """The times of some dispatches, the first of which may be timed, that end at `end_ns` or (not exact) before it."""
    factor, times, busy_ns = 1.0, *_run(part, costs, 1.0)
    for _ in range(4):  # with the factor it can change where the device is idle, so once may not be enough
        over = times[-1][3] - end_ns if times else 0
        if over == 0 or (over < 0 and not exact) or times[-1][3] == busy_ns:
            break
        factor *= max(end_ns - busy_ns, 0) / (times[-1][3] - busy_ns)
        times, busy_ns = _run(part, costs, factor)
    return [(min(a, end_ns), min(b, end_ns), min(c, end_ns), min(d, end_ns)) for a, b, c, d in times]


def _run(part: Sequence[Issue], costs: Costs, factor: float) -> tuple[list[Times], int]:
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
