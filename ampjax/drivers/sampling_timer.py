"""Estimates the time of each dispatch on a device of this process, by waiting for a few dispatches (`engine.timing`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ampjax.drivers.tracer import Note, Tracer, add_dispatches
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.engine.timing.device_times import Costs, Issued, place_in_time
from ampjax.engine.timing.sampler import LATEST_WIDTH, Sampler
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.trace.instruments import Instrument
from ampjax.trace.trace import Trace

_ISSUED_WIDTH = 9
"""Entries of a dispatch in `_issues`, which is a flat list: with few containers alive the garbage collector runs less often."""


class SamplingTimer(Instrument):
    """Watches a run in wall-clock time, and times one dispatch in about `every`.

    Args:
      tracer: Records the run.
      executor: Is waited for: the event loop stands still for the time of one dispatch then.
      every: One dispatch in about so many is timed (see `Sampler`).
    """

    def __init__(self, tracer: Tracer, executor: AnyExecutor, every: int):
        self._tracer = tracer
        self._executor = executor
        self._most = tracer.trace.max_slices
        self._sampler = Sampler(executor.fences, tracer.clock, every)
        self._issues: list[
            Any
        ] = []  # of each dispatch what `Tracer.note_parts` gives, and what the sampler has noted

    def decided(self, dispatch: Dispatch) -> bool:
        """Notes that a worker has got a dispatch.

        Returns:
          Whether it may be timed, and so must be the first of those that are issued together.
        """
        return self._sampler.wants(dispatch, self._tracer.begin(dispatch))

    def before_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Before a dispatch that is to be timed, asks whether its device is idle, or waits for the device."""
        self._sampler.before_kernels(dispatches)

    def after_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Notes the time; waits for one that is timed."""
        self._sampler.after_kernels(dispatches)

    def after_changes(self, dispatches: Sequence[Dispatch]) -> None:
        """Notes the time; waits for the changes of one that is timed.

        Args:
          dispatches: Their kernels and parameter changes have been issued.
        """
        self._sampler.after_changes(dispatches)

    def idle(self, worker: int) -> None:
        """Notes why a worker has got nothing to do."""
        self._tracer.idle(worker)

    def carried_out(self) -> None:
        """Keeps the trace's notes of the latest dispatches: for all together, in a third of the time of one by one."""
        for dispatch, *times in _in_parts(self._sampler.take(), LATEST_WIDTH):
            if len(self._issues) < _ISSUED_WIDTH * self._most:
                self._issues += (*self._tracer.note_parts(dispatch), *times)
            else:
                self._tracer.trace.drop()

    def wait(self) -> None:
        """Blocks until devices have done everything that was issued."""
        self._executor.fences.wait()

    def finish(self) -> None:
        """Hands everything to the trace, which works the times out on reading; `wait` first, unless the run has failed."""
        self.carried_out()
        self._tracer.trace.postpone(
            partial(
                _add,
                self._issues,
                self._tracer.clock(),
            )
        )
        self._issues = []


def _in_parts(
    flat: Sequence[Any],
    n: int,
) -> Iterator[tuple[Any, ...]]:
    """A flat list, n entries at a time."""
    return zip(*[iter(flat)] * n, strict=True)


def _add(
    rows: Sequence[Any],
    done_ns: int,
    trace: Trace,
) -> None:
    """Works out the times of a run's dispatches, and adds the dispatches to its trace."""
    by_worker: dict[int, list[tuple[Note, Issued]]] = defaultdict(list)
    for *parts, start_ns, changes_ns, timing in _in_parts(rows, _ISSUED_WIDTH):
        note = Note(*parts)
        by_worker[note.worker].append(
            (note, Issued(note.work, note.rows, start_ns, changes_ns, timing))
        )
    costs = Costs(issued for of_worker in by_worker.values() for _, issued in of_worker)
    placed = []
    for of_worker in by_worker.values():
        notes, issues = zip(*of_worker, strict=True)
        placed += zip(notes, place_in_time(issues, costs, done_ns), strict=True)
    add_dispatches(trace, placed)
