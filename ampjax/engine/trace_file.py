"""Traces as JSON Lines: a slice is an object of its fields; every other record says what it is by its only key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampjax.engine.records import QueueSample, Slice, StalenessSample, Wait
from ampjax.errors import DataError

if TYPE_CHECKING:
    from ampjax.engine.trace import Trace


@dataclass
class Contents:
    """What a trace's file holds; the fields are a `Trace`'s."""

    slices: list[Slice] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    queues: list[QueueSample] = field(default_factory=list)
    staleness: list[StalenessSample] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    stages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    histograms: dict[str, list[int]] = field(default_factory=dict)
    n_dropped: int = 0


def write(path: str | Path, trace: Trace) -> None:
    """Writes a trace; folders are made.

    Args:
      path: The file.
      trace: The trace.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in _lines(trace))


def read(path: str | Path) -> Contents:
    """Reads what `write` wrote.

    Args:
      path: The file.

    Returns:
      Its contents.

    Raises:
      DataError: If the file is missing, or a line is not a record.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"trace `{path}`", "a readable file", f"{error}", "Write one with `Trace.to_jsonl`.") from error
    contents = Contents()
    for number, line in enumerate(lines, 1):
        try:
            if line:
                _take(contents, json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"trace `{path}`, line {number}",
                "a record of a trace as JSON",
                f"{line[:60]!r} ({error})",
                "Write the file with `Trace.to_jsonl`.",
            ) from error
    return contents


def _lines(trace: Trace) -> Iterator[dict[str, Any]]:
    yield from (asdict(s) for s in trace)
    yield from ({"wait": asdict(w)} for w in trace.waits)
    yield from ({"queues": asdict(q)} for q in trace.queues)
    yield from ({"staleness": asdict(s)} for s in trace.staleness)
    yield from ({"histogram": {"node": node, "rows": n.tolist()}} for node, n in trace.histograms.items())
    yield from ({"stage": {"name": name, "nodes": nodes}} for name, nodes in trace.stages.items())
    yield from ({"run": run} for run in trace.runs)
    if trace.n_dropped:
        yield {"n_dropped": trace.n_dropped}


def _take(contents: Contents, row: dict[str, Any]) -> None:
    """Adds a line to what has been read."""
    value: Any = row
    what = ""
    if len(row) == 1:
        what, value = next(iter(row.items()))
    if what == "wait":
        contents.waits.append(Wait(**value))
    elif what == "queues":
        queues = tuple((str(stage), str(way), int(n)) for stage, way, n in value["queues"])
        contents.queues.append(QueueSample(value["worker"], value["time_ns"], queues))
    elif what == "staleness":
        contents.staleness.append(StalenessSample(**value))
    elif what == "histogram":
        contents.histograms[value["node"]] = [int(n) for n in value["rows"]]
    elif what == "stage":
        contents.stages[value["name"]] = tuple(value["nodes"])
    elif what == "run":
        start, end = value
        contents.runs.append((int(start), int(end)))
    elif what == "n_dropped":
        contents.n_dropped = int(value)
    else:
        contents.slices.append(Slice(**{**value, "instances": tuple(value["instances"])}))
