"""Fills a trace with a driver's view: slices, queues, reasons of waits, staleness. The drivers' clocks are passed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ampjax.drivers.run import DriverLoop
from ampjax.engine.timing.device_times import KernelKind, Times
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.decisions.parameter_changes import Change, Update, updates_in
from ampjax.sched.layout.columns import N_DIRECTIONS
from ampjax.trace.trace import Trace


class Note(NamedTuple):
    """A trace's notes of a dispatch (see `Tracer.note_parts`).

    Args:
      worker: Who runs it.
      stage: What it runs; None for parameter changes only.
      direction: The dispatch's.
      instances: Of each message.
      rows: Rows of payload.
      changes: Parameter changes that follow.
    """

    worker: int
    stage: Stage | None
    direction: str
    instances: np.ndarray
    rows: int
    changes: Sequence[Change] = ()

    @property
    def kind(self) -> str:
        """The slice's kind."""
        return (
            "transfer" if self.stage is not None and self.stage.kind.is_transfer else self.direction
        )

    @property
    def work(self) -> KernelKind:
        """The kind of kernel that the dispatch runs."""
        return -1 if self.stage is None else self.stage.number, self.direction, bool(self.changes)

    @property
    def updates(self) -> list[Update]:
        """The updates that follow, joint updates one by one."""
        result = []
        for change in self.changes:
            for update in updates_in(change):
                result.append(update)
        return result

    @property
    def changed(self) -> str:
        """The nodes that the dispatch updates, or whose replicas the dispatch keeps together; empty if no parameters change."""
        if self.changes:
            return "+".join(dict.fromkeys(update.node for update in self.updates)) or "replicas"
        return ""


class Tracer:
    """Records one run. `begin` or `idle` is called whenever a worker asks for work, `finish` at the end.

    Args:
      trace: What is filled.
      loop: The run.
      clock: Gives the time, in nanoseconds.
    """

    def __init__(
        self,
        trace: Trace,
        loop: DriverLoop,
        clock: Callable[[], int],
    ):
        self.trace = trace
        self.clock = clock
        self._loop = loop
        self._waits: dict[int, tuple[str, int]] = {}
        self._n_samples = 0
        self._samples: list[Any] = []  # flat, as `_add_queues` reads it: see decision 15
        self._begun = clock()
        scheduler = loop.scheduler
        self._stages = scheduler.plan.stages
        trace.stages.update({s.name: tuple(n.name for n in s.nodes) for s in scheduler.plan.stages})
        before = {}
        for node, stats in scheduler.counts.read().nodes.items():
            before[node] = stats.histogram.copy()
        self._before = before

    def note_parts(
        self,
        d: Dispatch,
    ) -> tuple[int, Stage | None, str, np.ndarray, int, Sequence[Change]]:
        """The parts of a dispatch's `Note`, as a tuple: a run has many, and a tuple is made faster.

        Returns:
          The fields of `Note`, in their order.
        """
        stage = self._stages[d.stage] if d.stage >= 0 else None
        return (
            d.worker,
            stage,
            d.direction,
            d.ids.copy(),
            d.n_rows,
            d.changes,
        )  # a view would keep all slots alive

    def note(self, d: Dispatch) -> Note:
        """Makes a trace's notes of a dispatch."""
        return Note(*self.note_parts(d))

    def begin(self, dispatch: Dispatch) -> int:
        """Notes that a worker has got a dispatch, and the messages that wait for the worker.

        Returns:
          The time, in nanoseconds.
        """
        now = self.clock()
        if self._waits:
            self._close(dispatch.worker, now)
        if dispatch.stage >= 0:
            name = self._stages[dispatch.stage].name
            self._sample(dispatch.worker, now, name, dispatch.direction, dispatch.n_messages)
        return now

    def idle(self, worker: int) -> None:
        """Notes that there is nothing to do for a worker, and why."""
        reason = self._loop.nothing_for(worker)
        now = self.clock()
        open_ = self._waits.get(worker)
        if open_ is None:
            self._sample(worker, now)
        if open_ is None or open_[0] != reason:
            self._close(worker, now)
            self._waits[worker] = reason, now

    def finish(self) -> None:
        """Notes that the run is over."""
        now = self.clock()
        for worker in list(self._waits):
            self._close(worker, now)
        self.trace.runs.append((self._begun, now))
        self.trace.postpone(partial(_add_queues, self._samples, self._stages))
        self._samples = []
        for node, stats in self._loop.scheduler.counts.read().nodes.items():
            self.trace.add_histogram(
                node,
                stats.histogram - self._before.get(node, 0),
            )

    def _close(self, worker: int, now: int) -> None:
        open_ = self._waits.pop(worker, None)
        if open_ is not None:
            self.trace.add_wait(worker, *open_, now)

    def _sample(
        self,
        worker: int,
        now: int,
        stage: str = "",
        direction: str = "",
        taken: int = 0,
    ) -> None:
        """Notes the messages in a worker's queues; messages just taken from one are added when the trace is read."""
        if self._n_samples < self.trace.max_slices:
            self._n_samples += 1
            queues, n_messages = self._loop.scheduler.queues.lengths(worker)
            self._samples += (
                worker,
                now,
                stage,
                direction,
                taken,
                len(queues),
                *queues,
                *n_messages,
            )


