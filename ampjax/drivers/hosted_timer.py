"""The timer of a run with hosts, which time their own launches; joins hosts' measurements with the decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ampjax.drivers.tracer import Note, Tracer, add_dispatches
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.engine.timing import measured
from ampjax.engine.timing.device_times import Costs, Issued, Times, Timing, place_in_time
from ampjax.engine.timing.measured import MeasuredHost, RemoteTiming
from ampjax.hosts.hosts import DRIVER
from ampjax.sched.decisions.dispatch import UPDATE, Dispatch
from ampjax.trace.instruments import Instrument
from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import TracedHost


class HostedTimer(Instrument):
    """Watches a run in wall-clock time.

    Args:
      tracer: Records the run.
      executor: Lets hosts carry dispatches out.
      timing: Lets them time these.
      every: Hosts time one dispatch in about so many; 1: all.
    """

    def __init__(
        self,
        tracer: Tracer,
        executor: AnyExecutor,
        timing: RemoteTiming,
        every: int,
    ):
        self._tracer = tracer
        self._executor = executor
        self._timing = timing
        self._latest: list[Dispatch] = []
        self._notes: dict[int, tuple[Any, ...]] = {}
        timing.begin(tracer.clock, every, tracer.trace.max_slices)
        self._begin_ns = tracer.clock()

    def decided(self, dispatch: Dispatch) -> None:
        """Notes that a worker has got a dispatch."""
        self._tracer.begin(dispatch)

    def after_changes(self, dispatches: Sequence[Dispatch]) -> None:
        """Notes that dispatches have been sent to hosts."""
        self._latest += dispatches

    def idle(self, worker: int) -> None:
        """Notes why a worker has got nothing to do."""
        self._tracer.idle(worker)

    def carried_out(self) -> None:
        """Keeps the trace's notes of the latest dispatches."""
        for dispatch in self._latest:
            if len(self._notes) < self._tracer.trace.max_slices:
                self._notes[dispatch.number] = self._tracer.note_parts(dispatch)
            else:
                self._tracer.trace.drop()
        self._latest.clear()

    def wait(self) -> None:
        """Blocks until hosts have done everything that was sent."""
        self._executor.fences.wait()

    def finish(self) -> None:
        """Takes hosts' measurements, and hands everything to the trace, which works the times out on reading; `wait` first."""
        self.carried_out()
        trace = self._tracer.trace
        hosts = self._timing.finish()
        for host in hosts:
            trace.add_host(
                TracedHost(
                    host.name,
                    host.place,
                    host.workers,
                    host.offset_ns,
                    host.error_ns,
                )
            )
            trace.add_traffic(DRIVER, host.name, host.received)
            for other, n_bytes in host.sent.items():
                trace.add_traffic(host.name, other, n_bytes)
        trace.postpone(partial(_add, self._notes, hosts, self._begin_ns))
        self._notes = {}


def _add(
    rows: Mapping[int, tuple[Any, ...]],
    hosts: Sequence[MeasuredHost],
    begin_ns: int,
    trace: Trace,
) -> None:
    """Works out the times of a run's dispatches, and adds the dispatches to its trace."""
    notes = {number: Note(*parts) for number, parts in rows.items()}
    placed: list[tuple[Note, Times]] = []
    for host in hosts:
        of_workers = {}
        for number, note in notes.items():
            if note.worker in host.workers:
                of_workers[number] = note
        placed += _of_host(of_workers, host, begin_ns)
        for worker, begin, end in host.waits.tolist():
            trace.add_wait(worker, "rows", begin, end)
    trace.drop(len(notes) - len(placed))
    add_dispatches(trace, placed)


def _of_host(
    notes: Mapping[int, Note], host: MeasuredHost, begin_ns: int
) -> list[tuple[Note, Times]]:
    """The times of the dispatches of a host's workers. What was too much to be kept there is left out."""
    numbers = []
    issues = []
    for row in host.launches.tolist():
        if (note := notes.get(row[measured.NUMBER])) is not None:
            numbers.append(row[measured.NUMBER])
            issues.append(_make_issued(row, note))
    by_worker: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        by_worker[notes[number].worker].append(place)
    costs = Costs(issues)
    spans = defaultdict[int, _Spans](_Spans)
    for places in by_worker.values():
        before = None
        for place, times in zip(
            places,
            place_in_time(
                [issues[p] for p in places],
                costs,
                host.done_ns,
            ),
            strict=True,
        ):
            spans[numbers[place]].add(
                issues[place],
                times,
                goes_on=numbers[place] == before,
            )
            before = numbers[place]
    if host.n_dropped:
        last = max(numbers, default=0)
    else:
        last = max(notes, default=0)
    ends = {
        w: min(
            [
                begin_ns,
                *(span[0] for n in numbers if notes[n].worker == w for span in spans[n].all),
            ]
        )
        for w in host.workers
    }
    placed = []
    for number, note in notes.items():
        if number <= last:
            times = spans[number].times(ends[note.worker])
            ends[note.worker] = times[3]
            placed.append((note, times))
    return placed


def _make_issued(row: Sequence[int], note: Note) -> Issued:
    """A launch with a host's measurements."""
    stage = row[measured.STAGE]
    changes = bool(row[measured.CHANGES])
    timing = None
    if row[measured.IS_TIMED]:
        costs = row[measured.KERNELS_TAKE], row[measured.CHANGES_TAKE]
        timing = Timing(
            row[measured.IDLE],
            bool(row[measured.WAITED]),
            costs,
            bool(row[measured.COMPILED]),
        )
    if stage >= 0:
        work = (stage, note.direction, changes)
    else:
        work = (stage, UPDATE, changes)
    return Issued(
        work,
        note.rows if stage >= 0 else 0,
        row[measured.START],
        row[measured.CHANGES_AT],
        timing,
    )


@dataclass
class _Spans:
    """The times in which a dispatch's kernels ran, and its parameter changes; None for a part that its host did not run.

    A host's changes may be several operations: they are one span. If others' rows had to be written before the last of them, it begins behind
    these, so that no two spans of a worker overlap.
    """

    kernels: tuple[int, int] | None = None
    changes: tuple[int, int] | None = None

    @property
    def all(self) -> list[tuple[int, int]]:
        """The times that are known."""
        return [span for span in (self.kernels, self.changes) if span is not None]

    def add(self, issued: Issued, times: Times, goes_on: bool) -> None:
        """Adds a launch, or a change, that belongs to the dispatch.

        Args:
          issued: What it is.
          times: When it ran.
          goes_on: Whether what the worker did before it belongs to the dispatch, too.
        """
        stage, _, changes = issued.work
        if stage >= 0:
            self.kernels = times[:2]
        if changes:
            self.changes = (
                self.changes[0] if goes_on and self.changes is not None else times[2],
                times[3],
            )

    def times(self, before_ns: int) -> Times:
        """The times of both parts; a missing part takes no time, and counts as run with the other part, or else at once.

        Args:
          before_ns: The end of what the worker did before.
        """
        first = self.changes[0] if self.changes is not None else before_ns
        kernels = self.kernels or (min(before_ns, first), min(before_ns, first))
        return *kernels, *(self.changes or (kernels[1], kernels[1]))
