"""Traces as Chrome's trace event JSON, which https://ui.perfetto.dev and chrome://tracing open.

Process 0 has a track for each worker: what it ran, and why it waited. Arrows go from an instance's forward pass at a stage to its backward
pass there. Process 1 has a counter for each queue, process 2 one for each node's staleness. Times are in microseconds from the start.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from ampjax.trace.trace import Trace, in_lanes
from ampjax.trace.trace_records import REASONS, Slice
from ampjax.trace.usage import spans

WORKERS = 0
QUEUES = 1
STALENESS = 2
"""Processes, as the format calls its groups of tracks."""

Event = dict[str, Any]


def to_perfetto(trace: Trace, path: str | Path) -> Path:
    """Writes a trace as a file for ui.perfetto.dev; missing folders are made.

    Args:
      trace: The trace.
      path: The file; its name should end in `.json`.

    Returns:
      The file's path.

    Raises:
      SettingsError: If a slice has a wrong kind, or times the wrong way round.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"traceEvents": events(trace), "displayTimeUnit": "ns"}
    path.write_text(
        json.dumps(content, separators=(",", ":")),
        encoding="utf-8",
    )
    return path


def events(trace: Trace) -> list[Event]:
    """The events of a trace: names of tracks first, then everything in order of time.

    Returns:
      Dictionaries as the format wants them.
    """
    placed = in_lanes(trace)
    tracks = _tracks(trace, placed)
    timed = [
        *_slices(placed, tracks),
        *_waits(trace, tracks),
        *_flows(placed, tracks),
    ]
    timed += [*_queue_counters(trace), *_staleness_counters(trace)]
    origin = min((event["ts"] for event in timed), default=0)
    timed.sort(key=lambda event: event["ts"])
    for event in timed:
        event["ts"] = _us(event["ts"] - origin)
    return [*_names(trace, tracks), *timed]


Tracks = dict[tuple[int, int], int]
"""A track's number by worker and lane: slices of a worker that overlap have tracks of their own."""


def _tracks(
    trace: Trace,
    placed: list[tuple[Slice, int]],
) -> Tracks:
    lanes = {(s.worker, lane) for s, lane in placed} | {(w.worker, 0) for w in trace.waits}
    return {key: number for number, key in enumerate(sorted(lanes))}


def _names(trace: Trace, tracks: Tracks) -> Iterator[Event]:
    def name(
        kind: str,
        pid: int,
        tid: int,
        **args: Any,
    ) -> Event:
        return {
            "ph": "M",
            "name": kind,
            "pid": pid,
            "tid": tid,
            "ts": 0,
            "args": args,
        }

    groups = [
        (WORKERS, "workers", bool(tracks)),
        (QUEUES, "messages waiting", bool(trace.queues)),
    ]
    groups += [(STALENESS, "staleness [updates]", bool(trace.staleness))]
    for pid, text, occurs in groups:
        if occurs:
            yield name("process_name", pid, 0, name=text)
            yield name("process_sort_index", pid, 0, sort_index=pid)
    for (worker, lane), tid in tracks.items():
        yield name(
            "thread_name",
            WORKERS,
            tid,
            name=trace.worker_name(worker) + (f", lane {lane + 1}" if lane else ""),
        )
        yield name("thread_sort_index", WORKERS, tid, sort_index=tid)


def _slices(
    placed: list[tuple[Slice, int]],
    tracks: Tracks,
) -> Iterator[Event]:
    for s, lane in placed:
        args = {
            "node": s.node,
            "direction": s.kind,
            "messages": s.messages,
            "rows": s.rows,
            "instances": s.instances,
        }
        yield _complete(
            s.node,
            s.kind,
            tracks[s.worker, lane],
            s.start_ns,
            s.end_ns,
            args,
        )


def _waits(trace: Trace, tracks: Tracks) -> Iterator[Event]:
    """Yields the reasons why a worker has nothing to do, where nothing runs on the worker."""
    for worker, start, end, use in spans(trace):
        if use in REASONS:
            yield _complete(f"({use})", "wait", tracks[worker, 0], start, end, {"reason": use})


def _complete(
    name: str,
    category: str,
    track: int,
    start: int,
    end: int,
    args: dict[str, Any],
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": WORKERS,
        "tid": track,
        "ts": start,
        "dur": _us(end - start),
        "args": args,
    }


def _flows(
    placed: list[tuple[Slice, int]],
    tracks: Tracks,
) -> Iterator[Event]:
    """Arrows from an instance's forward pass at a stage to its backward pass there; in loops the last pass comes back first."""
    passes: dict[tuple[str, int], list[tuple[Slice, int]]] = defaultdict(list)
    number = 0
    for s, lane in placed:
        for instance in s.instances if s.kind in ("forward", "backward") else ():
            way = passes[s.node, instance]
            if s.kind == "forward":
                way.append((s, tracks[s.worker, lane]))
            elif way:
                there, track = way.pop() if len(way) > 1 else way[0]
                number += 1
                common = {
                    "name": f"instance {instance}",
                    "cat": "instance",
                    "id": number,
                    "pid": WORKERS,
                }
                yield {"ph": "s", **common, "tid": track, "ts": there.start_ns}
                yield {
                    "ph": "f",
                    "bp": "e",
                    **common,
                    "tid": tracks[s.worker, lane],
                    "ts": s.start_ns,
                }


def _queue_counters(trace: Trace) -> Iterator[Event]:
    """Yields a counter per stage, with a line for each direction, and an event at each change."""
    last: dict[int, dict[str, dict[str, int]]] = defaultdict(dict)
    for sample in trace.queues:
        before = last[sample.worker]
        now = {}
        for stage, counts in before.items():
            now[stage] = dict.fromkeys(counts, 0)
        for stage, direction, n in sample.queues:
            now.setdefault(stage, {})[direction] = n
        for stage, counts in now.items():
            if before.get(stage) != counts:
                yield _counter(stage, QUEUES, sample.time_ns, counts)
        last[sample.worker] = now


def _staleness_counters(trace: Trace) -> Iterator[Event]:
    """A counter per node, with an event for each update; of updates at the same moment the last counts."""
    ordered = sorted(
        trace.staleness,
        key=lambda s: (s.node, s.time_ns),
    )
    for (node, time), samples in groupby(
        ordered,
        key=lambda s: (s.node, s.time_ns),
    ):
        yield _counter(node, STALENESS, time, {"mean": list(samples)[-1].mean})


def _counter(
    name: str,
    pid: int,
    time: int,
    values: dict[str, Any],
) -> Event:
    return {
        "ph": "C",
        "name": name,
        "pid": pid,
        "tid": 0,
        "ts": time,
        "args": values,
    }


def _us(time_ns: int) -> float:
    """Microseconds, with the nanoseconds behind the point."""
    return time_ns / 1000