def _add_queues(
    samples: Sequence[Any],
    stages: Sequence[Stage],
    trace: Trace,
) -> None:
    """Adds samples of queues to a trace.

    Args:
      samples: Flat: of each sample the worker, the time, what it has just taken (stage, direction, messages), how many queues, the numbers of
        these, and the messages in each.
      stages: The plan's stages.
      trace: The trace.
    """
    rest = iter(samples)
    for worker, time, stage, direction, taken, n in zip(*[rest] * 6, strict=False):
        of = []
        for q in islice(rest, n):
            of.append((stages[q // N_DIRECTIONS].name, DIRECTIONS[q % N_DIRECTIONS]))
        waiting = dict(zip(of, islice(rest, n), strict=True))
        if taken:
            waiting[stage, direction] = waiting.get((stage, direction), 0) + taken
        trace.add_queues(
            worker,
            time,
            [(*queue, n) for queue, n in waiting.items()],
        )


def add_dispatches(
    trace: Trace,
    placed: Iterable[tuple[Note, Times]],
) -> None:
    """Adds dispatches to a trace: kernels and parameter changes in the order of their starts."""
    parts = []
    for note, times in placed:
        for span, add in ((times[:2], _add_kernels), (times[2:], _add_changes)):
            parts.append((span, add, note))
    for span, add, note in sorted(parts, key=lambda part: part[0]):
        add(trace, note, *span)


def add_dispatch(
    trace: Trace,
    note: Note,
    start_ns: int,
    end_ns: int,
    changes_ns: int,
    changed_ns: int,
) -> None:
    """Adds a dispatch to a trace."""
    _add_kernels(trace, note, start_ns, end_ns)
    _add_changes(trace, note, changes_ns, changed_ns)


def _add_kernels(
    trace: Trace,
    note: Note,
    start_ns: int,
    end_ns: int,
) -> None:
    if note.stage is not None:
        n = len(note.instances)
        trace.add(
            note.worker,
            note.stage.name,
            note.kind,
            start_ns,
            end_ns,
            note.instances,
            rows=note.rows,
            messages=n,
        )


def _add_changes(
    trace: Trace,
    note: Note,
    start_ns: int,
    end_ns: int,
) -> None:
    if note.changed:
        trace.add(note.worker, note.changed, "update", start_ns, end_ns)
    for update in note.updates:
        if update.count:
            trace.add_staleness(update.node, end_ns, update.count, update.mean_staleness)
