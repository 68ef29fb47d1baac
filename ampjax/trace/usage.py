"""The division of workers' time: stages, updates, and reasons of waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import KINDS, REASONS, Slice

HOST = "host"
"""A worker's time in which its device did nothing and the scheduler was not known to lack work for it: the host was busy elsewhere."""

USES = (*KINDS, *REASONS, HOST)
"""All that a worker's time can go to."""

Span = tuple[int, int, int, str]
"""A worker, from when until when, and one of `USES`; in nanoseconds."""


def usage(trace: Trace) -> dict[int, dict[str, int]]:
    """Divides each worker's time by use, over all runs of a trace.

    Where slices of a worker overlap, the one that began first counts; waits count only where there is no slice.

    Returns:
      By worker, nanoseconds by what they went to (`USES`, without what took none). They add up to the time of the runs.
    """
    times: dict[int, dict[str, int]] = {}
    for worker, start, end, use in spans(trace):
        of_worker = times.setdefault(worker, {})
        of_worker[use] = of_worker.get(use, 0) + end - start
    result = {}
    for worker, spent in sorted(times.items()):
        result[worker] = {use: spent[use] for use in USES if use in spent}
    return result


def spans(trace: Trace) -> Iterator[Span]:
    """Divides a trace's runs without gaps.

    Returns:
      For each worker, in order of time, what each moment went to.
    """
    slices: dict[int, list[Slice]] = defaultdict(list)
    for s in trace:
        slices[s.worker].append(s)
    waits: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for w in trace.waits:
        waits[w.worker].append((w.start_ns, w.end_ns, w.reason))
    runs = sorted(trace.runs) or [(trace.start_ns, trace.start_ns + trace.span_ns)]
    for worker in sorted({*slices, *waits}):
        busy = sorted((s.start_ns, s.end_ns, s.kind) for s in slices[worker])
        # Three layers: the run itself is the host's, waits lie over it, and slices over both.
        without_slices = _fill_intervals(
            [(*run, HOST) for run in runs],
            sorted(waits[worker]),
        )
        yield from ((worker, *span) for span in _fill_intervals(without_slices, busy))


def _fill_intervals(
    ground: list[tuple[int, int, str]],
    pieces: list[tuple[int, int, str]],
) -> list[tuple[int, int, str]]:
    """Puts pieces over a ground of intervals that do not overlap. Both are in order of time; where pieces overlap, the first one counts."""
    result: list[tuple[int, int, str]] = []
    i = 0
    for start, end, ground_use in ground:
        at = start
        while i < len(pieces) and pieces[i][0] < end:
            # What has been filled already stays: the first of two pieces that overlap counts.
            begin = max(pieces[i][0], at)
            until = min(pieces[i][1], end)
            use = pieces[i][2]
            if until > begin:
                result += [(at, begin, ground_use)] * (begin > at) + [(begin, until, use)]
                at = until
            # The piece goes on in the next interval, so it is looked at again.
            if pieces[i][1] > end:
                break
            i += 1
        if end > at:
            result.append((at, end, ground_use))
    return result
