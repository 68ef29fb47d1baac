"""Traces as JSON Lines: a slice is an object of its fields; every other record has its kind as its only key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ampjax.errors import DataError
from ampjax.trace.trace_records import QueueSample, Slice, StalenessSample, TracedHost, Wait
from ampjax.utils.bounded_reading import parse_json

LONGEST_LINE = 1 << 24
"""Bytes of a line at most. The longest are histograms."""

R = TypeVar("R")


@dataclass
class Contents:
    """The content of a trace's file; the fields are the fields of a `Trace`."""

    slices: list[Slice] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    queues: list[QueueSample] = field(default_factory=list)
    staleness: list[StalenessSample] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    hosts: dict[str, TracedHost] = field(default_factory=dict)
    traffic: dict[tuple[str, str], int] = field(default_factory=dict)
    stages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    histograms: dict[str, list[int]] = field(default_factory=dict)
    n_dropped: int = 0


def write(path: str | Path, contents: Contents) -> None:
    """Writes a trace; folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in _lines(contents))


def read(path: str | Path) -> Contents:
    """Reads a file of `write`.

    Args:
      path: The file.

    Returns:
      Its contents.

    Raises:
      DataError: If the file is missing, or a line is not a record.
    """
    contents = Contents()
    number = 0
    try:
        with Path(path).open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                _take_line(path, number, line, contents)
    except OSError as error:
        raise DataError(
            f"trace `{path}`", "a readable file", f"{error}", "Write one with `Trace.to_jsonl`."
        ) from error
    return contents


def _take_line(
    path: str | Path,
    number: int,
    line: bytes,
    contents: Contents,
) -> None:
    """Adds a line to the contents.

    Raises:
      DataError: If it is no record of a trace.
    """
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"more than {LONGEST_LINE} bytes")
        if line.strip():
            _take(contents, parse_json(line.decode()))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(
            f"trace `{path}`, line {number}",
            "a record of a trace as JSON",
            f"{line[:60].decode(errors='replace').strip()!r} ({error})",
            "Write the file with `Trace.to_jsonl`.",
        ) from error


def _lines(contents: Contents) -> Iterator[dict[str, Any]]:
    yield from (asdict(s) for s in contents.slices)
    yield from ({"wait": asdict(w)} for w in contents.waits)
    yield from ({"queues": asdict(q)} for q in contents.queues)
    yield from ({"staleness": asdict(s)} for s in contents.staleness)
    yield from (
        {"histogram": {"node": node, "rows": rows}} for node, rows in contents.histograms.items()
    )
    yield from (
        {"stage": {"name": name, "nodes": nodes}} for name, nodes in contents.stages.items()
    )
    yield from ({"run": run} for run in contents.runs)
    yield from ({"host": asdict(host)} for host in contents.hosts.values())
    yield from ({"traffic": [*ends, n_bytes]} for ends, n_bytes in contents.traffic.items())
    if contents.n_dropped:
        yield {"n_dropped": contents.n_dropped}


def _take(contents: Contents, row: dict[str, Any]) -> None:
    """Adds a record to the contents."""
    if len(row) == 1:
        kind, value = next(iter(row.items()))
    else:
        kind = "slice"
        value = row
    if kind == "wait":
        contents.waits.append(_record(Wait, value))
    elif kind == "queues":
        queues = tuple(
            (_text(stage), _text(direction), _integer(n)) for stage, direction, n in value["queues"]
        )
        contents.queues.append(_record(QueueSample, {**value, "queues": queues}))
    elif kind == "staleness":
        contents.staleness.append(_record(StalenessSample, value))
    elif kind == "histogram":
        contents.histograms[_text(value["node"])] = [_integer(n) for n in value["rows"]]
    elif kind == "stage":
        contents.stages[_text(value["name"])] = tuple(_text(node) for node in value["nodes"])
    elif kind == "run":
        start, end = value
        contents.runs.append((_integer(start), _integer(end)))
    elif kind == "host":
        host = _record(
            TracedHost,
            {
                **value,
                "workers": tuple(_integer(worker) for worker in value["workers"]),
            },
        )
        contents.hosts[host.name] = host
    elif kind == "traffic":
        sender, receiver, n_bytes = value
        contents.traffic[_text(sender), _text(receiver)] = _integer(n_bytes)
    elif kind == "n_dropped":
        contents.n_dropped = _integer(value)
    else:
        instances = tuple(_integer(i) for i in value["instances"])
        contents.slices.append(_record(Slice, {**value, "instances": instances}))


def _record(
    kind: type[R],
    values: dict[str, Any],
) -> R:
    """A record whose fields have their declared types."""
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.name in values and entry.type in _CHECKS:
            _CHECKS[entry.type](values[entry.name])
    return kind(**values)


def _integer(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{str(value)[:20]!r} is no integer of 64 bits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:20]!r} is no text")
    return value


def _number(value: Any) -> float:
    return value if isinstance(value, float) else _integer(value)


_CHECKS = {"int": _integer, "str": _text, "float": _number}
"""By the name of a field's type."""
